"""A trace as the page draws it: turns, flags, and the token track as packed numbers."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from rollout_traces.alarms.worn import nested
from rollout_traces.encodable import encodable
from rollout_traces.inspector.image_places import placed
from rollout_traces.trace.conversion import TraceRecord, newer_schema, read_details, read_transcript
from rollout_traces.transcript import TokenTrack, Transcript, Turn

_CODES = {"f": ("<f4", "f4"), "i": ("<i4", "i4"), "u": ("u1", "u1")}


TOKENS_FROM = {
    "unobserved": "Tokens are unobserved: the rollout came as text. Token views, masks, lengths and everything of the "
    "policy need input_ids and loss_mask to be logged; --tokenizer of an import makes ids of the text.",
    "re-encoded": "The ids were made of the rollout's text with a tokenizer: they may differ from those that were "
    "trained on, and so may masks and lengths.",
}
"""What a rollout's page says of where its tokens come from, by `ids_from`."""


def rollout_payload(trace_id: str, record: TraceRecord, severities: Mapping[str, str]) -> dict[str, Any]:
    """Everything that the conversation view needs.

    Args:
        trace_id: the trace's id.
        record: the trace; ours, or another tool's.
        severities: flag name -> severity, for flags without a sentence.

    Returns:
        Plain values: `metadata`, `flags`, `turns`, `raw`, `tokens` (None without a token track),
        `warnings`, `timings`; `images` where it has any (see `image_places`).
    """
    details = read_details(record)
    return placed(_payload(trace_id, record, details, severities), details)


def _payload(
    trace_id: str, record: TraceRecord, details: Mapping[str, Any], severities: Mapping[str, str]
) -> dict[str, Any]:
    transcript = read_transcript(record)
    metadata = {key: _printable(value) for key, value in record.metadata.items()}
    common = {
        "id": trace_id,
        "metadata": metadata,
        "flags": _flags(details.get("flags"), metadata.get("flags"), severities),
        "warnings": [
            encodable(text)
            for text in (
                newer_schema(record.metadata),
                TOKENS_FROM.get(str(record.metadata.get("ids_from"))),
                *details.get("warnings", ()),
            )
            if text
        ],
        "timings": details.get("timings") or {},
    }
    if transcript is None:
        turns = [_turn_of_message(message) for message in record.messages if isinstance(message, Mapping)]
        return {**common, "turns": turns, "raw": "", "tokens": None}
    drawn = transcript_payload(transcript, metadata.get("train_version"))
    if not len(transcript.tokens):
        turns = [{**turn, "n_tokens": None} for turn in drawn["turns"]]
        return {**common, "turns": turns, "raw": drawn["raw"], "tokens": None}
    advantage = metadata.get("advantage")
    if "advantages" not in transcript.tokens.tracks and isinstance(advantage, (int, float)):
        drawn["tokens"]["row_advantage"] = float(advantage)
    return {**common, **drawn}


def transcript_payload(transcript: Transcript, train_version: int | None) -> dict[str, Any]:
    """Turns, raw text and token track of a transcript; character positions count UTF-16 units."""
    raw = transcript.raw
    units = utf16_positions(raw)
    turns = []
    at = 0
    for index, turn in enumerate(transcript.turns):
        stop = at + len(turn.raw)
        turns.append(
            _turn(turn, transcript.turns[:index])
            | {"char_start": int(units[at]), "char_stop": int(units[stop])}
        )
        at = stop
    return {
        "turns": turns,
        "raw": encodable(raw),
        "tokens": tokens_payload(transcript.tokens, units, train_version),
    }


def tokens_payload(tokens: TokenTrack, units: np.ndarray, train_version: int | None) -> dict[str, Any]:
    """The token track as base64 of little-endian numbers.

    Args:
        tokens: the track of n tokens.
        units: int64 [characters + 1], see `utf16_positions`.
        train_version: the policy version being trained, for staleness.
    """
    arrays = {
        "ids": packed(tokens.input_ids.astype(np.int32)),
        "starts": packed(units[tokens.char_starts].astype(np.int32)),
        "stops": packed(units[tokens.char_stops].astype(np.int32)),
        "loss_mask": packed(tokens.loss_mask.astype(np.uint8)),
        "response_mask": packed(tokens.response_mask.astype(np.uint8)),
        "special": packed(tokens.special.astype(np.uint8)),
        **{name: packed(values) for name, values in tokens.tracks.items()},
    }
    return {"n": len(tokens), "arrays": arrays, "train_version": train_version}


