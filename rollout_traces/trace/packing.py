"""Transcript <-> compact text: the token truth that a trace carries.

What a trace's messages already say is not stored again: a turn's raw text is kept as literal pieces and
references into its message, and token ids as one id per different token text. The rest are lengths, run
friendly integers and float16 values, compressed and base64 encoded.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from rollout_traces.errors import StoreError
from rollout_traces.model.packed_arrays import check_count, damage_said, pack_text, unpack_text
from rollout_traces.model.plain_values import from_json, plain
from rollout_traces.model.transcript import INT_TRACKS, TokenTrack, ToolCall, Transcript, Turn, int_track

MASKS = ("loss_mask", "response_mask", "special")
MOST_TOKENS = 2**24
"""Tokens of one rollout."""
MOST_VALUES = 2**28
"""Tokens of one rollout, times what is stored of each."""
_WHAT = "token track"
_FLOAT16_MAX = float(np.finfo(np.float16).max)


def pack_transcript(transcript: Transcript, messages: Sequence[Mapping[str, Any]]) -> str:
    """Packs what a transcript holds in addition to its messages.

    Float tracks keep float16 precision (about three decimal digits; float32 where a finite value
    exceeds 65504). Everything else is exact.

    Args:
        messages: `transcript.messages()` as they will be stored, sanitised and cut.

    Returns:
        ASCII text that `unpack_transcript` reads together with the same messages.
    """
    outside: dict[str, float | None] = {}
    arrays = _packed_tokens(transcript, outside) if len(transcript.tokens) else {}
    head = {
        "n": len(transcript.tokens),
        "source": transcript.source,
        "warnings": list(transcript.warnings),
        "tools": plain(transcript.tools),
        "given": plain(transcript.given_messages),
        "turns": [
            _pack_turn(turn, message) for turn, message in zip(transcript.turns, messages, strict=True)
        ],
        "outside": outside,
    }
    return pack_text(head, arrays)


def unpack_transcript(packed: str, messages: Sequence[Mapping[str, Any]]) -> Transcript:
    """Rebuilds a transcript.

    Args:
        packed: what `pack_transcript` made.
        messages: the trace's messages, as stored.

    Returns:
        The transcript; float tracks as float32.

    Raises:
        StoreError: the text is damaged, of a newer schema, or does not fit the messages.
    """
    head, arrays = unpack_text(packed, _WHAT)
    with damage_said(_WHAT):
        n, entries = check_count(head["n"], MOST_TOKENS), head["turns"]
        if len(entries) != len(messages):
            raise StoreError(f"{_WHAT}: {len(entries)} turns beside {len(messages)} messages.")
        turns = tuple(
            _unpack_turn(entry, message, n) for entry, message in zip(entries, messages, strict=True)
        )
        return Transcript(
            turns=turns,
            tokens=_unpack_tokens(n, arrays, head["outside"], "".join(turn.raw for turn in turns)),
            source=head["source"],
            warnings=tuple(head["warnings"]),
            tools=tuple(head["tools"]),
            given_messages=None if head["given"] is None else tuple(head["given"]),
        )


def packed_tools(packed: str) -> list[Any]:
    """Reads the tool schemas of a packed transcript.

    Args:
        packed: what `pack_transcript` made.

    Raises:
        StoreError: the text is damaged.
    """
    tools = unpack_text(packed, _WHAT)[0].get("tools")
    return list(tools) if isinstance(tools, list) else []


def _pack_turn(turn: Turn, message: Mapping[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "role": turn.role,
        "range": [turn.start, turn.body_start, turn.body_stop, turn.stop],
        "raw": _as_pieces(turn.raw, message["content"], (turn.thinking, turn.content)),
        "thinking": _as_reference(turn.thinking, message["content"]),
        "content": _as_reference(turn.content, message["content"]),
        "sampled": turn.n_sampled,
    }
    if turn.raw.encode("utf-8", "surrogatepass") != turn.raw_bytes:
        entry["bytes"] = base64.b64encode(turn.raw_bytes).decode("ascii")
    for name in ("tool_call_id", "name"):
        if getattr(turn, name) is not None:
            entry[name] = getattr(turn, name)
    if turn.failed:
        entry["failed"] = True
    if turn.versions:
        entry["versions"] = [list(run) for run in turn.versions]
    if turn.warnings:
        entry["warnings"] = list(turn.warnings)
    if turn.tool_calls:
        entry["calls"] = [
            {
                "name": call.name,
                "raw": _as_reference(call.raw, turn.raw),
                "range": [call.start, call.stop],
                **({} if _says(stored, call) else {"id": call.id, "arguments": plain(call.arguments)}),
            }
            for call, stored in zip(turn.tool_calls, message["tool_calls"], strict=True)
        ]
    return entry


def _says(stored: Mapping[str, Any], call: ToolCall) -> bool:
    """True when the stored message gives the call's id and arguments back."""
    if not call.parsed or stored["id"] != call.id:
        return False
    return bool(from_json(stored["function"]["arguments"], ...) == call.arguments)


