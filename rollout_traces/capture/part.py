"""One part of a hand-over: where its rows' tokens are between the padding, their groups' numbers, their images."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rollout_traces.errors import BatchError
from rollout_traces.model.batch import ROW_FLOATS, TOKEN_KEYS, ListElement, RolloutBatch
from rollout_traces.model.batch_checks import UNPACK
from rollout_traces.model.units import MB

LEAST_INT = float(np.iinfo(np.int64).min)
"""What integer tracks hold at least, and less than so much in size."""
LOOKED_AT_TOGETHER = 1 << 16
"""Values, about, that are looked at while the processor's cache holds them."""
MaskSource = Literal["given", "versions", "loss_mask"]
"""The evidence of which tokens the policy sampled."""


@dataclass(frozen=True, eq=False)
class PaddedRows:
    """The positions of a padded part's tokens.

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

    @property
    def holes(self) -> tuple[int, int]:
        """Rows with masked tokens between their first and their last one, and how many such tokens."""
        if self.mask is None:
            return 0, 0
        last = self.mask.shape[1] - self.mask[:, ::-1].argmax(axis=1)
        inside = np.where(self.lengths, last - np.asarray(self.starts) - np.asarray(self.lengths), 0)
        return int(np.count_nonzero(inside)), int(inside.sum())

    def places(self, kept: Sequence[bool]) -> list[tuple[Any, slice]]:
        """The positions of each kept row's tokens in a [B, T], and their positions once all rows are put end to end.

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