def packed(values: np.ndarray) -> dict[str, str]:
    """Numbers as base64 with their kind: f4, i4 or u1."""
    dtype, kind = _CODES[values.dtype.kind]
    data = np.ascontiguousarray(values, dtype=dtype).tobytes()
    return {"kind": kind, "data": base64.b64encode(data).decode("ascii")}


def unpacked(value: Mapping[str, str]) -> np.ndarray:
    """What `packed` packed."""
    dtype = {kind: dtype for dtype, kind in _CODES.values()}[value["kind"]]
    return np.frombuffer(base64.b64decode(value["data"]), dtype)


def utf16_positions(text: str) -> np.ndarray:
    """Where each character begins when a browser counts: int64 [len(text) + 1].

    A character outside the basic plane is two units there and one here.
    """
    if text.isascii():
        return np.arange(len(text) + 1)
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(1 + (codes > 0xFFFF), dtype=np.int64)])


def _turn(turn: Turn, before: Sequence[Turn]) -> dict[str, Any]:
    answers = None
    if turn.tool_call_id is not None:
        pairs = ((i, call.id) for i, past in enumerate(before) for call in past.tool_calls)
        answers = next((i for i, call_id in reversed(list(pairs)) if call_id == turn.tool_call_id), None)
    return {
        "role": turn.role,
        "start": turn.start,
        "stop": turn.stop,
        "n_tokens": len(turn),
        "n_sampled": turn.n_sampled,
        "content": encodable(turn.content),
        "thinking": None if turn.thinking is None else encodable(turn.thinking),
        "name": None if turn.name is None else encodable(turn.name),
        "answers": answers,
        "versions": [list(run) for run in turn.versions],
        "warnings": [encodable(text) for text in turn.warnings],
        "tool_calls": [
            {
                "id": encodable(call.id),
                "name": encodable(call.name),
                "parsed": call.parsed,
                "arguments": _arguments(call.arguments),
                "raw": encodable(call.raw),
            }
            for call in turn.tool_calls
        ],
    }


def _turn_of_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message that another tool logged, without token data."""
    role = str(message.get("role", "context"))
    content = message.get("content")
    calls = []
    for call in message.get("tool_calls") or ():
        if not isinstance(call, Mapping):
            continue
        inner = call.get("function")
        function = inner if isinstance(inner, Mapping) else call
        calls.append(
            {
                "id": encodable(str(call.get("id") or "")),
                "name": encodable(str(function.get("name") or "")),
                "parsed": bool(function.get("name")),
                "arguments": _arguments(function.get("arguments")),
                "raw": encodable(str(function)),
            }
        )
    thinking = message.get("reasoning_content")
    return {
        "role": role if role in ("system", "user", "assistant", "tool") else "context",
        "start": 0,
        "stop": 0,
        "n_tokens": None,
        "n_sampled": 0,
        "content": encodable(_content_text(content)),
        "thinking": encodable(thinking) if isinstance(thinking, str) and thinking else None,
        "name": encodable(str(message["name"])) if message.get("name") else None,
        "answers": None,
        "versions": [],
        "warnings": [],
        "tool_calls": calls,
        "char_start": 0,
        "char_stop": 0,
    }


def _content_text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        return "\n".join(
            text if isinstance(text, str) else orjson.dumps(raw, default=str).decode()
            for text, raw in zip(parts, content, strict=True)
        )
    return orjson.dumps(content, default=str).decode()


def _arguments(arguments: Any) -> str:
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            return encodable(arguments)
    if arguments is None:
        return ""
    return encodable(orjson.dumps(arguments, option=orjson.OPT_INDENT_2, default=str).decode())


def _flags(detailed: Any, names: Any, severities: Mapping[str, str]) -> list[dict[str, Any]]:
    known = [dict(flag) for flag in detailed or () if isinstance(flag, Mapping)]
    for flag in known:
        flag["message"] = encodable(str(flag.get("message", "")))
        for key in ("turn", "start", "stop"):
            flag.setdefault(key, None)
    described = {flag["name"] for flag in known}
    bare = [name for name in (names if isinstance(names, list) else []) if name not in described]
    causes = {
        child: cause
        for cause, children in nested([*(str(name) for name in described), *map(str, bare)]).items()
        for child in children
    }
    listed = known + [
        {
            "name": name,
            "severity": severities.get(name, "info"),
            "message": "",
            "turn": None,
            "start": None,
            "stop": None,
        }
        for name in bare
    ]
    return [{**flag, "cause": causes.get(str(flag.get("name")))} for flag in listed]


def _printable(value: Any) -> Any:
    return encodable(value) if isinstance(value, str) else value
