"""RolloutBatch -> record: the one place where tensors become numpy arrays, in one pass, on the calling thread.

A row's tokens are copied out of the padding straight into the record's memory at the record's width;
nothing is decoded, hashed or looked at beyond that.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from rollout_traces.batch import NAMED_FLOATS, ROW_FLOATS, ROW_LISTS, RolloutBatch
from rollout_traces.host_batch import HostBatch, hash_ids
from rollout_traces.spool.batch_record import ROLLOUTS, batch_from_record, float16_overflows, record_meta
from rollout_traces.spool.record import RecordBuffer, decode
from rollout_traces.transcript import FLOAT_TRACKS, INT_TRACKS

MAX_BYTES = 128 << 20
"""Default budget of one hand-over; above it the tokens of some groups stay behind."""
MaskSource = Literal["given", "versions", "loss_mask"]


@dataclass(frozen=True, eq=False)
class Captured:
    """A hand-over as bytes.

    Attributes:
        buffers: the record, to be written before the next capture into the same memory.
        batch_id: the hand-over's id.
        group_ids: int64 [B].
        n_rows: rollouts, B.
        rows: where the tokens of each part lie.
        kept: bool [B]; False where a row's tokens stayed behind.
    """

    buffers: list[Any]
    batch_id: str
    group_ids: np.ndarray
    n_rows: int
    rows: tuple[Rows, ...]
    kept: np.ndarray

    @property
    def n_without_tokens(self) -> int:
        """Rollouts whose tokens stayed behind."""
        return int((~self.kept).sum())


@dataclass(frozen=True, eq=False)
class Rows:
    """Where the tokens of a padded part lie.

    Attributes:
        starts: first token of each row, B ints.
        lengths: tokens of each row, B ints.
        mask: bool [B, T] when some row's tokens are not contiguous, else None.
    """

    starts: list[int]
    lengths: list[int]
    mask: np.ndarray | None = None

    def tokens_of(self, values_B_T: np.ndarray, row: int) -> np.ndarray:
        """One row's tokens, out of [B, T]."""
        if self.mask is not None:
            return values_B_T[row][self.mask[row]]
        return values_B_T[row, self.starts[row] : self.starts[row] + self.lengths[row]]

    def places(self, kept: Sequence[bool]) -> list[tuple[Any, slice]]:
        """Where the tokens of each kept row lie in a [B, T], and where they go when they are put end to end.

        Args:
            kept: B bools.
        """
        found: list[tuple[Any, slice]] = []
        at = 0
        for row, (start, length) in enumerate(zip(self.starts, self.lengths, strict=True)):
            if kept[row]:
                where = slice(start, start + length) if self.mask is None else self.mask[row]
                found.append(((row, where), slice(at, at + length)))
                at += length
        return found


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

    def take(
        self,
        batches: Sequence[RolloutBatch],
        *,
        step: int,
        split: str,
        first_group: int = 0,
        room: int | None = None,
        await_join: Sequence[str] = (),
        batch_id: str | None = None,
        n_ranks: int = 1,
    ) -> Captured:
        """Copies batches without their padding.

        Args:
            batches: the parts of one hand-over. A part without `group_ids` is one group when there are
                several parts; a single one takes each row as a group of its own.
            step: the trainer's global step.
            split: `rollout` or `eval-rollout`.
            first_group: number of the first group made up here, so that several calls of one step differ.
            room: bytes that there is room for, where that is less than the budget; 0 leaves all tokens behind.
            await_join: keys that will be joined before the traces are to be written.
            batch_id: the hand-over's id; a new one when None.
            n_ranks: ranks that hand over to the same run.

        Returns:
            The record; it shares no memory with the trainer's tensors, and is valid until the next call.
        """
        parts = [_Part(batch) for batch in batches]
        lengths = np.array([length for part in parts for length in part.rows.lengths], np.int64)
        group_ids = _group_ids(batches, first_group)
        per_token = _bytes_per_token(batches)
        budget = self.max_bytes if room is None else min(self.max_bytes, room)
        kept = _rows_within(budget // per_token, lengths, group_ids, step)
        _keep(parts, kept)
        N = int(lengths[kept].sum())
        row_floats = _row_floats(parts)
        named = {key: _named_floats(batches, key) for key in NAMED_FLOATS}
        n_columns = len(row_floats) + sum(map(len, named.values())) + 3
        self._reserve_scratch(N)
        self._buffer.clear(N * per_token + n_columns * (len(lengths) * 8 + 64) + 64 * 16)
        reserve = self._buffer.reserve
        reserve("lengths", np.uint32, len(lengths))[:] = lengths
        reserve("has_tokens", np.uint8, len(lengths))[:] = kept
        reserve("group_ids", np.int64, len(lengths))[:] = group_ids
        for prefix, columns in {"row_floats": row_floats, **named}.items():
            for name, column in columns.items():
                reserve(f"{prefix}/{name}", np.float64, len(lengths))[:] = column
        source = self._tokens(parts, N)
        row_lists = _merge_lists(batches)
        if not kept.all():
            row_lists["prompt_keys"] = _prompt_keys(parts, row_lists.get("prompt_keys"), kept)
        batch_id = batch_id or secrets.token_hex(6)
        meta = record_meta(
            row_lists,
            batch_id=batch_id,
            step=int(step),
            split=split,
            response_mask_source=source,
            train_version=next((int(b.train_version) for b in batches if b.train_version is not None), None),
            pad_id=next((int(b.pad_id) for b in batches if b.pad_id is not None), None),
            handed_over_at=time.time(),
            notes=_notes(kept, budget),
            not_given=_not_given(parts),
            await_join=list(await_join),
            n_ranks=n_ranks,
        )
        buffers = self._buffer.finish(ROLLOUTS, meta)
        rows = tuple(part.rows for part in parts)
        return Captured(buffers, batch_id, group_ids, len(lengths), rows, kept)

    def _tokens(self, parts: Sequence[_Part], N: int) -> MaskSource:
        ids = self._buffer.reserve("input_ids", np.int32, N)
        _gather(parts, "input_ids", ids, fill=0)
        self._mask(parts, "loss_mask", N)
        present = [
            all(getattr(p.batch, key) is not None for p in parts) for key in ("response_mask", "versions")
        ]
        given = present[0] and bool(parts)
        if given:
            self._mask(parts, "response_mask", N)
        for key in INT_TRACKS:
            if any(getattr(part.batch, key) is not None for part in parts):
                _gather(parts, key, self._buffer.reserve(f"track/{key}", np.int32, N), fill=-1)
        for key in FLOAT_TRACKS:
            if any(part.has_track(key) for part in parts):
                self._float_track(parts, key, N)
        if given:
            return "given"
        return "versions" if present[1] and parts else "loss_mask"

    def _mask(self, parts: Sequence[_Part], key: str, N: int) -> None:
        bools = self._bools[:N]
        _gather(parts, key, bools, fill=False)
        self._buffer.reserve(key, np.uint8, -(-N // 8))[:] = np.packbits(bools)

    def _float_track(self, parts: Sequence[_Part], key: str, N: int) -> None:
        wide = self._floats[:N]
        _gather(parts, key, wide, fill=np.nan)
        narrow = self._buffer.reserve(f"track/{key}", np.float16, N)
        _to_float16(wide, narrow)
        if float16_overflows(narrow, wide):
            self._buffer.take_back()
            self._buffer.reserve(f"track/{key}", np.float32, N)[:] = wide

    def _reserve_scratch(self, N: int) -> None:
        if len(self._floats) < N:
            self._floats = np.zeros(int(N * 1.25), np.float32)
            self._bools = np.zeros(int(N * 1.25), bool)


class _Part:
    """One part of a hand-over and where its tokens lie."""

    def __init__(self, batch: RolloutBatch) -> None:
        self.batch = batch
        self.rows = find_rows(host_array(batch.attention_mask))
        self.places: list[tuple[Any, slice]] = []
        self.n_kept = 0

    def keep(self, kept: Sequence[bool]) -> None:
        """Decides which rows' tokens are handed over."""
        self.places = self.rows.places(kept)
        self.n_kept = self.places[-1][1].stop if self.places else 0

    def gather(self, values_B_T: np.ndarray, out: np.ndarray) -> None:
        """Copies the tokens of the kept rows into `out`, end to end.

        Args:
            values_B_T: [B, T].
            out: [n_kept], of any dtype that the values are cast to; bool where they are above 0.
        """
        if out.dtype == bool and values_B_T.dtype != bool:
            for source, place in self.places:
                np.greater(values_B_T[source], 0, out=out[place])
        else:
            for source, place in self.places:
                out[place] = values_B_T[source]

    def has_track(self, key: str) -> bool:
        value = getattr(self.batch, key)
        return value is not None and len(value.shape) == 2

    @cached_property
    def row_values(self) -> dict[str, Any]:
        """The [B] values by name; where token rewards alone are given their sums are the rewards."""
        named = {key: getattr(self.batch, key) for key in (*ROW_FLOATS, "advantages")}
        found = {key: value for key, value in named.items() if value is not None and len(value.shape) == 1}
        if "rewards" not in found and self.batch.token_rewards is not None:
            found["rewards"] = _token_reward_sums(self)
        return found


def find_rows(attention_mask: np.ndarray) -> Rows:
    """Where each row's tokens lie.

    Args:
        attention_mask: [B, T], of any dtype; non-zero where there is a token.

    Returns:
        The rows; contiguous ones, as padding on either side leaves them, are described by two numbers.
    """
    mask = attention_mask if attention_mask.dtype == bool else attention_mask != 0
    starts, lengths, contiguous = [], [], True
    for row in mask:
        length = int(np.count_nonzero(row))
        start = int(row.argmax()) if length else 0
        contiguous = contiguous and int(np.count_nonzero(row[start : start + length])) == length
        starts.append(start)
        lengths.append(length)
    return Rows(starts, lengths, None if contiguous else mask)


def capture(batches: Sequence[RolloutBatch], *, step: int, split: str, first_group: int = 0) -> HostBatch:
    """Captures batches and reads them back at once; see `Capture.take`."""
    captured = Capture().take(batches, step=step, split=split, first_group=first_group)
    return batch_from_record(decode(b"".join(bytes(part) for part in captured.buffers)))


def host_array(value: Any) -> np.ndarray:
    """A numpy array of any tensor or array, on the host; half precisions become float32.

    What a numpy mask hides becomes NaN, in arrays without it 0.
    """
    if hasattr(value, "detach"):
        value = value.detach()
        if str(value.dtype) in ("torch.bfloat16", "torch.float16"):
            value = value.float()
        return value.cpu().numpy()
    if isinstance(value, np.ma.MaskedArray):
        return value.filled(np.nan if value.dtype.kind == "f" else 0)
    return np.asarray(value)


def _keep(parts: Sequence[_Part], kept: np.ndarray) -> None:
    at = 0
    for part in parts:
        n_rows = len(part.rows.lengths)
        part.keep(kept[at : at + n_rows].tolist())
        at += n_rows


def _gather(parts: Sequence[_Part], key: str, out: np.ndarray, fill: Any) -> None:
    """Copies one per-token key of all parts into `out`; `fill` where a part does not have it."""
    at = 0
    for part in parts:
        here = out[at : at + part.n_kept]
        value = getattr(part.batch, key)
        if value is None or len(value.shape) != 2:
            here[...] = fill
        else:
            part.gather(host_array(value), here)
        at += part.n_kept


def _to_float16(wide: np.ndarray, narrow: np.ndarray) -> None:
    """Casts with torch where it is loaded, which is ten times faster than numpy."""
    torch = sys.modules.get("torch")
    if torch is None or not len(wide):
        with np.errstate(over="ignore"):
            narrow[:] = wide
    else:
        torch.from_numpy(narrow.view(np.int16)).view(torch.float16).copy_(torch.from_numpy(wide))


def _bytes_per_token(batches: Sequence[RolloutBatch]) -> int:
    """At most, masks rounded up."""
    present = {key for b in batches for key in (*INT_TRACKS, *FLOAT_TRACKS) if getattr(b, key) is not None}
    return 4 + 2 + sum(4 if key in INT_TRACKS else 6 for key in present)


def _rows_within(n_tokens: int, lengths: np.ndarray, group_ids: np.ndarray, step: int) -> np.ndarray:
    """bool [B]: rows whose tokens fit; whole groups, drawn at random where not all do."""
    if int(lengths.sum()) <= n_tokens:
        return np.ones(len(lengths), bool)
    groups = list(dict.fromkeys(group_ids.tolist()))
    kept = np.zeros(len(lengths), bool)
    for index in np.random.default_rng(step & 0xFFFFFFFF).permutation(len(groups)).tolist():
        rows = group_ids == groups[index]
        n_tokens -= int(lengths[rows].sum())
        if n_tokens < 0:
            break
        kept |= rows
    return kept


def _notes(kept: np.ndarray, budget: int) -> list[str]:
    if kept.all():
        return []
    return [
        f"The tokens of {int((~kept).sum())} of {len(kept)} rollouts were left out: "
        f"there was room for {budget / 2**20:.4g} MB. Their scalars are here."
    ]


def _prompt_keys(parts: Sequence[_Part], given: Sequence[Any] | None, kept: np.ndarray) -> list[Any]:
    """Prompt keys, hashed here for rows whose tokens stay behind."""
    keys: list[Any] = list(given) if given is not None else [None] * len(kept)
    row = 0
    for part in parts:
        for b in range(part.batch.n_rows):
            if not kept[row] and keys[row] is None:
                sampled = np.flatnonzero(part.rows.tokens_of(_sampled(part.batch), b))
                ids = part.rows.tokens_of(host_array(part.batch.input_ids), b)
                keys[row] = hash_ids(ids[: int(sampled[0]) if len(sampled) else len(ids)])
            row += 1
    return keys


def _sampled(batch: RolloutBatch) -> np.ndarray:
    """bool [B, T]: the policy sampled the token."""
    if batch.response_mask is not None:
        return host_array(batch.response_mask) > 0
    if batch.versions is not None:
        return host_array(batch.versions) >= 0
    return host_array(batch.loss_mask) > 0


def _group_ids(batches: Sequence[RolloutBatch], first_group: int) -> np.ndarray:
    groups: list[Any] = []
    for index, batch in enumerate(batches):
        if batch.group_ids is not None:
            groups.extend(_plain_list(batch.group_ids))
        elif len(batches) > 1:
            groups.extend([("part", index)] * batch.n_rows)
        else:
            groups.extend(("row", row) for row in range(batch.n_rows))
    if groups and all(isinstance(group, int) and abs(group) < 2**63 for group in groups):
        return np.asarray(groups, np.int64)
    codes: dict[Any, int] = {}
    return np.asarray([first_group + codes.setdefault(group, len(codes)) for group in groups], np.int64)


def _plain_list(values: Any) -> list[Any]:
    if hasattr(values, "tolist"):
        return values.tolist()
    return [value.item() if hasattr(value, "item") else value for value in values]


def _row_floats(parts: Sequence[_Part]) -> dict[str, np.ndarray]:
    columns = [{key: _floats(value) for key, value in part.row_values.items()} for part in parts]
    return _stack(columns, [part.batch.n_rows for part in parts])


def _not_given(parts: Sequence[_Part]) -> dict[str, list[int]]:
    """Row numbers by `tracks/<name>` and `row_floats/<name>`: rows without what others have, or with None."""
    tracks = [{key: getattr(p.batch, key) for key in FLOAT_TRACKS if p.has_track(key)} for p in parts]
    found = {}
    for kind, given in (("tracks", tracks), ("row_floats", [part.row_values for part in parts])):
        for name in sorted({name for values in given for name in values}):
            rows = [_without(v.get(name), p.batch.n_rows) for v, p in zip(given, parts, strict=True)]
            if any(part.any() for part in rows):
                found[f"{kind}/{name}"] = np.flatnonzero(np.concatenate(rows)).tolist()
    return found


def _without(value: Any, n_rows: int) -> np.ndarray:
    """bool [B]: rows that have no value; of a masked array those with nothing else than masked values."""
    if not isinstance(value, np.ma.MaskedArray):
        return np.full(n_rows, value is None)
    masked = np.ma.getmaskarray(value)
    return masked if masked.ndim == 1 else masked.all(axis=1)


def _token_reward_sums(part: _Part) -> np.ndarray:
    """[B] sums over each row; masked where a numpy mask hides any of the row's values."""
    given = part.batch.token_rewards
    values = host_array(given)
    hidden = np.ma.getmaskarray(given) if isinstance(given, np.ma.MaskedArray) else None
    sums = np.ma.zeros(part.batch.n_rows, np.float64)
    for b in range(part.batch.n_rows):
        sums[b] = part.rows.tokens_of(values, b).sum(dtype=np.float64)
        if hidden is not None and part.rows.tokens_of(hidden, b).any():
            sums[b] = np.ma.masked
    return sums


def _named_floats(batches: Sequence[RolloutBatch], key: str) -> dict[str, np.ndarray]:
    columns = [{name: _floats(column) for name, column in getattr(b, key).items()} for b in batches]
    return _stack(columns, [batch.n_rows for batch in batches])


def _stack(columns: Sequence[Mapping[str, np.ndarray]], n_rows: Sequence[int]) -> dict[str, np.ndarray]:
    """Columns of all parts by name, NaN where a part does not have one."""
    names = sorted({name for part in columns for name in part})
    return {
        name: np.concatenate(
            [part.get(name, np.full(n, np.nan)) for part, n in zip(columns, n_rows, strict=True)]
        )
        for name in names
    }


def _floats(value: Any) -> np.ndarray:
    if isinstance(value, np.ma.MaskedArray):
        value = value.astype(np.float64)
    return host_array(value).astype(np.float64)


def _merge_lists(batches: Sequence[RolloutBatch]) -> dict[str, list[Any]]:
    merged: dict[str, list[Any]] = {}
    for key in ROW_LISTS:
        if key == "group_ids" or all(getattr(batch, key) is None for batch in batches):
            continue
        column: list[Any] = []
        for batch in batches:
            value = getattr(batch, key)
            column.extend([None] * batch.n_rows if value is None else _plain_list(value))
        merged[key] = column
    return merged
