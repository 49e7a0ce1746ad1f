"""RolloutBatch -> record: the one place where tensors become numpy arrays, in one pass, on the calling thread.

A row's tokens are copied out of the padding straight into the record's memory at the record's width;
nothing is decoded, hashed or looked at beyond that.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollout_traces.capture.device_copy import GROWTH
from rollout_traces.capture.part import (
    CapturedPart,
    GroupNumbers,
    MaskSource,
    PaddedRows,
    host_array,
    plain_images,
)
from rollout_traces.model.batch import NAMED_FLOATS, ROW_LISTS, RolloutBatch
from rollout_traces.model.packed_batch import ASSUMED_MASK, PARTLY_GIVEN, PackedBatch, hash_ids
from rollout_traces.model.plain_values import finite_or_text
from rollout_traces.model.text import fresh_name
from rollout_traces.model.transcript import FLOAT_TRACKS, INT_TRACKS
from rollout_traces.model.units import MB
from rollout_traces.spool.record import (
    ALIGN,
    ROLLOUTS,
    RecordBuffer,
    batch_from_record,
    decode,
    float16_overflows,
    narrowest_int,
    record_meta,
)

MAX_BYTES = 128 * MB
"""Default budget of one hand-over; above it the tokens of some groups stay behind."""
MAX_HASHED = 1 << 24
"""Prompt tokens of one hand-over that are hashed on the calling thread, about a tenth of a second."""
LOOKED_AT = 1024
"""Tokens of a row that are looked at together for the first sampled one."""


@dataclass(frozen=True, eq=False)
class Captured:
    """A hand-over as bytes.

    Attributes:
        buffers: the record, to be written before the next capture into the same memory.
        batch_id: the hand-over's id.
        group_ids: int64 [B].
        n_rows: rollouts, B.
        rows: the positions of each part's tokens.
        kept: bool [B]; False where a row's tokens stayed behind.
        sample_ids: B values by which later joins find their row; None where a part has none.
    """

    buffers: list[Any]
    batch_id: str
    group_ids: np.ndarray
    n_rows: int
    rows: tuple[PaddedRows, ...]
    kept: np.ndarray
    sample_ids: list[Any] | None = None

    @property
    def n_without_tokens(self) -> int:
        """Rollouts whose tokens stayed behind."""
        return int((~self.kept).sum())


class Capture:
    """Captures hand-overs into memory that is kept between them.

    Args:
        max_bytes: budget of one hand-over.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._buffer = RecordBuffer()
        self._floats = np.zeros(0, np.float32)
        self._bools = np.zeros(0, bool)
        self._int_kinds: dict[str, Any] = {}
        """The kind of integer that each track needed last: it is laid out so at once."""

    def give_away(self) -> None:
        """Leaves the memory of the last record to whoever still writes it; the next record takes new memory."""
        self._buffer = RecordBuffer()

    def take(
        self,
        batches: Sequence[RolloutBatch],
        *,
        step: int,
        split: str,
        groups: GroupNumbers | None = None,
        room: int | None = None,
        await_join: Sequence[str] = (),
        batch_id: str | None = None,
        n_ranks: int = 1,
        attempt: str = "",
        announced: bool = False,
    ) -> Captured:
        """Copies batches without their padding.

        Args:
            batches: the parts of one hand-over. Rows of a part without `group_ids` are groups of one:
                `RolloutBatch.from_any` is where the elements of a list become groups.
            step: the trainer's global step.
            split: `rollout` or `eval-rollout`.
            groups: the numbers of the step's groups so far; new ones when None.
            room: bytes that there is room for, where that is less than the budget; 0 leaves all tokens behind.
            await_join: keys that will be joined before the traces are to be written.
            batch_id: the hand-over's id; a new one when None.
            n_ranks: ranks that hand over to the same run.
            attempt: id of the run's attempt.
            announced: the trainer's hook announces when the step is over; nothing else closes it while it runs.

        Returns:
            The record; it shares no memory with the trainer's tensors, and is valid until the next call.
        """
        parts = [CapturedPart(batch) for batch in batches]
        lengths = np.array([length for part in parts for length in part.rows.lengths], np.int64)
        group_ids = _group_ids(batches, groups or GroupNumbers())
        per_token = _bytes_per_token(parts)
        budget = self.max_bytes if room is None else min(self.max_bytes, room)
        kept = _rows_within(budget // per_token, lengths, group_ids, step)
        _keep(parts, kept)
        N = int(lengths[kept].sum())
        columns: dict[str, np.ndarray] = {
            "lengths": lengths.astype(np.uint32),
            "has_tokens": (kept & (lengths > 0)).astype(np.uint8),
            "group_ids": group_ids,
            **_float_columns(parts),
        }
        column_bytes = len(columns) * (lengths.nbytes + ALIGN)
        self._reserve_scratch(N)
        wide_bytes = 4 * len(INT_TRACKS) * N  # memory that is not touched where 32 bits do
        self._buffer.clear(N * per_token + wide_bytes + column_bytes + 16 * ALIGN)
        for name, column in columns.items():
            self._buffer.reserve(name, column.dtype, len(column))[:] = column
        source = self._tokens(parts, N)
        row_lists = _merge_lists(parts)
        n_unknown = 0
        if not kept.all():
            row_lists["prompt_keys"] = keys = _prompt_keys(parts, row_lists.get("prompt_keys"), kept)
            n_unknown = sum(key is None for key in itertools.compress(keys, ~kept))
        batch_id = batch_id or fresh_name()
        meta = record_meta(
            row_lists,
            batch_id=batch_id,
            step=int(step),
            split=split,
            response_mask_source=source,
            train_version=next((int(b.train_version) for b in batches if b.train_version is not None), None),
            pad_id=next((int(b.pad_id) for b in batches if b.pad_id is not None), None),
            handed_over_at=time.time(),
            notes=_notes(kept, budget, n_unknown),
            not_given=_not_given(parts),
            await_join=list(await_join),
            n_ranks=n_ranks,
            attempt=attempt,
            announced=announced,
        )
        buffers = self._buffer.finish(ROLLOUTS, meta)
        rows = tuple(part.rows for part in parts)
        sample_ids = row_lists.get("sample_ids") if all(b.sample_ids is not None for b in batches) else None
        return Captured(buffers, batch_id, group_ids, len(lengths), rows, kept, sample_ids)

    def _tokens(self, parts: Sequence[CapturedPart], N: int) -> MaskSource:
        ids = self._buffer.reserve("input_ids", np.int32, N)
        _gather(parts, "input_ids", ids, fill=0)
        self._mask(parts, "loss_mask", N)
        sources = [part.mask_source for part in parts]
        mixed = len(set(sources)) > 1
        if mixed:
            self._mixed_response_mask(parts, sources, N)
        elif sources and sources[0] == "given":
            self._mask(parts, "response_mask", N)
        for key in INT_TRACKS:
            if any(key in part.given for part in parts):
                self._int_track(parts, key, N)
        for key in FLOAT_TRACKS:
            if any(part.has_track(key) for part in parts):
                self._float_track(parts, key, N)
        return "given" if mixed else sources[0] if sources else "loss_mask"

    def _mixed_response_mask(
        self, parts: Sequence[CapturedPart], sources: Sequence[MaskSource], N: int
    ) -> None:
        """The response mask where parts know it from different columns: each from its own."""
        bools = self._bools[:N]
        at = 0
        for part, source in zip(parts, sources, strict=True):
            inside = bools[at : at + part.n_kept]
            if source == "versions":
                versions = np.empty(part.n_kept, np.int64)
                part.gather("versions", versions, -1)
                np.greater_equal(versions, 0, out=inside)
            else:
                part.gather("response_mask" if source == "given" else "loss_mask", inside, False)
            at += part.n_kept
        self._put_mask("response_mask", bools)

    def _mask(self, parts: Sequence[CapturedPart], key: str, N: int) -> None:
        bools = self._bools[:N]
        _gather(parts, key, bools, fill=False)
        self._put_mask(key, bools)

    def _put_mask(self, key: str, bools: np.ndarray) -> None:
        packed = np.packbits(bools)
        self._buffer.reserve(key, packed.dtype, len(packed))[:] = packed

    def _int_track(self, parts: Sequence[CapturedPart], key: str, N: int) -> None:
        kind = self._int_kinds.get(key, np.int16)
        while (needed := self._int_track_of(kind, parts, key, N)) != kind:
            self._buffer.take_back()
            self._int_kinds[key] = kind = needed

    def _int_track_of(self, kind: Any, parts: Sequence[CapturedPart], key: str, N: int) -> Any:
        """Puts a track where it is laid out as a kind of integer, and tells which kind it needs."""
        track = self._buffer.reserve(f"track/{key}", kind, N)
        found: list[int] = []
        at = 0
        for part in parts:
            found += part.gather_whole(key, track[at : at + part.n_kept], fill=-1)
            at += part.n_kept
        return narrowest_int(np.asarray(found, np.int64))

    def _float_track(self, parts: Sequence[CapturedPart], key: str, N: int) -> None:
        wide = self._floats[:N]
        _gather(parts, key, wide, fill=np.nan)
        narrow = self._buffer.reserve(f"track/{key}", np.float16, N)
        _to_float16(wide, narrow)
        if float16_overflows(narrow, wide):
            self._buffer.take_back()
            self._buffer.reserve(f"track/{key}", np.float32, N)[:] = wide

    def _reserve_scratch(self, N: int) -> None:
        if len(self._floats) < N:
            n = int(N * GROWTH)
            self._floats, self._bools = np.zeros(n, np.float32), np.zeros(n, bool)


def capture(
    batches: Sequence[RolloutBatch], *, step: int, split: str, groups: GroupNumbers | None = None
) -> PackedBatch:
    """Captures batches and reads them back at once; see `Capture.take`."""
    captured = Capture().take(batches, step=step, split=split, groups=groups)
    return batch_from_record(decode(b"".join(bytes(part) for part in captured.buffers)))


def _keep(parts: Sequence[CapturedPart], kept: np.ndarray) -> None:
    at = 0
    for part in parts:
        n_rows = len(part.rows.lengths)
        part.keep(kept[at : at + n_rows].tolist())
        at += n_rows


def _gather(parts: Sequence[CapturedPart], key: str, out: np.ndarray, fill: Any) -> None:
    """Copies one per-token key of all parts into `out`; `fill` where a part does not have it."""
    at = 0
    for part in parts:
        part.gather(key, out[at : at + part.n_kept], fill)
        at += part.n_kept


def _to_float16(wide: np.ndarray, narrow: np.ndarray) -> None:
    """Casts with torch where it is loaded, which is ten times faster than numpy."""
    torch = sys.modules.get("torch")
    if torch is None or not len(wide):
        with np.errstate(over="ignore"):
            narrow[:] = wide
    else:
        torch.from_numpy(narrow.view(np.int16)).view(torch.float16).copy_(torch.from_numpy(wide))


def _bytes_per_token(parts: Sequence[CapturedPart]) -> int:
    """At most, masks rounded up, where integers need no more than 32 bits."""
    present = {key for key in (*INT_TRACKS, *FLOAT_TRACKS) if any(key in part.given for part in parts)}
    return 4 + 2 + sum(4 if key in INT_TRACKS else 6 for key in present)


def _rows_within(n_tokens: int, lengths: np.ndarray, group_ids: np.ndarray, step: int) -> np.ndarray:
    """bool [B]: rows whose tokens fit; whole groups, drawn at random where not all do."""
    if int(lengths.sum()) <= n_tokens:
        return np.ones(len(lengths), bool)
    _, first, members = np.unique(group_ids, return_index=True, return_inverse=True)
    by_appearance = np.argsort(first)
    drawn = by_appearance[np.random.default_rng(step & np.iinfo(np.uint32).max).permutation(len(first))]
    sizes = np.zeros(len(first), np.int64)
    np.add.at(sizes, members, lengths)
    fits = np.zeros(len(first), bool)
    fits[drawn[np.cumsum(sizes[drawn]) <= n_tokens]] = True
    return fits[members]


def _notes(kept: np.ndarray, budget: int, n_unknown: int) -> list[str]:
    if kept.all():
        return []
    notes = [
        f"The tokens of {int((~kept).sum())} of {len(kept)} rollouts were left out: "
        f"there was room for {budget / MB:.4g} MB. Their scalars are here."
    ]
    if n_unknown:
        notes.append(
            f"The prompts of {n_unknown} of them are unknown: at most {MAX_HASHED:,} prompt tokens are hashed."
        )
    return notes


def _prompt_keys(parts: Sequence[CapturedPart], given: Sequence[Any] | None, kept: np.ndarray) -> list[Any]:
    """Prompt keys, hashed here for rows whose tokens stay behind; None beyond `MAX_HASHED` tokens."""
    keys: list[Any] = list(given) if given is not None else [None] * len(kept)
    at, left = 0, MAX_HASHED
    for part in parts:
        rows = [row for row in range(part.batch.n_rows) if not kept[at + row] and keys[at + row] is None]
        for row, (key, n_hashed) in zip(rows, _hash_prompts(part, rows), strict=False):
            keys[at + row] = key
            left -= n_hashed
            if left < 0:
                return keys
        at += part.batch.n_rows
    return keys


def _hash_prompts(part: CapturedPart, rows: Sequence[int]) -> Iterator[tuple[str, int]]:
    """The hash of each row's tokens before its first sampled one; a prompt that repeats is hashed once.

    Yields:
        The hash, and how many tokens were hashed for it.
    """
    if not rows:
        return
    ids_B_T = host_array(part.batch.input_ids, hidden=0)
    values_B_T, is_sampled = _sampled_where(part)
    last, key = None, ""
    for row in rows:
        ids = part.rows.tokens_of(ids_B_T, row)
        prompt = ids[: _first_sampled(part.rows.tokens_of(values_B_T, row), is_sampled)]
        is_new = last is None or not np.array_equal(prompt, last)
        if is_new:
            last, key = prompt, hash_ids(prompt)
        yield key, len(prompt) if is_new else 0


def _sampled_where(part: CapturedPart) -> tuple[np.ndarray, np.ufunc]:
    """Values [B, T], and how they compare with 0 where the policy sampled the token."""
    if part.mask_source == "versions":
        return host_array(part.batch.versions), np.greater_equal
    key = "response_mask" if part.mask_source == "given" else "loss_mask"
    return host_array(getattr(part.batch, key)), np.greater


def _first_sampled(values: np.ndarray, is_sampled: np.ufunc) -> int:
    """Index of a row's first sampled token; the row's length where there is none."""
    zero = np.zeros((), values.dtype)
    for start in range(0, len(values), LOOKED_AT):
        found = is_sampled(values[start : start + LOOKED_AT], zero)
        at = int(found.argmax())
        if found[at]:
            return start + at
    return len(values)


def _group_ids(batches: Sequence[RolloutBatch], groups: GroupNumbers) -> np.ndarray:
    ids: list[Any] = []
    call = groups.call()
    for index, batch in enumerate(batches):
        if batch.group_ids is not None:
            ids.extend(plain_list(batch.group_ids))
        else:
            ids.extend((call, index, row) for row in range(batch.n_rows))
    return groups.of(ids)


def plain_list(values: Any) -> list[Any]:
    """A list, array or tensor as a list of plain values."""
    if hasattr(values, "tolist"):
        return values.tolist()
    return [value.item() if hasattr(value, "item") else value for value in values]


def _float_columns(parts: Sequence[CapturedPart]) -> dict[str, np.ndarray]:
    """float64 [B] by the name it has in the record."""
    n_rows = [part.batch.n_rows for part in parts]
    found = {}
    for group in ("row_floats", *NAMED_FLOATS):
        columns = [part.row_values if group == "row_floats" else getattr(part.batch, group) for part in parts]
        for name, column in _stack(columns, n_rows).items():
            found[f"{group}/{name}"] = column
    return found


def _not_given(parts: Sequence[CapturedPart]) -> dict[str, list[int]]:
    """Row numbers by `PackedBatch.not_given` key: rows that lack a value which others have, or have None."""
    given = {
        "tracks": [{k: p.given[k] for k in FLOAT_TRACKS if p.has_track(k)} for p in parts],
        "row_floats": [part.row_values for part in parts],
        **{kind: [getattr(part.batch, kind) for part in parts] for kind in NAMED_FLOATS},
        "row_lists": [{k: p.given[k] for k in PARTLY_GIVEN if k in p.given} for p in parts],
    }
    found = {}
    for kind, of_parts in given.items():
        for name in sorted({name for values in of_parts for name in values}):
            columns = [values.get(name) for values in of_parts]
            if any(column is None or isinstance(column, np.ma.MaskedArray) for column in columns):
                rows = [_without(column, p.batch.n_rows) for column, p in zip(columns, parts, strict=True)]
                found[f"{kind}/{name}"] = np.flatnonzero(np.concatenate(rows)).tolist()
    sources = [part.mask_source for part in parts]
    if len(set(sources)) > 1:
        assumed = [
            np.full(p.batch.n_rows, source == "loss_mask") for p, source in zip(parts, sources, strict=True)
        ]
        found[ASSUMED_MASK] = np.flatnonzero(np.concatenate(assumed)).tolist()
    return {key: rows for key, rows in found.items() if rows}


def _without(value: Any, n_rows: int) -> np.ndarray:
    """bool [B]: rows that have no value; of a masked array those with nothing else than masked values."""
    if not isinstance(value, np.ma.MaskedArray):
        return np.full(n_rows, value is None)
    masked = np.ma.getmaskarray(value)
    return masked if masked.ndim == 1 else masked.all(axis=1)


def _stack(columns: Sequence[Mapping[str, Any]], n_rows: Sequence[int]) -> dict[str, np.ndarray]:
    """float64 columns of all parts by name, NaN where a part does not have one."""
    names = sorted({name for part in columns for name in part})
    return {
        name: np.concatenate(
            [
                _floats(part[name]) if name in part else np.full(n, np.nan)
                for part, n in zip(columns, n_rows, strict=True)
            ]
        )
        for name in names
    }


def _floats(value: Any) -> np.ndarray:
    if isinstance(value, np.ma.MaskedArray):
        value = value.astype(np.float64)
    return host_array(value).astype(np.float64)


def _merge_lists(parts: Sequence[CapturedPart]) -> dict[str, list[Any]]:
    merged: dict[str, list[Any]] = {}
    present = {key for part in parts for key in part.given.keys() & ROW_LISTS} - {"group_ids"}
    for key in ROW_LISTS:
        if key not in present:
            continue
        column: list[Any] = []
        for part in parts:
            value = part.given.get(key)
            column.extend([None] * part.batch.n_rows if value is None else plain_list(value))
        merged[key] = plain_images(column) if key == "images" else column
    if "extras" in merged:
        merged["extras"] = [_with_infinities(row) for row in merged["extras"]]
    return merged


def _with_infinities(row: Any) -> Any:
    """A row's extras, infinite ones as text: JSON, which the record's header is, makes null of them."""
    if not isinstance(row, dict) or not any(type(v) is float and math.isinf(v) for v in row.values()):
        return row
    return {name: finite_or_text(value) for name, value in row.items()}