def _unpack_turn(entry: Mapping[str, Any], message: Mapping[str, Any], n_tokens: int) -> Turn:
    text = message["content"]
    _check_pieces(entry["raw"], text)
    raw = "".join(piece if isinstance(piece, str) else _resolve(piece, text) for piece in entry["raw"])
    raw_bytes = base64.b64decode(entry["bytes"]) if "bytes" in entry else raw.encode("utf-8", "surrogatepass")
    start, body_start, body_stop, stop = (check_count(edge, n_tokens) for edge in entry["range"])
    _check_pieces([call["raw"] for call in entry.get("calls", ())], raw)
    calls = tuple(
        ToolCall(
            name=call["name"],
            arguments=call["arguments"]
            if "arguments" in call
            else orjson.loads(stored["function"]["arguments"]),
            raw=_resolve(call["raw"], raw),
            id=call["id"] if "arguments" in call else stored["id"],
            start=call["range"][0],
            stop=call["range"][1],
        )
        for call, stored in zip(entry.get("calls", ()), message.get("tool_calls") or (), strict=True)
    )
    return Turn(
        role=entry["role"],
        start=start,
        stop=stop,
        body_start=body_start,
        body_stop=body_stop,
        raw_bytes=raw_bytes,
        raw=raw,
        content=_resolve(entry["content"], text),
        thinking=None if entry["thinking"] is None else _resolve(entry["thinking"], text),
        tool_calls=calls,
        tool_call_id=entry.get("tool_call_id"),
        name=entry.get("name"),
        failed=entry.get("failed") is True,
        n_sampled=entry["sampled"],
        versions=tuple((run[0], run[1]) for run in entry.get("versions", ())),
        warnings=tuple(entry.get("warnings", ())),
    )


def _as_reference(text: str | None, source: str) -> Any:
    """`[start, length]` of the text in the source; the text itself where it is not in it."""
    if text is None:
        return None
    at = source.find(text)
    return [at, len(text)] if at >= 0 and len(text) > 6 else text


def _resolve(reference: Any, source: str) -> str:
    if isinstance(reference, str):
        return reference
    start, length = reference
    if not (type(start) is type(length) is int and 0 <= start <= start + length <= len(source)):
        raise ValueError(f"[{start}, {length}] of {len(source)} characters")
    return source[start : start + length]


def _as_pieces(raw: str, source: str, wanted: Sequence[str | None]) -> list[Any]:
    """The raw text as literal strings and references into the message's content, in order."""
    pieces: list[Any] = []
    at = 0
    for text in wanted:
        reference = _as_reference(text, source)
        found = raw.find(text, at) if text and isinstance(reference, list) else -1
        if text and found >= 0:
            pieces += [raw[at:found], reference]
            at = found + len(text)
    pieces.append(raw[at:])
    return [piece for piece in pieces if piece != ""]


def _check_pieces(pieces: Sequence[Any], source: str) -> None:
    """Holds references into a text against its length: together they are at most twice as long.

    A turn's raw text refers to its message's thinking and content, its calls to its raw text; neither
    overlaps itself.
    """
    referred = sum(check_count(piece[1], len(source)) for piece in pieces if not isinstance(piece, str))
    check_count(referred, 2 * len(source))


def _packed_tokens(transcript: Transcript, outside: dict[str, float | None]) -> dict[str, np.ndarray]:
    """The token track's arrays; `outside` is filled as by `_packed_floats`."""
    tokens = transcript.tokens
    lengths = tokens.char_stops - tokens.char_starts
    arrays = {"lengths": _narrow(lengths), **_packed_ids(transcript)}
    if not np.array_equal(tokens.char_starts, np.cumsum(lengths) - lengths):
        arrays["char_starts"] = _narrow(tokens.char_starts)
    for name in MASKS:
        arrays[name] = np.packbits(getattr(tokens, name).astype(bool))
    for name, values in tokens.tracks.items():
        if name in INT_TRACKS:
            arrays[name] = _packed_runs(values)
        else:
            arrays[name] = _packed_floats(name, values, tokens.response_mask, outside)
    return arrays


