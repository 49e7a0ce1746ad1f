"""One rollout as a dump has it, and how several become a `RolloutBatch`."""

from __future__ import annotations

import contextlib
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.model_calls import MergedRow, ModelCall
from rollout_traces.model.plain_values import INFINITE, columns_of
from rollout_traces.model.spans import Span
from rollout_traces.model.text import IDENTITY_BYTES, short_hash
from rollout_traces.model.transcript import FLOAT_TRACKS, INT_TRACKS
from rollout_traces.sources.chat import Record, messages_of_marked_text

_DECIMAL = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
NO_TOKENS = ("token ids", "loss mask", "logprobs")
"""What a dump of text alone does not have."""
RE_ENCODED = "re-encoded"
"""The value of `extras["ids_from"]` of ids that were made from text and may differ from those trained on."""

NAMED_BY_EXTRAS = {"source": ("source", "data_source", "dataset"), "engine": ("engine", "engine_id")}
"""Fields of a rollout -> names under which dumps have them beside it."""


@dataclass(eq=False)
class RolloutRow:
    """One rollout of a dump. Everything is optional but its step and split.

    Attributes:
        step: the trainer's global step.
        split: `rollout` or `eval-rollout`.
        line: 1-based line or row of the file, for messages.
        input_ids: its n token ids; None where the dump has text alone.
        loss_mask: n values, 1 where the token is in the loss; None: unknown, taken as the response mask.
        response_mask: n values, 1 where the policy sampled the token; None: the loss mask.
        tracks: further n values by canonical name (`logprobs`, `versions`, ...).
        messages: OpenAI-style messages, None where the dump has none.
        messages_are_given: they are the trainer's own; False: they were read from its tokens.
        n_prompt_messages: how many of them are the prompt; None when unknown.
        prompt_text: the prompt's text, where the dump has no messages.
        reply_text: what was written after the prompt, where the dump has no messages.
        tools: tool definitions.
        raw_reward: the reward before shaping or scaling.
        components: rewards by name.
        metrics: the trainer's own numbers of the rollout by name.
        advantage: one advantage for the whole row.
        group: what rows that answer the same prompt share in this step; None: the prompt itself.
        prompt_key: what makes rollouts of other steps answers to the same prompt; None: the prompt itself.
        episode: what rows of one episode share.
        parent: sample id of the row that this one branched off.
        sample_id: the row's own id.
        identity: what its writer calls it, in no other rollout of the run; None: its content tells it from others.
        source: data set or environment.
        engine: the engine that sampled it.
        success: whether it solved its task.
        parsed_answer: what was parsed as the answer.
        ground_truth: the expected answer.
        reward_status: `ok`, `timeout` or `error`.
        stop_reason: why sampling stopped.
        discard_reason: why it was not trained on.
        run: name of its run, in a file of several.
        timings: spans of time, or seconds by name.
        extras: scalars to show beside it.
        known_columns: numbers of the ledger that its tokens would show (`n_sampled`, ...), by column.
        ledger_row: the row of the ledger as it was stored, of a rollout that is copied; empty for all others.
        origin: where it was read from, `file:record`; an import of files sets it.
        train_version: the policy version being trained.
        attempt: the how-many-th start of the run it is of, where the writer tells: a later one supersedes steps of those before.
    """

    step: int
    split: str = "rollout"
    line: int | None = None
    input_ids: Any = None
    loss_mask: Any = None
    response_mask: Any = None
    tracks: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] | None = None
    messages_are_given: bool = True
    n_prompt_messages: int | None = None
    prompt_text: str | None = None
    reply_text: str | None = None
    tools: list[Any] | None = None
    reward: float | None = None
    raw_reward: float | None = None
    components: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    advantage: float | None = None
    group: Any = None
    prompt_key: str | None = None
    episode: str | None = None
    parent: str | None = None
    sample_id: Any = None
    identity: str | None = None
    source: str | None = None
    engine: str | None = None
    success: bool | None = None
    parsed_answer: Any = None
    ground_truth: Any = None
    reward_status: str | None = None
    stop_reason: str | None = None
    discard_reason: str | None = None
    run: str | None = None
    timings: Record | list[Span] | None = None
    extras: dict[str, Any] = field(default_factory=dict)
    known_columns: dict[str, float] = field(default_factory=dict)
    ledger_row: dict[str, Any] = field(default_factory=dict)
    origin: str | None = None
    train_version: int | None = None
    attempt: int = 1

    def __post_init__(self) -> None:
        """Takes the source and the engine from extras that name them, which say the same again where they are given too."""
        for column, names in NAMED_BY_EXTRAS.items():
            for name in names:
                said, given = self.extras.get(name), getattr(self, column)
                if isinstance(said, str) and given in (None, said):
                    setattr(self, column, said)
                    self.extras = {key: value for key, value in self.extras.items() if key != name}

    def conversation(self) -> list[dict[str, Any]] | None:
        """Its messages; where it has text alone those that its special tokens mark, else `user` and `assistant`."""
        if self.messages is not None or (self.prompt_text is None and self.reply_text is None):
            return self.messages
        marked = messages_of_marked_text(self.prompt_text, self.reply_text)
        if marked is not None:
            return marked
        messages = [] if self.prompt_text is None else [{"role": "user", "content": self.prompt_text}]
        if self.reply_text is not None:
            messages.append({"role": "assistant", "content": self.reply_text})
        return messages

    def key_of_prompt(self) -> str | None:
        """The prompt key given, else a hash of the prompt's text; None where only tokens show."""
        if self.prompt_key is not None:
            return self.prompt_key
        if self.prompt_text is not None:
            return short_hash(self.prompt_text.encode("utf-8", "surrogatepass")).hex()
        if not self.messages:
            return None
        n = self.n_prompt_messages
        if n is None:
            roles = [message.get("role") for message in self.messages]
            n = roles.index("assistant") if "assistant" in roles else len(roles)
        if n <= 0:
            return None
        prompt = [[m.get("role"), m.get("content"), m.get("tool_calls")] for m in self.messages[:n]]
        return short_hash(orjson.dumps(prompt, default=str, option=orjson.OPT_SORT_KEYS)).hex()


