"""The decoder's knowledge of a tokenizer, shown on a sample conversation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollout_traces.decode.vocabulary import load_tokenizer
from rollout_traces.doctor import CheckFinding, Examination, check, fail, note, ok, warn
from rollout_traces.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from rollout_traces.model.transcript import Transcript

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "calculator", "arguments": {"expression": "2 + 3"}},
}
CONVERSATIONS: tuple[tuple[str, list[dict[str, Any]]], ...] = (
    (
        "system, user, assistant, tool",
        [
            {"role": "system", "content": "You are careful."},
            {"role": "user", "content": "What is 2 + 3?"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "name": "calculator", "tool_call_id": "call_1", "content": "5"},
            {"role": "assistant", "content": "It is 5."},
        ],
    ),
    (
        "user, assistant",
        [{"role": "user", "content": "What is 2 + 3?"}, {"role": "assistant", "content": "It is 5."}],
    ),
)
"""From the richest to the plainest; the first that the template renders is the sample."""


@dataclass(frozen=True)
class Sample:
    """A rendered and decoded conversation.

    Attributes:
        name: the roles it was made of.
        messages: what was rendered.
        transcript: what was decoded; its loss mask is 1 on what the policy would have written.
        refused: the richer conversations that the template refused, each with its error.
    """

    name: str
    messages: list[dict[str, Any]]
    transcript: Transcript
    refused: tuple[str, ...] = ()


def sample_conversation(
    tokenizer: Any, chat_template_kwargs: Mapping[str, Any] | None = None
) -> Sample | None:
    """Renders a conversation with the tokenizer's template and decodes it from its tokens.

    Args:
        tokenizer: a transformers tokenizer.
        chat_template_kwargs: further arguments of its template.

    Returns:
        The sample, None when the template renders none of the conversations.
    """
    from rollout_traces.decode import TranscriptDecoder

    kwargs = chat_template_kwargs or {}
    decoder = TranscriptDecoder(tokenizer, chat_template_kwargs=kwargs)
    refused: list[str] = []
    for name, messages in CONVERSATIONS:
        try:
            text = tokenizer.apply_chat_template(messages, tokenize=False, **kwargs)
        except Exception as error:  # noqa: BLE001  templates refuse roles in their own ways; kept and said
            refused.append(f"{name}: {error}")
            continue
        ids = tokenizer.encode(text, add_special_tokens=False)
        plain = decoder.decode(ids, loss_mask=[0] * len(ids))
        mask = [0] * len(ids)
        for turn in plain.turns:
            if turn.role == "assistant":
                mask[turn.body_start : turn.stop] = [1] * (turn.stop - turn.body_start)
        return Sample(name, messages, decoder.decode(ids, loss_mask=mask), tuple(refused))
    return None


@check("Tokenizer")
def decoding(examination: Examination) -> Iterator[CheckFinding]:
    """Renders a sample conversation with the tokenizer's template, decodes it, and compares."""
    if examination.tokenizer is None:
        yield note("tokenizer", "not given", "--tokenizer PATH shows what its template teaches.")
        return
    try:
        tokenizer = load_tokenizer(examination.tokenizer)
    except MissingExtra as error:
        yield fail("tokenizer", "cannot be looked at", str(error))
        return
    except ConfigError as error:
        yield fail("tokenizer", str(error), "Give a folder with a tokenizer.json.")
        return
    kwargs = examination.chat_template_kwargs
    sample = sample_conversation(tokenizer, kwargs) if tokenizer.chat_template else None
    if sample is None:
        yield warn(
            "chat template",
            "none that renders a conversation" if tokenizer.chat_template else "none",
            "Turns will come from the loss mask alone; set tokenizer.chat_template to what the policy is prompted with.",
        )
        return
    source = sample.transcript.source
    yield (ok if source == "template" else warn)("roles come from", source)
    for refusal in sample.refused:
        yield note("refused by the template", refusal)
    wanted = [_shape(message) for message in sample.messages]
    decoded = [_shape(message) for message in sample.transcript.messages()]
    missing = [part for part in wanted if part not in decoded]
    if not missing:
        yield ok("sample conversation", f"{sample.name}: decoded as it was rendered")
    else:
        yield warn(
            "sample conversation",
            f"{sample.name}: {missing[0]} came back otherwise",
            "docs/decoding.md lists what templates lose; pass chat_template=, chat_template_kwargs= or dialect= to "
            "RolloutLogger to override.",
        )


def _shape(message: Mapping[str, Any]) -> tuple[str, str, tuple[str, ...]]:
    calls = tuple(call["function"]["name"] for call in message.get("tool_calls") or ())
    return message["role"], message["content"].split("</think>")[-1].strip(), calls
