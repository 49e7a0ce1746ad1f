"""The decoder's input: a caller's tokens and tracks, made into numpy arrays of one length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollout_traces.errors import DecodeError
from rollout_traces.model.transcript import INT_TRACKS
from rollout_traces.model.units import LARGEST_EXACT


@dataclass(frozen=True, eq=False)
class RowArrays:
    """One rollout's arrays, unpadded, n tokens each.

    Attributes:
        input_ids: int64 [n]; -1 where the value given is no integer.
        loss_mask: bool [n].
        response_mask: bool [n].
        tracks: further arrays [n]: int32 for `INT_TRACKS`, float32 else.
        warnings: one sentence each for what had to be coerced.
    """

    input_ids: np.ndarray
    loss_mask: np.ndarray
    response_mask: np.ndarray
    tracks: Mapping[str, np.ndarray]
    warnings: tuple[str, ...] = ()


def row_arrays(
    input_ids: Any,
    *,
    loss_mask: Any = None,
    response_mask: Any = None,
    tracks: Mapping[str, Any] | None = None,
) -> RowArrays:
    """Coerces one rollout's arrays.

    Args:
        input_ids: n token ids; integral floats are taken, anything else becomes -1 and is named.
        loss_mask: n values, nonzero = contributes to the loss; NaN counts as 0 and is named.
        response_mask: n values, nonzero = sampled. When missing: `versions >= 0` where versions are
            given, else the loss mask.
        tracks: further arrays of n numbers by name.

    Raises:
        DecodeError: an array is not one-dimensional, holds no numbers, or has another length than
            `input_ids`; the text names the array and both shapes.
    """
    warnings: list[str] = []
    ids = _ids(_array("input_ids", input_ids), warnings)
    n = len(ids)
    whole = {
        name: _track(name, _array(name, value, n))
        for name, value in (tracks or {}).items()
        if value is not None
    }
    loss = None if loss_mask is None else _mask("loss_mask", _array("loss_mask", loss_mask, n), warnings)
    if response_mask is not None:
        sampled = _mask("response_mask", _array("response_mask", response_mask, n), warnings)
    elif "versions" in whole:
        sampled = whole["versions"] >= 0
    elif loss is not None:
        sampled = loss
    else:
        sampled = np.zeros(n, bool)
        if n:
            warnings.append("no mask and no versions were given: which tokens were sampled is unknown")
    return RowArrays(ids, np.zeros(n, bool) if loss is None else loss, sampled, whole, tuple(warnings))


def _array(name: str, value: Any, n: int | None = None) -> np.ndarray:
    array = np.asarray(value)
    if array.size == 0 and array.ndim == 1:
        array = array.astype(np.int64)
    expected = "one dimension [n]" if n is None else f"shape ({n},), as input_ids has"
    if array.ndim != 1 or (n is not None and len(array) != n):
        raise DecodeError(
            f"{name}: shape {array.shape}, expected {expected}; hand over one rollout without padding"
        )
    if array.dtype.kind not in "biuf":
        raise DecodeError(f"{name}: dtype {array.dtype}, expected integers, floats or booleans")
    return array


def _ids(array: np.ndarray, warnings: list[str]) -> np.ndarray:
    if array.dtype.kind != "f":
        return array.astype(np.int64)
    with np.errstate(invalid="ignore"):
        whole = np.isfinite(array) & (array == np.floor(array)) & (np.abs(array) < LARGEST_EXACT)
    if not whole.all():
        at = int(np.argmin(whole))
        warnings.append(
            f"input_ids: {int((~whole).sum())} of {len(array)} values are no integers "
            f"(the first is {array[at]} at position {at}); they are shown as <unknown -1>"
        )
    return np.where(whole, array, -1).astype(np.int64)


def _mask(name: str, array: np.ndarray, warnings: list[str]) -> np.ndarray:
    if array.dtype.kind == "b":
        return array
    if array.dtype.kind == "f" and np.isnan(array).any():
        warnings.append(f"{name}: {int(np.isnan(array).sum())} of {len(array)} values are NaN, taken as 0")
        array = np.nan_to_num(array, nan=0.0)
    return array != 0


def _track(name: str, array: np.ndarray) -> np.ndarray:
    if name not in INT_TRACKS:
        return array.astype(np.float32)
    if array.dtype.kind == "f":
        array = np.nan_to_num(array, nan=-1.0, posinf=-1.0, neginf=-1.0)
    return array.astype(np.int32)
