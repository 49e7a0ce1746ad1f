"""Transcript <-> the stored trace: messages, metadata and spans, as plain values.

The schema of every row that this package stores in Trackio's `traces` table. Nothing here imports Trackio: `sink`
turns a `TraceRecord` into a `trackio.Trace`, and the store reads one back. An assistant's thinking is told apart from what
it says: of our traces as they were decoded, of others' out of their text.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from rollout_traces.decode.grammars import TYPED_FAMILIES, parse_assistant
from rollout_traces.decode.messages import transcript_of_messages
from rollout_traces.ledger import columns as ledgers
from rollout_traces.ledger.columns import Ledger
from rollout_traces.model.plain_values import cut, plain
from rollout_traces.model.text import text_of, words
from rollout_traces.model.transcript import THINKING_BESIDE, Flag, Transcript, Turn, thinking_beside
from rollout_traces.trace.images import TraceImage
from rollout_traces.trace.packing import pack_transcript, unpack_transcript

SCHEMA_VERSION = 1
TRAJECTORIES = "trajectories"
"""Traces of rollouts are logged under `<split>/trajectories`."""
STEPS = "steps"
"""The step summary of a step is logged under `<split>/steps`."""
ATTEMPT_KEY = "_attempt"
"""Logged scalars carry the run's attempt under this key, a text; Trackio's page shows no chart of it."""
TRACK_KEY = "token_track"
"""On the root span: the packed transcript."""
DETAILS_KEY = "rollout_traces"
"""On the root span: details that a page shows on request: flags with their sentences, extras, timings."""
LEDGER_KEY = "ledger"
"""On a step summary's root span: the packed ledger."""
PREVIEW = 120
"""Characters of a tool call or result that a span previews; the messages hold the whole text."""

_LEDGER_ONLY = words(
    "equal_to engine advantage_abs_max answered answer mismatch_k1 mismatch_abs_max log_ratio_sum clip_share trace_uid "
    "timings"
)
"""Columns of the ledger that a trace does not have, beside those with a prefix."""
_FROM_LEDGER = {
    column.name: column.meaning
    for column in ledgers.COLUMNS
    if "/" not in column.name and column.name not in _LEDGER_ONLY
}
METADATA = {
    "status": "text in Trackio's list of traces: the reward",
    "schema": "version of these keys",
    "kind": "`rollout`, or `digest` for the summary of a step",
    **_FROM_LEDGER,
    "group_size": "rollouts in the group",
    "ids_from": "`unobserved`: the rollout came without tokens; `re-encoded`: made from its text; absent: the trainer's",
    "component/<name>": "one reward component",
    "n_tokens": "tokens without padding",
    "train_version": "policy version being trained",
    "decoded_from": "where roles came from: messages, template or mask",
    "response_mask_from": "given, versions, or loss_mask (assumed)",
    "population": "rollouts of this step and split when it was chosen",
    "inspector": "where an inspector shows the rollout, where its address is known",
    "parsed_answer": "what the trainer parsed as the answer",
    "sample/<name>": "a metric that the trainer computed for the rollout",
    "extra/<name>": "a scalar that the trainer logged with the row",
}
"""The metadata keys of a trace and what they mean; a key is absent when its value is unknown."""


@dataclass(frozen=True)
class TraceRecord:
    """One trace as plain values.

    Attributes:
        messages: OpenAI-style messages with string content.
        metadata: flat; keys of `METADATA`.
        spans: execution spans; the root carries the packed data under keys of our own.
        images: images to be saved with the trace; one that was read has them in its details, under `IMAGES_KEY`.
    """

    messages: Sequence[Mapping[str, Any]]
    metadata: Mapping[str, Any]
    spans: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    images: Sequence[TraceImage] = ()


