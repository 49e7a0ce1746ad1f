"""A trace as the page draws it: turns, flags, images, and the token track as packed numbers.

Traces of other tools have messages as text, without token data.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from rollout_traces.alarms.worn import nested
from rollout_traces.flags import REGISTRY
from rollout_traces.model.spans import as_seconds, checked
from rollout_traces.model.text import encodable
from rollout_traces.model.transcript import TokenTrack, Transcript, Turn
from rollout_traces.trace.conversion import TraceRecord, newer_schema, read_details, shown_transcript
from rollout_traces.trace.images import IMAGES_KEY

_DTYPES = {kind: np.dtype(f"<{kind}") for kind in ("u1", "i2", "i4", "f4", "f8")}
"""Numbers that a page reads, by kind."""

TOKENS_FROM = {
    "unobserved": "Tokens are unobserved: the rollout came as text. Token views, masks, lengths and everything of the "
    "policy need input_ids and loss_mask to be logged; --tokenizer of an import makes ids of the text.",
    "re-encoded": "The ids were made of the rollout's text with a tokenizer: they may differ from those that were "
    "trained on, and so may masks and lengths.",
}
"""Sentences of a rollout's page on where its tokens come from, by `ids_from`."""


SEVERITIES: Mapping[str, str] = {name: spec.severity for name, spec in REGISTRY.items()}
"""Flag -> error, warn or info."""


def rollout_payload(trace_id: str, record: TraceRecord) -> dict[str, Any]:
    """Everything that the conversation view needs.

    Args:
        trace_id: the trace's id.
        record: the trace; ours, or another tool's.

    Returns:
        Plain values: `metadata`, `flags`, `turns`, `raw`, `tokens` (None without a token track),
        `warnings`, `timings` in seconds by name, `n_spans`; `images` where it has any (see `image_places`).
    """
    details = read_details(record)
    return placed(_payload(trace_id, record, details), details)


def _payload(trace_id: str, record: TraceRecord, details: Mapping[str, Any]) -> dict[str, Any]:
    transcript = shown_transcript(record)
    metadata: dict[str, Any] = {
        key: encodable(value) if isinstance(value, str) else value for key, value in record.metadata.items()
    }
    common = {
        "id": trace_id,
        "metadata": metadata,
        "flags": _flags(details.get("flags"), metadata.get("flags")),
        "warnings": [
            encodable(text)
            for text in (
                newer_schema(record.metadata),
                TOKENS_FROM.get(str(record.metadata.get("ids_from"))),
                *details.get("warnings", ()),
            )
            if text
        ],
        "timings": _seconds(details.get("timings")),
        "n_spans": len(spans) if isinstance(spans := details.get("timings"), list) else 0,
    }
    drawn = transcript_payload(transcript, metadata.get("train_version"))
    if not len(transcript.tokens):
        turns = [{**turn, "n_tokens": None} for turn in drawn["turns"]]
        return {**common, "turns": turns, "raw": drawn["raw"], "tokens": None}
    advantage = metadata.get("advantage")
    if "advantages" not in transcript.tokens.tracks and isinstance(advantage, (int, float)):
        drawn["tokens"]["row_advantage"] = float(advantage)
    return {**common, **drawn}