def _packed_ids(transcript: Transcript) -> dict[str, np.ndarray]:
    """One id per different token text, and the tokens that differ from it."""
    ids = transcript.tokens.input_ids.tolist()
    texts = list(transcript.token_texts())
    first = dict(zip(reversed(texts), reversed(ids), strict=True))
    arrays = {
        "piece_ids": np.asarray([first[text] for text in dict.fromkeys(texts)], np.int64).astype(np.int32)
    }
    odd = [at for at, text in enumerate(texts) if first[text] != ids[at]]
    if odd:
        arrays["odd_positions"] = _narrow(np.asarray(odd))
        arrays["odd_ids"] = np.asarray([ids[at] for at in odd], np.int64).astype(np.int32)
    return arrays


def _packed_runs(values: np.ndarray) -> np.ndarray:
    """Run lengths: versions and turn ids change rarely."""
    starts = np.flatnonzero(np.diff(values, prepend=np.int64(np.iinfo(np.int64).min)))
    runs = np.stack([values[starts], np.diff(np.append(starts, len(values)))])
    return int_track(runs).reshape(-1)


def _packed_floats(
    name: str, values: np.ndarray, response_mask: np.ndarray, outside: dict[str, float | None]
) -> np.ndarray:
    """The values, of the sampled tokens alone where the others all have the one that is noted in `outside`."""
    others = values[~response_mask]
    if len(others) and (np.isnan(others).all() or (others == others[0]).all()) and not np.isinf(others[0]):
        outside[name] = None if np.isnan(others[0]) else float(others[0])
        values = values[response_mask]
    finite = np.abs(values[np.isfinite(values)])
    return values.astype(np.float32 if finite.max(initial=0) > _FLOAT16_MAX else np.float16)


def _unpack_tokens(
    n: int, arrays: Mapping[str, np.ndarray], outside: Mapping[str, float | None], raw: str
) -> TokenTrack:
    if not n:
        return TokenTrack.empty()
    check_count(n * len(arrays), MOST_VALUES)
    lengths = arrays["lengths"].astype(np.int64)
    starts = (
        arrays["char_starts"].astype(np.int64) if "char_starts" in arrays else np.cumsum(lengths) - lengths
    )
    stops = starts + lengths
    for places in (lengths, starts, stops):
        if len(places) != n or places.min(initial=0) < 0 or places.max(initial=0) > len(raw):
            raise ValueError(
                f"{len(places)} places up to {places.max(initial=0)} of {n} tokens, {len(raw)} characters"
            )
    check_count(int(lengths.sum()), len(raw))  # each character belongs to one token
    if wrong := [name for name in MASKS if len(arrays[name]) != -(-n // 8)]:
        raise ValueError(f"{wrong[0]}: {len(arrays[wrong[0]])} bytes for {n} tokens")
    masks = {name: np.unpackbits(arrays[name], count=n).astype(bool) for name in MASKS}
    ids = _ids_of_pieces(raw, starts, stops, arrays["piece_ids"])
    if "odd_positions" in arrays:
        ids[arrays["odd_positions"].astype(np.int64)] = arrays["odd_ids"]
    tracks: dict[str, np.ndarray] = {}
    for name, stored in arrays.items():
        if name in INT_TRACKS:
            values, counts = stored.reshape(2, -1)
            if (counts < 0).any() or int(counts.sum(dtype=np.int64)) != n:
                raise ValueError(f"{name}: runs of {int(counts.sum(dtype=np.int64))} tokens, of {n}")
            tracks[name] = int_track(np.repeat(values, counts))
        elif stored.dtype.kind == "f":
            where = masks["response_mask"] if name in outside else np.ones(n, bool)
            if len(stored) != np.count_nonzero(where):
                raise ValueError(f"{name}: {len(stored)} values for {np.count_nonzero(where)} tokens")
            fill = outside.get(name)
            tracks[name] = np.full(n, np.nan if fill is None else fill, np.float32)
            tracks[name][where] = stored
    return TokenTrack(input_ids=ids, char_starts=starts, char_stops=stops, tracks=tracks, **masks)


def _ids_of_pieces(raw: str, starts: np.ndarray, stops: np.ndarray, piece_ids: np.ndarray) -> np.ndarray:
    """The id of every token, int64 [n]: ids are stored once a piece of text, in the order of their first places."""
    texts = [raw[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    pieces = dict.fromkeys(texts)
    if len(pieces) > len(piece_ids):
        raise ValueError(f"{len(piece_ids)} ids for {len(pieces)} different pieces of text")
    id_of = dict(zip(pieces, piece_ids.tolist(), strict=False))
    return np.fromiter(map(id_of.__getitem__, texts), np.int64, len(texts))


def _narrow(values: np.ndarray) -> np.ndarray:
    largest = int(values.max()) if len(values) else 0
    return values.astype(np.min_scalar_type(largest))
