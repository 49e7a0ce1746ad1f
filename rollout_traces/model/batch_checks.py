"""Reasons to refuse a batch: values that are no numbers, shapes that disagree, sequences packed into one row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rollout_traces.errors import BatchError

ROW_FLOATS = ("rewards", "raw_rewards")
PACKED_KEYS = ("cu_seqlens", "cu_seqlens_q", "cu_seq_lens_q", "cu_seqlens_padded", "cu_seq_lens")
"""Keys in which packed batches say at which token each sequence begins."""
UNPACK = (
    "The sequences are packed. Expected one row a rollout, [B, T]: unpack them before they are handed over, "
    "`torch.nn.utils.rnn.pad_sequence(input_ids.split(lengths), batch_first=True)`, and so for every key of a token."
)


def as_array(key: str, value: Any) -> Any:
    """Lists become numpy arrays, None a masked NaN; whatever has a shape and a dtype stays what and where it is."""
    if value is None:
        return value
    if getattr(value, "is_nested", False):  # its shape raises
        raise BatchError(
            f"{key}: seen a nested tensor, dtype {value.dtype}. Expected one padded tensor [B, T]: "
            "torch.nested.to_padded_tensor(value, 0), and the padding marked in attention_mask."
        )
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _with_values(key, value)
    if isinstance(value, Mapping):
        raise BatchError(_said_of_names(key, "a mapping", value))
    if key in ROW_FLOATS and isinstance(value, Sequence) and any(isinstance(row, Mapping) for row in value):
        named = next(row for row in value if isinstance(row, Mapping))
        raise BatchError(_said_of_names(key, "a list of mappings", named))
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise BatchError(
            f"{key}: seen a ragged {type(value).__name__} ({error}). Expected rows of one length; pad them "
            "and mark the padding in attention_mask."
        ) from error
    if array.dtype == object:
        unknown = np.vectorize(lambda item: item is None, otypes=[bool])(array)
        try:
            array = array.astype(np.float64)
            array = np.ma.masked_array(array, unknown) if unknown.any() else array
        except (TypeError, ValueError) as error:
            raise BatchError(
                f"{key}: seen {type(value).__name__} with values that are not numbers ({error}). Expected numbers."
            ) from error
    if array.dtype.kind not in "biuf":
        raise BatchError(f"{key}: seen dtype {array.dtype}. Expected numbers.")
    return array


def _with_values(key: str, value: Any) -> Any:
    """A tensor or array, where it has values and one shape."""
    seen = f"shape {tuple(value.shape)}, dtype {value.dtype}"
    if getattr(getattr(value, "device", None), "type", "") == "meta":
        raise BatchError(
            f"{key}: seen a tensor on the meta device, {seen}, which has no values. Expected one on the host or a GPU."
        )
    if "sparse" in str(getattr(value, "layout", "")):
        raise BatchError(f"{key}: seen a sparse tensor, {seen}. Expected a dense one: value.to_dense().")
    return value


def _said_of_names(key: str, what: str, named: Mapping[Any, Any]) -> str:
    names = ", ".join(str(name) for name in list(named)[:8]) or "none"
    advice = " Hand over the components as reward_components={name: [B]}, and their sum as rewards."
    expected = "[B]: one number a rollout" if key in ROW_FLOATS else "an array"
    return (
        f"{key}: seen {what} with the keys {names}. Expected {expected}.{advice if key in ROW_FLOATS else ''}"
    )


def check_not_packed(data: Mapping[str, Any], ids: Any) -> None:
    """Refuses several sequences in one row, as far as shapes and values on the host tell.

    Raises:
        BatchError: it is packed; the text says what to hand over instead.
    """
    if getattr(ids, "is_nested", False):  # its shape raises; it is refused where it is looked at
        return
    shape = tuple(getattr(ids, "shape", ())) or (len(ids),)
    n_rows = shape[0] if len(shape) == 2 else 1
    for key in PACKED_KEYS:
        edges = data.get(key)
        n_edges = 0 if edges is None or isinstance(edges, (int, float)) else len(edges)
        if n_edges - 1 > n_rows:
            raise BatchError(
                f"{key}: {n_edges} edges, so {n_edges - 1} sequences, in input_ids of shape {shape}. {UNPACK}"
            )
    positions, attention = data.get("position_ids"), data.get("attention_mask")
    if positions is None or attention is None or any(map(_is_on_a_device, (positions, attention))):
        return
    at, there = np.asarray(positions), np.asarray(attention) != 0
    if at.shape != there.shape or at.ndim != 2:
        return
    again = (at[:, 1:] < at[:, :-1]) & there[:, 1:] & there[:, :-1]
    if again.any():
        row = int(again.any(axis=1).argmax())
        raise BatchError(
            f"position_ids: row {row} begins anew {int(again[row].sum())} times among its attended tokens. {UNPACK}"
        )


def _is_on_a_device(value: Any) -> bool:
    return getattr(getattr(value, "device", None), "type", "cpu") != "cpu"


def check_row_array(key: str, value: Any, B: int) -> Any:
    """An array [B], also of a number where B is 1, or of [B, 1]; raises BatchError on any other shape."""
    shape = tuple(value.shape)
    if shape == () and B == 1:
        return value.reshape(1)
    if shape == (B, 1):
        return value.reshape(B)
    if shape != (B,):
        raise BatchError(
            f"{key}: seen shape {shape}, dtype {value.dtype}. Expected [B] = ({B},): one value a rollout."
        )
    return value


def check_row_list(key: str, value: Any, B: int) -> None:
    """Raises BatchError on what is no list of B values."""
    if isinstance(value, (str, bytes)) or not hasattr(value, "__len__"):
        raise BatchError(
            f"{key}: seen {type(value).__name__}. Expected a list of B = {B} values, one a rollout."
        )
    if len(value) != B:
        raise BatchError(f"{key}: seen {len(value)} values. Expected B = {B}, one a rollout.")
    if key == "messages" and B > 0 and len(value) and isinstance(value[0], Mapping):
        raise BatchError(
            "messages: seen a flat list of messages. Expected B conversations, one list of messages a rollout."
        )