def rollout_trace(
    transcript: Transcript,
    ledger: Ledger,
    row: int,
    *,
    flags: Sequence[Flag] = (),
    extra: Mapping[str, Any] | None = None,
    details: Mapping[str, Any] | None = None,
    images: Sequence[TraceImage] = (),
) -> TraceRecord:
    """Builds the trace of a decoded rollout.

    Args:
        ledger: the ledger of its step, selection columns filled.
        row: its row in the ledger.
        flags: the flags raised on it.
        extra: further metadata by key (`n_tokens`, `population`, `ground_truth`, `extra/...`).
        details: values that only a reader of the whole trace needs (timings, structured extras).
        images: the images that its tokens stand for, in order.

    Returns:
        The trace.
    """
    known = ledger.row(row)
    metadata: dict[str, Any] = {"status": status_text(known), "schema": SCHEMA_VERSION, "kind": "rollout"}
    metadata |= {key: known[key] for key in _FROM_LEDGER if known.get(key) is not None}
    metadata |= {
        key: value
        for key, value in known.items()
        if key.startswith(("component/", "sample/")) and value is not None
    }
    metadata["flags"] = list(dict.fromkeys(flag.name for flag in flags))
    metadata["decoded_from"] = transcript.source
    metadata |= {key: value for key, value in (extra or {}).items() if value is not None}
    messages = [{**message, "content": cut(message["content"])} for message in plain(transcript.messages())]
    root = {
        "id": "rollout",
        "name": "rollout",
        "kind": "span",
        "output": _summary(metadata),
        DETAILS_KEY: {
            "flags": [flag.as_dict() for flag in flags],
            "warnings": list(transcript.warnings),
            **(details or {}),
        },
        TRACK_KEY: pack_transcript(transcript, messages),
    }
    return TraceRecord(messages, metadata, [root, *_turn_spans(transcript)], images)


def read_transcript(record: TraceRecord) -> Transcript | None:
    """The transcript that a trace carries, None for traces that other tools wrote.

    Raises:
        StoreError: the packed data is damaged or of a newer schema.
    """
    packed = next((span[TRACK_KEY] for span in record.spans if span.get(TRACK_KEY)), None)
    return None if packed is None else unpack_transcript(packed, record.messages)


def shown_transcript(record: TraceRecord) -> Transcript:
    """The transcript of any trace, made of its messages where another tool wrote it; raises as `read_transcript`."""
    return read_transcript(record) or transcript_of_messages(record.messages)


def newer_schema(metadata: Mapping[str, Any]) -> str | None:
    """The warning for a trace whose metadata a newer version wrote; None for a schema that this version knows."""
    schema = metadata.get("schema")
    if metadata.get("kind") not in ("rollout", "digest") or type(schema) is not int:
        return None
    if schema <= SCHEMA_VERSION:
        return None
    return (
        f"Written by a newer rollout-traces (schema {schema}; this one knows {SCHEMA_VERSION}): what that added or "
        "changed may be missing or wrong here. Upgrade rollout-traces."
    )


def read_details(record: TraceRecord) -> dict[str, Any]:
    """The details stored with a trace: flags with their sentences, warnings, extras, timings."""
    return next((dict(span[DETAILS_KEY]) for span in record.spans if span.get(DETAILS_KEY)), {})


def step_summary_trace(
    ledger: Ledger,
    *,
    summary: Sequence[Mapping[str, Any]],
    metadata: Mapping[str, Any],
    details: Mapping[str, Any] | None = None,
) -> TraceRecord:
    """Builds the step summary of a step and split.

    Args:
        ledger: every row of the step.
        summary: messages that read as a summary of the step.
        metadata: further keys (`step`, `split`, counts).
        details: values that only a reader of the whole trace needs (dropped rollouts and the reasons).

    Returns:
        The trace, with the packed ledger on its root span.
    """
    packed = base64.b64encode(ledgers.pack(ledger)).decode("ascii")
    root: dict[str, Any] = {"id": "digest", "name": "digest", "kind": "span", LEDGER_KEY: packed}
    if details:
        root[DETAILS_KEY] = dict(details)
    return TraceRecord(summary, {"schema": SCHEMA_VERSION, "kind": "digest", **metadata}, [root])


def read_ledger(record: TraceRecord) -> Ledger | None:
    """The ledger that a step summary carries, None for other traces.

    Raises:
        StoreError: the packed data is damaged or of a newer schema.
    """
    packed = next((span[LEDGER_KEY] for span in record.spans if span.get(LEDGER_KEY)), None)
    return None if packed is None else ledgers.unpack(base64.b64decode(packed))


