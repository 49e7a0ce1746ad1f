"""Transcript <-> compact text: the token truth that a trace carries.

What a trace's messages already say is not stored again: a turn's raw text is kept as literal pieces and
references into its message, and token ids as one id per different token text. The rest are lengths, run
friendly integers and float16 values, compressed and base64 encoded.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from rollout_traces.errors import StoreError
from rollout_traces.ledger.byte_shuffle import decompress, from_planes, to_planes
from rollout_traces.ledger.declared import damaged_as
from rollout_traces.plain_values import plain
from rollout_traces.trace.declared import check_pieces, check_runs, check_tokens, check_transcript_head
from rollout_traces.transcript import INT_TRACKS, SCHEMA_VERSION, TokenTrack, ToolCall, Transcript, Turn

_FLOAT16_MAX = float(np.finfo(np.float16).max)


def pack_transcript(transcript: Transcript, messages: Sequence[Mapping[str, Any]]) -> str:
    """Packs what a transcript holds in addition to its messages.

    Float tracks keep float16 precision (about three decimal digits; float32 where a finite value
    exceeds 65504). Everything else is exact.

    Args:
        transcript: the transcript.
        messages: `transcript.messages()` as they will be stored, sanitised and cut.

    Returns:
        ASCII text that `unpack_transcript` reads together with the same messages.
    """
    body: list[bytes] = []
    arrays: list[dict[str, Any]] = []

    def store(name: str, array: np.ndarray, **entry: Any) -> None:
        data = to_planes(array)
        arrays.append(
            {"name": name, "dtype": array.dtype.newbyteorder("<").str, "n": len(array), "size": len(data)}
            | entry
        )
        body.append(data)

    tokens = transcript.tokens
    lengths = tokens.char_stops - tokens.char_starts
    store("lengths", _narrow(lengths))
    contiguous = np.array_equal(tokens.char_starts, np.cumsum(lengths) - lengths)
    if not contiguous:
        store("char_starts", _narrow(tokens.char_starts))
    _store_ids(transcript, store)
    for name in ("loss_mask", "response_mask", "special"):
        store(name, np.packbits(getattr(tokens, name).astype(bool)))
    for name, values in tokens.tracks.items():
        if name in INT_TRACKS:
            _store_ints(name, values, store)
        else:
            _store_floats(name, values, tokens.response_mask, store)
    head = orjson.dumps(
        {
            "schema": SCHEMA_VERSION,
            "n": len(tokens),
            "source": transcript.source,
            "warnings": list(transcript.warnings),
            "tools": plain(transcript.tools),
            "given": plain(transcript.given_messages),
            "turns": [
                _pack_turn(turn, message) for turn, message in zip(transcript.turns, messages, strict=True)
            ],
            "arrays": arrays,
        }
    )
    packed = zlib.compress(len(head).to_bytes(4, "little") + head + b"".join(body), 9)
    return base64.b64encode(packed).decode("ascii")


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
    head, raw, at = _opened(packed)
    with damaged_as("token track: damaged"):
        return _unpack(head, raw, at, messages)


def packed_tools(packed: str) -> list[Any]:
    """The tool schemas of a packed transcript.

    Args:
        packed: what `pack_transcript` made.

    Raises:
        StoreError: the text is damaged.
    """
    tools = _opened(packed)[0].get("tools")
    return list(tools) if isinstance(tools, list) else []


def _opened(packed: str) -> tuple[dict[str, Any], bytes, int]:
    """The head, all bytes, and where the arrays begin among them."""
    try:
        raw = decompress(base64.b64decode(packed, validate=True))
        size = int.from_bytes(raw[:4], "little")
        return dict(orjson.loads(raw[4 : 4 + size])), raw, 4 + size
    except (ValueError, TypeError, zlib.error) as error:
        raise StoreError(f"token track: damaged ({error}).") from error


def _unpack(
    head: Mapping[str, Any], raw: bytes, at: int, messages: Sequence[Mapping[str, Any]]
) -> Transcript:
    if head["schema"] > SCHEMA_VERSION:
        raise StoreError(
            f"token track: schema {head['schema']}, this version reads up to {SCHEMA_VERSION}. Upgrade rollout-traces."
        )
    if len(head["turns"]) != len(messages):
        raise StoreError(f"token track: {len(head['turns'])} turns beside {len(messages)} messages.")
    turns = tuple(
        _unpack_turn(entry, message) for entry, message in zip(head["turns"], messages, strict=True)
    )
    n = check_transcript_head(head)
    arrays: dict[str, tuple[Mapping[str, Any], np.ndarray]] = {}
    for entry in head["arrays"]:
        arrays[entry["name"]] = (entry, from_planes(raw[at : at + entry["size"]], entry["dtype"], entry["n"]))
        at += entry["size"]
    return Transcript(
        turns=turns,
        tokens=_unpack_tokens(n, arrays, "".join(turn.raw for turn in turns)),
        source=head["source"],
        warnings=tuple(head["warnings"]),
        tools=tuple(head["tools"]),
        given_messages=None if head["given"] is None else tuple(head["given"]),
    )


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
    try:
        return orjson.loads(stored["function"]["arguments"]) == call.arguments
    except orjson.JSONDecodeError:
        return False


def _unpack_turn(entry: Mapping[str, Any], message: Mapping[str, Any]) -> Turn:
    text = message["content"]
    check_pieces(entry["raw"], text)
    raw = "".join(piece if isinstance(piece, str) else _resolve(piece, text) for piece in entry["raw"])
    raw_bytes = base64.b64decode(entry["bytes"]) if "bytes" in entry else raw.encode("utf-8", "surrogatepass")
    start, body_start, body_stop, stop = entry["range"]
    check_pieces([call["raw"] for call in entry.get("calls", ())], raw)
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


def _store_ids(transcript: Transcript, store: Any) -> None:
    """One id per different token text, and the tokens that differ from it."""
    ids = transcript.tokens.input_ids.tolist()
    texts = list(transcript.token_texts())
    first = dict(zip(reversed(texts), reversed(ids), strict=True))
    pieces = [first[text] for text in dict.fromkeys(texts)]
    store("piece_ids", np.asarray(pieces, np.int64).astype(np.int32))
    if len(set(zip(texts, ids, strict=True))) > len(first):
        odd = [at for at, text in enumerate(texts) if first[text] != ids[at]]
        store("odd_positions", _narrow(np.asarray(odd)))
        store("odd_ids", np.asarray([ids[position] for position in odd], np.int64).astype(np.int32))


def _store_ints(name: str, values: np.ndarray, store: Any) -> None:
    """Run lengths: versions and turn ids change rarely."""
    starts = np.flatnonzero(np.diff(values, prepend=np.int64(np.iinfo(np.int64).min)))
    runs = np.stack([values[starts], np.diff(np.append(starts, len(values)))]).astype(np.int32)
    store(name, runs.reshape(-1))


def _store_floats(name: str, values: np.ndarray, response_mask: np.ndarray, store: Any) -> None:
    outside = values[~response_mask]
    entry: dict[str, Any] = {}
    if len(outside) and (np.isnan(outside).all() or (outside == outside[0]).all()):
        fill = float(outside[0])
        entry["outside"] = None if np.isnan(fill) else fill
        if np.isfinite(fill) or np.isnan(fill):
            values = values[response_mask]
        else:
            entry = {}
    finite = values[np.isfinite(values)]
    wide = len(finite) and np.abs(finite).max() > _FLOAT16_MAX
    store(name, values.astype(np.float32 if wide else np.float16), **entry)


def _unpack_tokens(
    n: int, arrays: Mapping[str, tuple[Mapping[str, Any], np.ndarray]], raw: str
) -> TokenTrack:
    lengths = arrays["lengths"][1].astype(np.int64)
    starts = (
        arrays["char_starts"][1].astype(np.int64) if "char_starts" in arrays else np.cumsum(lengths) - lengths
    )
    check_tokens(n, starts, lengths, arrays, len(raw))
    masks = {
        name: np.unpackbits(arrays[name][1], count=n).astype(bool)
        for name in ("loss_mask", "response_mask", "special")
    }
    ids = _ids_of_pieces(raw, starts, starts + lengths, arrays["piece_ids"][1])
    if "odd_positions" in arrays:
        ids[arrays["odd_positions"][1].astype(np.int64)] = arrays["odd_ids"][1]
    tracks: dict[str, np.ndarray] = {}
    for name, (entry, stored) in arrays.items():
        if name in INT_TRACKS:
            values, counts = stored.reshape(2, -1)
            check_runs(name, counts, n)
            tracks[name] = np.repeat(values, counts).astype(np.int32)
        elif stored.dtype.kind == "f":
            tracks[name] = _unpack_floats(entry, stored, masks["response_mask"])
    return TokenTrack(input_ids=ids, char_starts=starts, char_stops=starts + lengths, tracks=tracks, **masks)


def _ids_of_pieces(raw: str, starts: np.ndarray, stops: np.ndarray, piece_ids: np.ndarray) -> np.ndarray:
    """The id of every token, int64 [n]: ids are stored once a piece of text, in the order of their first places."""
    texts = [raw[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    pieces = dict.fromkeys(texts)
    if len(pieces) > len(piece_ids):
        raise ValueError(f"{len(piece_ids)} ids for {len(pieces)} different pieces of text")
    id_of = dict(zip(pieces, piece_ids.tolist(), strict=False))
    return np.fromiter(map(id_of.__getitem__, texts), np.int64, len(texts))


def _unpack_floats(entry: Mapping[str, Any], stored: np.ndarray, response_mask: np.ndarray) -> np.ndarray:
    if "outside" not in entry:
        return stored.astype(np.float32)
    fill = np.nan if entry["outside"] is None else entry["outside"]
    values = np.full(len(response_mask), fill, np.float32)
    values[response_mask] = stored
    return values


def _narrow(values: np.ndarray) -> np.ndarray:
    largest = int(values.max()) if len(values) else 0
    return values.astype(np.min_scalar_type(largest))
