"""A stored trace of any tool -> what the index keeps of it; fields of other tools under our names, their own kept beside them."""

from __future__ import annotations

import base64
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from rollout_traces.errors import StoreError
from rollout_traces.ledger.columns import COLUMNS
from rollout_traces.ledger.text_facts import result_failed
from rollout_traces.model.packed_arrays import damage_said
from rollout_traces.model.plain_values import INFINITE, INT64_MAX, INT64_MIN, from_json
from rollout_traces.model.text import short_hash
from rollout_traces.model.units import LARGEST_EXACT
from rollout_traces.store.rows import StoredTrace
from rollout_traces.trace.conversion import LEDGER_KEY, TraceRecord

logger = logging.getLogger("rollout_traces")

PREVIEW = 160
"""Characters kept of the first user message and of the last assistant message."""
TEXT_LIMIT = 256
"""Characters kept of a text in the metadata; the trace itself has it whole."""
MOST_NAMES = 64
"""Names kept of a list."""
MAX_DEPTH = 3
"""Nested metadata is flattened this deep, names joined by `/`."""

DIGEST = "digest"
"""The name of a step summary in its metadata."""
SIGNS = "{}[]()<>=+*/\\_^$#@|&%~`"
"""Signs that the index keeps as words of their own; other marks only separate words."""

THINKING_BEGINS, THINKING_ENDS = "<think>", "</think>"
"""Marks around the thinking inside an assistant's content."""
_THINKING = "think>"
"""Part of both."""
SIGNED = 4000
"""Characters of a tool's result that its error signature is looked for in."""

PIECE = 512
"""Characters looked at together for CJK: most pieces of most texts are plain ASCII."""
_HAN = re.compile(
    "([\u2e80-\u2fff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003134f])"
)
_ALONE = [(sign.encode(), f" {sign} ".encode()) for sign in SIGNS]
_NUMERIC = frozenset(column.name for column in COLUMNS if column.kind in ("float", "int"))
_VARIES = (
    (re.compile(r"\"[^\"]*\"|'[^']*'|`[^`]*`"), "<text>"),
    (re.compile(r"(?<![\w<])(?:[A-Za-z]:)?(?:[\w.~-]*[/\\][\w.~-]+)+"), "<path>"),
    (re.compile(r"\b(?:0x)?[0-9a-f]{8,}\b", re.IGNORECASE), "<hash>"),
    (re.compile(r"\d+(?:\.\d+)?"), "<n>"),
)
"""Patterns of what differs between two occurrences of one error, and what replaces it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The part of one trace that the index keeps.

    Attributes:
        stored: the trace, its texts let go.
        split: the split it belongs to; the logged key where a tool has no splits.
        step: the trainer's step.
        kind: `rollout`, `digest`, or `other` for what other tools logged.
        fields: further scalars by name; lists of names as tuples.
        prompt: first words of the first user message.
        reply: first words of the last assistant message, its thinking left out.
        n_messages: messages in the conversation.
        words: the conversation's text as it is indexed, see `spaced`; nothing of a step summary.
        packed: the packed ledger of a step summary; None where it has none, or it is damaged.
    """

    stored: StoredTrace
    split: str
    step: int
    kind: str
    fields: Mapping[str, Any]
    prompt: str
    reply: str
    n_messages: int
    words: bytes
    packed: bytes | None


def read_trace(stored: StoredTrace) -> Reading:
    """Reads one trace, ours or another tool's.

    Returns:
        What the index keeps; damaged JSON is read as an empty conversation with the field `unreadable`. Fields
        of another tool are kept under their own names, and under ours beside these.
    """
    messages, damaged_messages = _load(stored.messages, list)
    metadata, damaged_metadata = _load(stored.metadata, dict)
    fields = flatten(metadata)
    if damaged_messages or damaged_metadata:
        fields["unreadable"] = 1
    kind = fields.pop("kind", None)
    ours = kind in ("rollout", DIGEST) and "schema" in fields
    spoken = mappings(messages)
    shown: Sequence[Mapping[str, Any]] = spoken
    if not ours:
        other = read_other_tool(stored, spoken, metadata)
        own, fields = fields, renamed(fields)
        if other is not None:
            known, shown = other
            fields = own | fields | _flat_known(known)
    fields = _numbers(fields)
    split, step = fields.pop("split", None), fields.pop("step", None)
    fields |= {name: found for name, found in _tools(shown).items() if name not in fields}
    said = [] if ours and kind == DIGEST else spoken
    return Reading(
        stored=stored.without_texts(),
        split=split if isinstance(split, str) else _split_of(stored.key),
        step=step if isinstance(step, int) else stored.step,
        kind=str(kind) if ours else "other",
        fields=fields,
        prompt=_preview(next((m for m in shown if m.get("role") == "user"), None)),
        reply=_preview(next((m for m in reversed(shown) if m.get("role") == "assistant"), None), answer_of),
        n_messages=len(messages),
        words=spaced("\n".join(text for message in said for text in message_texts(message))),
        packed=_packed_ledger(stored) if ours and kind == DIGEST else None,
    )