def _seconds(timings: Any) -> dict[str, Any]:
    """A rollout's timings by name; of spans their sums by kind, and what was sampled in each turn (`turn/0`, ...)."""
    if not isinstance(timings, list):
        return dict(timings) if isinstance(timings, Mapping) else {}
    spans, _ = checked(timings)
    sums = as_seconds(spans)
    sums.pop("start", None)
    for span in spans:
        if span["kind"] == "generate" and "turn" in span:
            name = f"turn/{span['turn']}"
            sums[name] = sums.get(name, 0.0) + span["end"] - span["start"]
    return sums


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

    Returns:
        `n`, `train_version`, and `arrays` by name, [n] each: `ids`, masks, tracks, and where each token's text starts
        and stops.
    """
    arrays = {
        "ids": packed(tokens.input_ids.astype(np.int32)),
        "starts": packed(units[tokens.char_starts]),
        "stops": packed(units[tokens.char_stops]),
        "loss_mask": packed(tokens.loss_mask.astype(np.uint8)),
        "response_mask": packed(tokens.response_mask.astype(np.uint8)),
        "special": packed(tokens.special.astype(np.uint8)),
        **{name: packed(values) for name, values in tokens.tracks.items()},
    }
    return {"n": len(tokens), "arrays": arrays, "train_version": train_version}


def packed(values: np.ndarray) -> dict[str, str]:
    """Numbers as base64, in the narrowest of the kinds that a page reads which keeps them: u1, i2, i4, f8; f4."""
    kind = "f4" if values.dtype.kind == "f" else _kind_of_integers(values)
    data = np.ascontiguousarray(values, dtype=_DTYPES[kind]).tobytes()
    return {"kind": kind, "data": base64.b64encode(data).decode("ascii")}


def unpacked(value: Mapping[str, str]) -> np.ndarray:
    """Reads what `packed` packed: float32, or integers; those beyond 32 bits are float64."""
    return np.frombuffer(base64.b64decode(value["data"]), _DTYPES[value["kind"]])


def _kind_of_integers(values: np.ndarray) -> str:
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    return next(
        (kind for kind in ("u1", "i2", "i4") if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max),
        "f8",
    )


LAST_OF_ONE_UNIT = ord("\uffff")
"""Characters behind it are two units of UTF-16."""


def utf16_positions(text: str) -> np.ndarray:
    """Finds where each character begins when a browser counts: int64 [len(text) + 1].

    A character outside the basic plane is two units there and one here.
    """
    if text.isascii():
        return np.arange(len(text) + 1)
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(1 + (codes > LAST_OF_ONE_UNIT), dtype=np.int64)])


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
                "arguments": arguments_text(call.arguments),
                "raw": encodable(call.raw),
            }
            for call in turn.tool_calls
        ],
    }


def _flags(detailed: Any, names: Any) -> list[dict[str, Any]]:
    found = [dict(flag) for flag in detailed or () if isinstance(flag, Mapping)]
    described = {flag["name"] for flag in found}
    bare = [name for name in (names if isinstance(names, list) else []) if name not in described]
    found += [{"name": name, "severity": SEVERITIES.get(name, "info")} for name in bare]
    by_cause = nested([str(flag["name"]) for flag in found])
    causes = {child: cause for cause, children in by_cause.items() for child in children}
    return [
        {
            **dict.fromkeys(("turn", "start", "stop")),
            **flag,
            "message": encodable(str(flag.get("message", ""))),
            "cause": causes.get(str(flag["name"])),
        }
        for flag in found
    ]


_PADS = "|".join(
    map(
        re.escape,
        (
            *("<|image_pad|>", "<|image|>", "<image>", "<image_soft_token>", "<IMG_CONTEXT>", "<|imgpad|>"),
            *("[IMG]", "<|media_pad|>", "<|placeholder|>", "<im_patch>", "<|patch|>"),
        ),
    )
)
PLACE = re.compile(
    rf"(?:(?:<\|vision_start\|>|<start_of_image>|<img>|<\|media_begin\|>)\s*)?(?:{_PADS})"
    rf"(?:\s*(?:{_PADS}|\[IMG_BREAK\]))*(?:\s*(?:\[IMG_END\]|<\|vision_end\|>|<end_of_image>|</img>|<\|media_end\|>))?"
)
"""A run of the tokens that stand for one image, in the templates of common vision models."""
MARK = "\ufffc"
"""Stands in a turn's content where an image is to be drawn."""


def placed(payload: dict[str, Any], details: Mapping[str, Any]) -> dict[str, Any]:
    """A rollout's payload with its images.

    Args:
        payload: of `rollout_payload`; its turns' contents may be changed.
        details: of the trace.

    Returns:
        The payload with `images`, one `{left_out}` each, and in turns that hold any `images`: their numbers, `MARK`
        standing in the content for those whose tokens it holds. A warning says where places and images do not match.
    """
    stored = details.get(IMAGES_KEY)
    if not isinstance(stored, list) or not stored:
        return payload
    images = [{"left_out": _left_out(each)} for each in stored]
    places = _places(payload["turns"], payload["raw"])
    found = sum(places)
    warnings = list(payload["warnings"])
    if found != len(images):
        warnings.append(
            f"{len(images)} images were logged and {found} places for one are in its text: they are drawn in order, "
            "those without a place in the first turn of the user."
        )
    return payload | {
        "images": images,
        "turns": _with_numbers(payload["turns"], places, len(images)),
        "warnings": warnings,
    }


def _left_out(stored: Any) -> str | None:
    if not isinstance(stored, Mapping):
        return "its entry cannot be read."
    said = stored.get("left_out")
    return str(said) if said is not None else None


def _places(turns: Sequence[Mapping[str, Any]], raw: str) -> list[int]:
    """Counts the places for an image in each turn."""
    if not raw:
        return [len(PLACE.findall(turn["content"])) for turn in turns]
    units = raw.encode("utf-16-le", "surrogatepass")
    texts = (
        units[2 * turn["char_start"] : 2 * turn["char_stop"]].decode("utf-16-le", "surrogatepass")
        for turn in turns
    )
    return [len(PLACE.findall(text)) for text in texts]


def _with_numbers(turns: Sequence[dict[str, Any]], places: Sequence[int], n: int) -> list[dict[str, Any]]:
    changed = []
    at = 0
    for turn, count in zip(turns, places, strict=True):
        numbers = list(range(at, min(at + count, n)))
        at += count
        if not numbers:
            changed.append(turn)
            continue
        content = PLACE.sub(MARK, turn["content"].replace(MARK, "\ufffd"), count=len(numbers))
        changed.append(turn | {"images": numbers, "content": content})
    left = list(range(min(at, n), n))
    if left and changed:
        first = next((i for i, turn in enumerate(changed) if turn["role"] == "user"), 0)
        changed[first] = changed[first] | {"images": [*changed[first].get("images", ()), *left]}
    return changed


def arguments_text(arguments: Any) -> str:
    """A tool call's arguments as indented JSON; a text that is no JSON as it is."""
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            return encodable(arguments)
    if arguments is None:
        return ""
    return encodable(orjson.dumps(arguments, option=orjson.OPT_INDENT_2, default=str).decode())