def status_text(known: Mapping[str, Any]) -> str:
    """A rollout's status in Trackio's list: its reward, and why it was not trained on."""
    reward = known.get("reward")
    text = "reward unknown" if reward is None else f"reward {reward:.4g}"
    return f"{text}, {known['discard_reason'].replace('_', ' ')}" if known.get("discard_reason") else text


def _summary(metadata: Mapping[str, Any]) -> str:
    """The text of the root span: the outcome, one fact a line."""
    components = [
        f"{key.removeprefix('component/')} {value:.4g}"
        for key, value in metadata.items()
        if key.startswith("component/")
    ]
    lines = [
        status_text(metadata) + (f" ({', '.join(components)})" if components else ""),
        f"advantage {metadata['advantage']:.4g}" if "advantage" in metadata else "",
        f"stopped by {metadata['stop_reason']}" if "stop_reason" in metadata else "",
        f"flags: {', '.join(metadata['flags'])}" if metadata.get("flags") else "",
        f"kept as {metadata['selected_by']}" if "selected_by" in metadata else "",
    ]
    return "\n".join(line for line in lines if line)


def _turn_spans(transcript: Transcript) -> list[dict[str, Any]]:
    spans = []
    counted = 0
    for index, turn in enumerate(transcript.turns):
        if turn.role == "assistant" and (turn.n_sampled or not len(transcript.tokens)):
            spans.append(_generation_span(index, turn, turn.stop - counted - turn.n_sampled))
            counted = turn.stop
        elif turn.role == "tool":
            spans.append(_tool_span(index, turn, transcript.turns[:index]))
    return spans


def _generation_span(index: int, turn: Turn, n_read: int) -> dict[str, Any]:
    """The span of a generation. `n_read` tokens were not sampled since the one before: all spans' tokens add up."""
    versions = sorted({version for version, _ in turn.versions})
    span: dict[str, Any] = {
        "id": f"turn-{index}",
        "parent_id": "rollout",
        "name": f"assistant, {turn.n_sampled} tokens" if turn.n_sampled else "assistant",
        "kind": "generation",
    }
    if turn.n_sampled:
        span["usage"] = {"input_tokens": n_read, "output_tokens": turn.n_sampled}
    if versions:
        span["model"] = "policy version " + ", ".join(map(str, versions))
    return span


def _tool_span(index: int, turn: Turn, before: Sequence[Turn]) -> dict[str, Any]:
    call = next(
        (call for past in reversed(before) for call in past.tool_calls if call.id == turn.tool_call_id), None
    )
    arguments = orjson.dumps(call.arguments).decode() if call is not None and call.parsed else None
    return {
        "id": f"turn-{index}",
        "parent_id": "rollout",
        "name": turn.name or (call.name if call is not None and call.name else "tool"),
        "kind": "tool",
        "input": None if arguments is None else _preview(arguments),
        "output": _preview(turn.content),
    }


def _preview(text: str) -> str:
    return text if len(text) <= PREVIEW else f"{text[:PREVIEW]} … ({len(text)} characters)"


def with_thinking_apart(record: TraceRecord) -> list[dict[str, Any]]:
    """The conversation of a trace, content as text and thinking in `reasoning_content`.

    Args:
        record: a trace of ours or of another tool.

    Raises:
        StoreError: its packed data is damaged or of a newer schema.
    """
    transcript = read_transcript(record)
    if transcript is None:
        return [_apart(message) for message in record.messages if isinstance(message, Mapping)]
    unthinking = replace(transcript, turns=tuple(replace(turn, thinking=None) for turn in transcript.turns))
    messages = unthinking.messages()
    for message, turn in zip(messages, transcript.turns, strict=True):
        if turn.thinking is not None:
            message["reasoning_content"] = turn.thinking
    return messages


def _apart(message: Mapping[str, Any]) -> dict[str, Any]:
    content, thinking = text_of(message.get("content")), thinking_beside(message)
    if message.get("role") == "assistant":
        parsed = parse_assistant(content, TYPED_FAMILIES)  # which template wrote it is not known
        content, thinking = parsed.content, "\n\n".join(filter(None, (thinking, parsed.thinking)))
    rest = {name: value for name, value in message.items() if name not in THINKING_BESIDE}
    return {**rest, "content": content, **({"reasoning_content": thinking} if thinking else {})}