def _packed_ledger(stored: StoredTrace) -> bytes | None:
    try:
        with damage_said(f"the ledger of {stored.trace_id}"):
            spans = orjson.loads(stored.spans or b"[]")
            text = next((span[LEDGER_KEY] for span in spans if span.get(LEDGER_KEY)), None)
            return None if text is None else base64.b64decode(text, validate=True)
    except StoreError as error:
        logger.warning("rollout-traces: %s", error)
        return None


def conversation_text(messages: str | bytes) -> str:
    """The text that search looks through, of a conversation as JSON."""
    return "\n".join(text for said in mappings(from_json(messages)) for text in message_texts(said))


def part_text(messages: str | bytes, part: str) -> str:
    """A part of a conversation as JSON: `text` for all of it, `prompt` for the first user message, `reply`
    for what the last assistant message says after its thinking."""
    if part == "text":
        return conversation_text(messages)
    spoken = mappings(from_json(messages))
    role, among = ("user", spoken) if part == "prompt" else ("assistant", spoken[::-1])
    message = next((m for m in among if m.get("role") == role), None)
    text = "" if message is None else _first_text(message)
    return answer_of(text) if part == "reply" else text


def message_texts(message: Mapping[str, Any]) -> list[str]:
    """The texts of one message: content, reasoning, names and arguments of its tool calls."""
    found = _texts(message.get("content"))
    if "reasoning_content" in message:
        found += _texts(message["reasoning_content"])
    for call in mappings(message.get("tool_calls")):
        given = call.get("function")
        function = given if isinstance(given, Mapping) else call
        found += _texts(function.get("name"))
        arguments = function.get("arguments")
        found += _texts(orjson.dumps(arguments).decode() if isinstance(arguments, dict) else arguments)
    return found


def spaced(text: str) -> bytes:
    """Text with every CJK character and every sign of code standing alone, a token each, as UTF-8."""
    if not text.isascii():
        pieces = (text[at : at + PIECE] for at in range(0, len(text), PIECE))
        text = "".join(piece if piece.isascii() else _HAN.sub(r" \1 ", piece) for piece in pieces)
    written = text.encode("utf-8", "replace")
    for sign, alone in _ALONE:
        if sign in written:
            written = written.replace(sign, alone)
    return written