def add_tokens(row: RolloutRow, calls: MergedRow) -> None:
    """Gives a row the ids of merged calls, with what of them was sampled, and its logprobs."""
    n = len(calls.prompt_ids)
    row.input_ids = [*calls.prompt_ids, *calls.response_ids]
    row.response_mask = row.loss_mask = [0] * n + calls.sampled
    if any(value == value for value in calls.logprobs):
        row.tracks["logprobs"] = [None] * n + [None if value != value else value for value in calls.logprobs]


def note_calls_left_out(note: Callable[[str, str], None], n: int) -> None:
    """Notes model calls whose ids are in no later prompt, since the context was rewritten after them."""
    if n:
        note(
            "calls_left_out",
            f"the context was rewritten after {n} of the model's calls; their ids are left out.",
        )


def call_of(prompt: Sequence[int], completion: Sequence[int], logprobs: Any) -> ModelCall:
    """A recorded call; its logprobs where there is one for each sampled id, unknown ones NaN."""
    is_whole = isinstance(logprobs, list) and len(logprobs) == len(completion)
    known = [float("nan") if value is None else float(value) for value in logprobs] if is_whole else None
    return ModelCall(prompt, completion, known)


def identity_of(row: RolloutRow) -> tuple[bytes, bool]:
    """Gives the identity of a rollout that is read again, in whatever file: its writer's id, else its content.

    Returns:
        A hash, and whether several rollouts of a run may have the same one.
    """
    if row.identity is not None:
        return short_hash(row.identity.encode("utf-8", "surrogatepass"), IDENTITY_BYTES), False
    place = (row.step, row.split, row.group, row.sample_id, row.episode)
    texts = (row.messages, row.prompt_text, row.reply_text, row.input_ids)
    content = [*place, row.reward, row.components, *texts]
    try:
        data = orjson.dumps(content, default=str, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
    except (TypeError, ValueError):
        data = repr(content).encode("utf-8", "surrogatepass")
    return short_hash(data, IDENTITY_BYTES), True


def number(value: Any) -> float | None:
    """A float, None for what is none; booleans are 0 and 1, texts what they spell (`"0.5"`, `"Infinity"`)."""
    if value is None or (isinstance(value, str) and value not in INFINITE and not _DECIMAL.fullmatch(value)):
        return None
    try:
        return INFINITE[value] if isinstance(value, str) and value in INFINITE else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def mapping_of(value: Any) -> Record:
    """The value where it is an object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def numbers(values: Record | None, but: Sequence[str] = ()) -> dict[str, float | None]:
    """The entries of a mapping that are numbers."""
    return {key: float(value) for key, value in scalars(values, but).items() if not isinstance(value, str)}


def scalars(values: Record | None, but: Sequence[str] = ()) -> dict[str, Any]:
    """The entries of a mapping that are text, numbers or booleans."""
    if not isinstance(values, Mapping):
        return {}
    return {
        str(key): value
        for key, value in values.items()
        if isinstance(value, (str, int, float)) and key not in but
    }


def batch_of(rows: Sequence[RolloutRow], *, decodes_tokens: bool) -> RolloutBatch:
    """Rollouts of one step and split as a batch, right-padded.

    A row without tokens has an attention mask of zeros, and its messages. Where a row has tokens and no
    loss mask, its response mask stands in.

    Args:
        rows: at least one.
        decodes_tokens: there is a tokenizer: text of rows with tokens comes from these, and messages go along
            only where the dump has them structured.

    Returns:
        The batch.

    Raises:
        ValueError: a token id is no whole number.
    """
    ids: list[Any] = [[] if row.input_ids is None else _token_ids(row.input_ids) for row in rows]
    given: dict[str, Any] = {
        name: [getattr(row, attribute) for row in rows] for name, attribute in _COLUMNS.items()
    }
    given |= {
        "extras": [row.extras or None for row in rows],
        "ledger_rows": [row.ledger_row or None for row in rows],
        "known_columns": [row.known_columns or None for row in rows],
        "reward_components": columns_of([row.components for row in rows]),
        "sample_metrics": columns_of([row.metrics for row in rows]),
        "messages": [_messages_of(row, len(n), decodes_tokens) for row, n in zip(rows, ids, strict=True)],
        "prompt_keys": [row.key_of_prompt() for row in rows],
        "train_version": next((r.train_version for r in rows if r.train_version is not None), None),
        **_tracks(rows),
    }
    given["group_ids"] = [
        row.group if row.group is not None else -1 if key is None else f"prompt {key}"
        for row, key in zip(rows, given["prompt_keys"], strict=True)
    ]
    if any(row.response_mask is not None for row in rows):
        given["response_mask"] = [_mask(row.response_mask, row.loss_mask) for row in rows]
    known = {name: value for name, value in given.items() if not _is_unknown(value)}
    known["loss_mask"] = [_mask(row.loss_mask, row.response_mask) for row in rows]
    return RolloutBatch.from_prompt_response([[]] * len(rows), ids, **known)


def _token_ids(given: Any) -> np.ndarray:
    """[n]; ids that a dump wrote as floats are whole numbers all the same, or none."""
    if isinstance(given, list):
        with contextlib.suppress(TypeError, OverflowError):
            return np.array(
                array("q", given)
            )  # half the time of `np.asarray`, on the calling thread of a hook
    ids = np.asarray(given)
    if ids.dtype.kind == "f" and (broken := ~np.isfinite(ids) | (ids != np.floor(ids))).any():
        raise ValueError(f"input_ids: seen {ids[broken][0]}, expected whole numbers")
    return ids


_COLUMNS = {
    "advantages": "advantage",
    "rewards": "reward",
    "raw_rewards": "raw_reward",
    "episode_ids": "episode",
    "parents": "parent",
    "origins": "origin",
    "sample_ids": "sample_id",
    "sources": "source",
    "engine_ids": "engine",
    "successes": "success",
    "parsed_answers": "parsed_answer",
    "ground_truths": "ground_truth",
    "reward_statuses": "reward_status",
    "stop_reasons": "stop_reason",
    "discard_reasons": "discard_reason",
    "tools": "tools",
    "timings": "timings",
}
"""Columns of a batch -> fields of its rows."""


def _messages_of(row: RolloutRow, n_tokens: int, decodes_tokens: bool) -> list[dict[str, Any]] | None:
    if not n_tokens or not decodes_tokens:
        return row.conversation()
    return row.messages if row.messages_are_given else None


def _is_unknown(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(each is None for each in value))


def _mask(own: Sequence[Any] | None, other: Sequence[Any] | None) -> np.ndarray | None:
    """A row's mask, of which another one stands in."""
    given = own if own is not None else other
    return None if given is None else np.asarray(given) != 0


def _tracks(rows: Sequence[RolloutRow]) -> dict[str, list[Any]]:
    """Values of tokens by canonical name, a row's or None; unknown ones of a row are NaN."""
    names = dict.fromkeys(name for row in rows for name in row.tracks if name in (*INT_TRACKS, *FLOAT_TRACKS))
    return {
        name: [
            None if row.input_ids is None or (values := row.tracks.get(name)) is None else _numbers(values)
            for row in rows
        ]
        for name in names
    }


def _numbers(values: Any) -> Any:
    return [np.nan if v is None else v for v in values] if isinstance(values, list) else values