class CapturedPart:
    """One part of a hand-over and the positions of its tokens.

    Attributes:
        given: what the part came with, by key.
    """

    def __init__(self, batch: RolloutBatch) -> None:
        self.batch = batch
        self.given: dict[str, Any] = {key: value for key, value in vars(batch).items() if value is not None}
        self.rows = find_rows(_checked_mask(host_array(batch.attention_mask, hidden=0)))
        self.places: list[tuple[Any, slice]] = []
        self.n_kept = 0

    def keep(self, kept: Sequence[bool]) -> None:
        """Decides which rows' tokens are handed over."""
        self.places = self.rows.places(kept)
        self.n_kept = self.places[-1][1].stop if self.places else 0

    def gather(self, key: str, out: np.ndarray, fill: Any) -> None:
        """Copies the tokens of the kept rows into `out`, end to end.

        Args:
            key: which values of them.
            out: [n_kept], of any dtype that the values are cast to; bool where they are above 0.
            fill: what it is filled with where the part has no such key with a value a token.
        """
        if not self.has_track(key):
            out[...] = fill
            return
        values_B_T = host_array(getattr(self.batch, key), hidden=fill)
        if out.dtype == bool and values_B_T.dtype != bool:
            zero = np.zeros((), values_B_T.dtype)
            for source, place in self.places:
                np.greater(values_B_T[source], zero, out=out[place])
        else:
            for source, place in self.places:
                out[place] = values_B_T[source]

    def gather_whole(self, key: str, out: np.ndarray, fill: int) -> list[int]:
        """Copies the whole numbers of the kept rows' tokens into `out`, end to end, and finds what holds them all.

        A few rows, padding included, are looked at and copied together: they are read from memory once.

        Args:
            key: which numbers of them.
            out: [n_kept] integers; where they are too narrow for a number, it is not there.
            fill: what it is filled with where the part has no such key with a value a token.

        Returns:
            Numbers, none of the copied ones below the lowest or above the highest.
        """
        if not self.n_kept or not self.has_track(key):
            out[...] = fill
            return [fill] if self.n_kept else []
        values_B_T = _whole_numbers(host_array(getattr(self.batch, key), hidden=fill))
        n = max(LOOKED_AT_TOGETHER // values_B_T.shape[1], 1)
        found: list[int] = []
        for index, places in groupby(self.places, lambda place: place[0][0] // n):
            some = values_B_T[index * n : (index + 1) * n]
            found += (int(some.min()), int(some.max()))
            for source, place in places:
                out[place] = values_B_T[source]
        return found

    def has_track(self, key: str) -> bool:
        """True when the part has a value of `key` for each token."""
        return key in self._per_token

    @cached_property
    def _per_token(self) -> frozenset[str]:
        keys = ("input_ids", "loss_mask", *TOKEN_KEYS)
        return frozenset(key for key in keys if key in self.given and len(self.given[key].shape) == 2)

    @cached_property
    def mask_source(self) -> MaskSource:
        """The column that the part's response mask comes from.

        Versions that mark no prompt, as `full_like(input_ids, step)` does, do not say what was sampled: where no
        token's version is negative and the loss mask leaves tokens out, it comes from the loss mask.
        """
        if self.batch.response_mask is not None:
            return "given"
        if self.batch.versions is None:
            return "loss_mask"
        return "versions" if self._versions_mark_prompts() else "loss_mask"

    def _versions_mark_prompts(self) -> bool:
        versions_B_T = host_array(self.batch.versions)
        filled = [b for b, length in enumerate(self.rows.lengths) if length]
        if any(versions_B_T[b, self.rows.starts[b]] < 0 for b in filled):
            return True
        if any((self.rows.tokens_of(versions_B_T, b) < 0).any() for b in filled):
            return True
        loss_mask_B_T = host_array(self.batch.loss_mask)
        return all((self.rows.tokens_of(loss_mask_B_T, b) > 0).all() for b in filled)

    @cached_property
    def row_values(self) -> dict[str, Any]:
        """The [B] values by name; where token rewards alone are given their sums are the rewards."""
        named = {key: self.given[key] for key in (*ROW_FLOATS, "advantages") if key in self.given}
        found = {key: value for key, value in named.items() if len(value.shape) == 1}
        if "rewards" not in found and self.batch.token_rewards is not None:
            found["rewards"] = _token_reward_sums(self)
        return found


def find_rows(attention_mask: np.ndarray) -> PaddedRows:
    """Finds each row's tokens.

    Args:
        attention_mask: [B, T], of any dtype; non-zero where there is a token.

    Returns:
        The rows; contiguous ones, as padding on either side leaves them, are described by two numbers.
    """
    mask = attention_mask if attention_mask.dtype == bool else attention_mask != 0
    lengths = [int(np.count_nonzero(row)) for row in mask]
    starts = mask.argmax(axis=1).tolist() if mask.shape[1] else lengths
    n_rises = np.count_nonzero(mask[:, 1:] > mask[:, :-1])
    contiguous = n_rises == sum(start > 0 for start in starts)
    return PaddedRows(starts, lengths, None if contiguous else mask.copy())


def _checked_mask(attention_mask: np.ndarray) -> np.ndarray:
    """An attention mask of zeros and ones.

    Raises:
        BatchError: it numbers sequences, as masks of packed rows do.
    """
    if attention_mask.dtype.kind in "iu" and attention_mask.size and (most := int(attention_mask.max())) > 1:
        raise BatchError(
            f"attention_mask: seen values up to {most}, dtype {attention_mask.dtype}. Expected 0 and 1. {UNPACK}"
        )
    return attention_mask


def host_array(value: Any, hidden: Any = np.nan) -> np.ndarray:
    """A numpy array of any tensor or array, on the host; half precisions become float32.

    Args:
        value: the tensor or array.
        hidden: replaces the values that a numpy mask hides; integers become float32 for NaN.
    """
    if hasattr(value, "detach"):
        value = value.detach()
        if str(value.dtype) in ("torch.bfloat16", "torch.float16"):
            value = value.float()
        return value.cpu().numpy()
    if isinstance(value, np.ma.MaskedArray):
        needs_nan = isinstance(hidden, float) and value.dtype.kind != "f"
        return np.ma.filled(value.astype(np.float32) if needs_nan else value, hidden)
    return np.asarray(value)


def _whole_numbers(values: np.ndarray) -> np.ndarray:
    """Integers as they are; of floats, and of integers without sign, -1 where 64 bits hold no such number."""
    if values.dtype.kind != "f" and values.dtype != np.uint64:
        return values
    held = (values >= LEAST_INT) & (values < -LEAST_INT)
    return np.where(held, values, 0).astype(np.int64) - ~held


def _token_reward_sums(part: CapturedPart) -> np.ndarray:
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


UNKNOWN = -1
"""A group that the ledger finds by the prompt."""
_LIMIT = 1 << 62


class GroupNumbers:
    """The numbers of one step and split: an id has the same one in every call, two ids never do.

    Args:
        first: the first number that is made up.
    """

    def __init__(self, first: int = 0) -> None:
        self._first = self._next = first
        self._numbers: dict[Hashable, int] = {}
        self._taken: set[int] = set()
        self._n_calls = 0
        self._lock = threading.Lock()

    def call(self) -> int:
        """A number for one more call, so that its groups without ids differ from those of other calls."""
        with self._lock:
            self._n_calls += 1
            return self._n_calls

    def of(self, ids: Sequence[Hashable]) -> np.ndarray:
        """The number of each id: its own where it is an int that no other id has yet.

        Args:
            ids: B ids; -1 is unknown and stays so. An element of a list has its place there, where that is free,
                so that a dropped element does not shift those after it.

        Returns:
            int64 [B].
        """
        with self._lock:
            return np.asarray([self._number(group) for group in ids], np.int64)

    def _number(self, group: Hashable) -> int:
        if isinstance(group, int) and group == UNKNOWN:
            return UNKNOWN
        number = self._numbers.get(group)
        if number is None:
            wanted = self._first + group.index_in_list if isinstance(group, ListElement) else group
            own = isinstance(wanted, int) and 0 <= wanted < _LIMIT and wanted not in self._taken
            number = self._numbers[group] = int(wanted) if own else self._made_up()  # type: ignore[call-overload]
            self._taken.add(number)
        return number

    def _made_up(self) -> int:
        while self._next in self._taken:
            self._next += 1
        return self._next


MAX_IMAGES = 32
"""Images of a row."""
MAX_IMAGE_BYTES = 8 * MB
"""Bytes of images that a hand-over copies; those of paths are read by the worker."""


def plain_images(rows: Sequence[Any]) -> list[list[dict[str, str]] | None]:
    """The images of B rows.

    Args:
        rows: for each row a list of paths or bytes, one of them alone, or None.

    Returns:
        For each row None or its images, each `{"path": absolute path}`, `{"data": base64}` or, for what cannot be
        taken along, `{"left_out": a sentence}`.
    """
    budget = _Budget(MAX_IMAGE_BYTES)
    return [None if row is None else _images(row, budget) for row in rows]


class _Budget:
    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, size: int) -> bool:
        fits = size <= self.left
        self.left -= size if fits else 0
        return fits


def _images(row: Any, budget: _Budget) -> list[dict[str, str]]:
    given = [row] if isinstance(row, (str, os.PathLike, bytes, bytearray, memoryview)) else row
    if not isinstance(given, Sequence):
        return [{"left_out": f"images: seen {type(row).__name__}. Expected a list of paths or bytes."}]
    found = [_image(image, budget) for image in given[:MAX_IMAGES]]
    beyond = len(given) - MAX_IMAGES
    if beyond > 0:
        found.append({"left_out": f"{beyond} further images: a row keeps {MAX_IMAGES} at most."})
    return found


def _image(image: Any, budget: _Budget) -> dict[str, str]:
    if isinstance(image, (str, os.PathLike)):
        path = os.fspath(image)
        if isinstance(path, str):
            return {"path": str(Path.cwd() / path)}
    if isinstance(image, (bytes, bytearray, memoryview)):
        size = len(image) if not isinstance(image, memoryview) else image.nbytes
        if budget.take(size):
            return {"data": base64.b64encode(image).decode("ascii")}
        return {
            "left_out": f"an image of {size:,} bytes: a hand-over copies {MAX_IMAGE_BYTES:,} bytes of images. Give paths."
        }
    return {"left_out": f"an image: seen {type(image).__name__}. Expected a path or bytes."}