def flatten(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Scalars of nested metadata by `/`-joined name; lists of texts as tuples.

    Args:
        metadata: as JSON was parsed.
    """
    found: dict[str, Any] = {}
    _flatten_into(found, metadata, "", 1)
    return found


def _flatten_into(found: dict[str, Any], metadata: Mapping[str, Any], prefix: str, depth: int) -> None:
    for key, value in metadata.items():
        name = prefix + key
        kind = type(value)
        if kind is dict:
            if depth < MAX_DEPTH:
                _flatten_into(found, value, f"{name}/", depth + 1)
        elif kind is list:
            if all(isinstance(item, str) for item in value):
                found[name] = tuple([item[:TEXT_LIMIT] for item in value[:MOST_NAMES]])
        else:
            scalar = value if kind is float and value == value else _scalar(value)
            if scalar is not None:
                found[name] = scalar


def _scalar(value: Any) -> Any:
    if isinstance(value, str):
        return None if value in ("NaN", "") else INFINITE.get(value) or value[:TEXT_LIMIT]
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value if INT64_MIN <= value <= INT64_MAX else float(value)
    if isinstance(value, float):
        return None if math.isnan(value) else value
    return None if value is None else str(value)[:TEXT_LIMIT]


def _flat_known(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Single values and tuples of names; what else another tool put in a field stays in the trace."""
    found = {
        n: v if isinstance(v, tuple) else _scalar(v)
        for n, v in fields.items()
        if not isinstance(v, (list, dict))
    }
    return {name: value for name, value in found.items() if value is not None}


def _numbers(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields, where what is a number everywhere else is one here: a text in place of it moves to `name/text`."""
    found = dict(fields)
    for name, value in fields.items():
        if not isinstance(value, str) or not (name in _NUMERIC or name.startswith("component/")):
            continue
        del found[name]
        try:
            number = float(value)
        except ValueError:
            found[f"{name}/text"] = value
            continue
        if math.isfinite(number):
            found[name] = number
    return found


def _split_of(key: str) -> str:
    return key.removesuffix("/trajectories").removesuffix("/steps")


def answer_of(text: str) -> str:
    """Cuts the thinking off an assistant's text; gives the thinking where nothing follows."""
    if text.rfind(_THINKING) < 0:
        return text
    before, mark, after = text.rpartition(THINKING_ENDS)
    answer = after if mark and after.strip() else before if mark else text
    return answer.replace(THINKING_BEGINS, " ").replace(THINKING_ENDS, " ")


def error_signature(result: str) -> str:
    """The first line of a failed tool result that says something, with what varies replaced.

    Paths, quoted strings, hashes and digits become placeholders, so that equal faults are equal texts.

    Args:
        result: the result's text.
    """
    lines = [line for line in result[:SIGNED].splitlines() if re.search(r"\w", line)]
    line = lines[-1] if lines and "Traceback" in lines[0] else (lines or [""])[0]
    for pattern, placeholder in _VARIES:
        line = pattern.sub(placeholder, line)
    return " ".join(line.split())[:PREVIEW]


def _tools(messages: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Names of the tools that were called, and the signatures of the errors that they gave."""
    names: dict[str, None] = {}
    signatures: dict[str, None] = {}
    for message in messages:
        for call in mappings(message.get("tool_calls")):
            function = call.get("function")
            name = (function if isinstance(function, Mapping) else call).get("name")
            if isinstance(name, str) and name:
                names[name[:TEXT_LIMIT]] = None
        if message.get("role") == "tool":
            text = "\n".join(_texts(message.get("content")))
            if result_failed(text):
                signatures[error_signature(text)] = None
    found = {"tool_names": tuple(names)[:MOST_NAMES], "error_signatures": tuple(signatures)[:MOST_NAMES]}
    return {name: value for name, value in found.items() if value}


def _preview(message: Mapping[str, Any] | None, part: Callable[[str], str] = str) -> str:
    if message is None:
        return ""
    text = part(_first_text(message))
    return " ".join(text[: PREVIEW * 4].split())[:PREVIEW]


def _first_text(message: Mapping[str, Any]) -> str:
    texts = message_texts(message)
    return texts[0] if texts else ""


def _load(text: str | bytes, kind: type) -> tuple[Any, bool]:
    value = from_json(text)
    return (value, False) if isinstance(value, kind) else (kind(), True)


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value] if value else []
    return [text for part in mappings(value) for text in _texts(part.get("text"))]


def mappings(value: Any) -> Sequence[Mapping[str, Any]]:
    """The mappings in a list; none of anything else."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else ()


RENAMED = {
    "group_id": "group",
    "model_version": "version_max",
    "prompt_tokens": "n_prompt",
    "completion_tokens": "n_sampled",
    "rewards/": "component/",
    "reward_components/": "component/",
}
"""Names for what has a name here, of tools that no recogniser knows; a trailing slash stands for all names
below it."""
GROUP_BYTES = 6
"""Bytes of a group's number where its tool names it by a text: exact in JavaScript, and two of a step's
thousand groups share one less than once in 10^8 steps."""


OtherTool = tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]
"""The content of a known trainer's trace: name of the ledger -> value, `flags` as a tuple; and its messages."""


def read_other_tool(
    stored: StoredTrace, messages: Sequence[Mapping[str, Any]], metadata: Mapping[str, Any]
) -> OtherTool | None:
    """Reads a trace as the trainer wrote it that its key and fields show.

    Returns:
        Its fields with the trainer as `written_by`, and `unreadable` = 1 alone beside that where they are not
        what this trainer writes; None for a trace of an unknown tool, or one that is no rollout.
    """
    from rollout_traces.sources.trackio_traces import fields_of, rollout_of, writer_of

    writer = writer_of(stored.key, metadata)
    if writer is None:
        return None
    try:
        row = rollout_of(stored.key, stored.step, messages, metadata)
        known = {} if row is None else fields_of(row)
    except Exception:  # noqa: BLE001 - another version's fields, or made up; the row is counted as unreadable
        return {"written_by": writer.name, "unreadable": 1}, messages
    if row is None:
        return None
    if "group" in known:
        known["group"] = group_number(known["group"])
    known["flags"] = tuple(known["flags"])
    return known | {"written_by": writer.name}, row.conversation() or messages


def shown_record(stored: StoredTrace, record: TraceRecord) -> TraceRecord:
    """A trace as a page shows it: of another tool with its fields under our names too, and its conversation.

    Args:
        stored: the row; of an export, which has no key and step of it, the trace stays as it is.
        record: its messages and metadata as they are stored.
    """
    own = dict(record.metadata)
    if not stored.key or (own.get("kind") in ("rollout", "digest") and "schema" in own):
        return record
    spoken = [message for message in record.messages if isinstance(message, Mapping)]
    other = read_other_tool(stored, spoken, own)
    if other is None:
        return record
    fields, conversation = other
    known = {name: list(v) if isinstance(v, tuple) else v for name, v in fields.items()}
    return replace(record, messages=list(conversation), metadata=own | known)


def group_number(named: Any) -> int:
    """A group's number: its own where it has one, else one made of its name, the same on every step.

    Args:
        named: a group as its tool names it.
    """
    if isinstance(named, (int, float)) and abs(named) < LARGEST_EXACT and named == int(named):
        return int(named)
    return int.from_bytes(short_hash(str(named), GROUP_BYTES), "big")


def renamed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a trace, those of `RENAMED` under our names unless these are taken.

    Args:
        fields: name -> value.
    """
    found: dict[str, Any] = {}
    for name, value in fields.items():
        prefix, slash, rest = name.partition("/")
        new = RENAMED.get(name) or (RENAMED[prefix + slash] + rest if prefix + slash in RENAMED else name)
        found[name if new in fields else new] = value
    return found
