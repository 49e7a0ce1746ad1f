"""Tensors on a GPU -> pinned memory: one transfer, nothing waited for.

The calling thread only launches work. Every tensor is first copied into one buffer on the device, on the
trainer's own stream: what the trainer launches afterwards, in place or not, comes after it. That buffer then
is copied to pinned memory on a separate stream. Another thread waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rollout_traces.model.batch import (
    MASKS,
    NAMED_FLOATS,
    REQUIRED,
    ROW_FLOATS,
    ROW_LISTS,
    TOKEN_KEYS,
    RolloutBatch,
)
from rollout_traces.model.text import words
from rollout_traces.model.transcript import INT_TRACKS
from rollout_traces.spool.record import ALIGN, GROWTH

_ABOVE_ZERO = ("loss_mask", "response_mask")
"""Masks that hold where they are above 0, as on the host; the attention mask does where it is not 0."""
_HELD_IN_32_BITS = frozenset(words("bool int8 int16 int32 uint8 uint16"))
MAX_IN_FLIGHT = 8
"""Hand-overs that may be on their way to pinned memory."""


class TooManyInFlight(Exception):
    """The thread that writes what arrived has fallen far behind."""


@dataclass(frozen=True, eq=False)
class Slot:
    """The place of one tensor in the buffer.

    Attributes:
        part: the batch it belongs to.
        key: its field.
        name: its name inside a field of named columns, else None.
        tensor: the trainer's tensor.
        dtype: numpy dtype it is carried as.
        at: first byte.
    """

    part: int
    key: str
    name: str | None
    tensor: Any
    dtype: np.dtype
    at: int

    @property
    def n_bytes(self) -> int:
        """Bytes of the slot."""
        return int(np.prod(self.tensor.shape, dtype=np.int64)) * self.dtype.itemsize


class Staged:
    """A hand-over on its way.

    Args:
        batches: its parts, tensors on the device included.
        copier: the device.

    Raises:
        TooManyInFlight: too many are on their way already.
        RuntimeError: the device, or pinned memory, has no room.
    """

    def __init__(self, batches: Sequence[RolloutBatch], copier: CudaCopier) -> None:
        self._copier = copier
        self._slots = _slots(batches)
        self._host_parts = [_owned(batch) for batch in batches]
        n_bytes = self._slots[-1].at + self._slots[-1].n_bytes
        self._host = copier.host_buffer(n_bytes)
        try:
            self._event = self._launch(n_bytes)
        except BaseException:
            copier.give_up(self._host)
            raise

    def _launch(self, n_bytes: int) -> Any:
        buffer = self._copier.device_buffer(n_bytes, self._slots[0].tensor)
        for slot in self._slots:
            place = buffer[slot.at : slot.at + slot.n_bytes].view(_torch_dtype(slot.dtype))
            values = slot.tensor.detach()
            if slot.key in _ABOVE_ZERO:
                values = values > 0
            place.view(tuple(slot.tensor.shape)).copy_(values, non_blocking=True)
        return self._copier.send(buffer, self._host[:n_bytes])

    def arrive(self) -> list[RolloutBatch]:
        """Waits until the transfer is complete. The batches share the pinned memory until `release`."""
        self._copier.wait(self._event)
        memory = self._host.numpy()
        changes: list[dict[str, Any]] = [{} for _ in self._host_parts]
        for slot in self._slots:
            values = (
                memory[slot.at : slot.at + slot.n_bytes].view(slot.dtype).reshape(tuple(slot.tensor.shape))
            )
            if slot.name is None:
                changes[slot.part][slot.key] = values
            else:
                changes[slot.part].setdefault(slot.key, {})[slot.name] = values
        return [_with(part, change) for part, change in zip(self._host_parts, changes, strict=True)]

    def release(self) -> None:
        """Gives the pinned memory back."""
        self._copier.give_back(self._host)


def on_gpu(value: Any) -> bool:
    """True for a tensor on a CUDA (or ROCm) device."""
    return getattr(getattr(value, "device", None), "type", "cpu") == "cuda"


def any_on_gpu(batches: Sequence[RolloutBatch]) -> bool:
    """True when a part holds a tensor on a GPU."""
    return any(
        on_gpu(value)
        for batch in batches
        for values in (_plain_values(batch), *(getattr(batch, key).values() for key in NAMED_FLOATS))
        for value in values
    )


def flat(columns: Mapping[str, Any]) -> list[Any]:
    """The arrays of a join: one a key, or one a part of it."""
    return [item for v in columns.values() for item in (v if isinstance(v, (list, tuple)) else [v])]


def owned_copy(value: Any) -> Any:
    """A copy of an array, or of a list of them, that stays where it is; nothing is waited for."""
    if isinstance(value, (list, tuple)):
        return [owned_copy(item) for item in value]
    if hasattr(value, "detach"):
        return value.detach().clone()
    return np.array(value, subok=True) if hasattr(value, "shape") else value


class CudaCopier:
    """CUDA's streams, events and pinned memory; buffers in pinned memory are kept and used again."""

    def __init__(self) -> None:
        self._streams: dict[Any, Any] = {}
        self._free: list[Any] = []
        self._n_out = 0
        self._lock = threading.Lock()

    def device_buffer(self, n_bytes: int, like: Any) -> Any:
        """A uint8 tensor on the device of `like`."""
        import torch

        return torch.empty(n_bytes, dtype=torch.uint8, device=like.device)

    def host_buffer(self, n_bytes: int) -> Any:
        """A uint8 tensor in pinned memory; the first of a size costs the time of pinning it.

        Raises:
            TooManyInFlight: too many are out already.
            RuntimeError: no more memory can be pinned.
        """
        import torch

        with self._lock:
            if self._n_out >= MAX_IN_FLIGHT:
                raise TooManyInFlight(f"{self._n_out} hand-overs are on their way from the GPU already")
            self._n_out += 1
            for index, buffer in enumerate(self._free):
                if len(buffer) >= n_bytes:
                    return self._free.pop(index)
        try:
            return torch.empty(int(n_bytes * GROWTH), dtype=torch.uint8, pin_memory=True)
        except BaseException:
            self.give_up(None)
            raise

    def send(self, buffer: Any, host: Any) -> Any:
        """Copies on a side stream that first waits for what the trainer's stream was given."""
        import torch

        stream = self._streams.setdefault(buffer.device, None) or torch.cuda.Stream(buffer.device)
        self._streams[buffer.device] = stream
        stream.wait_stream(torch.cuda.current_stream(buffer.device))
        with torch.cuda.stream(stream):
            host.copy_(buffer, non_blocking=True)
            buffer.record_stream(stream)
            event = torch.cuda.Event()
            event.record(stream)
        return event

    def wait(self, event: Any) -> None:
        """Waits for an event."""
        event.synchronize()

    def give_back(self, host: Any) -> None:
        """Keeps a pinned buffer for the next hand-over; smaller ones make room for larger ones."""
        with self._lock:
            self._n_out -= 1
            self._free = sorted([*self._free, host], key=len)[-2:]

    def give_up(self, host: Any) -> None:
        """Counts a pinned buffer as back and forgets it: torch frees it once no transfer uses it."""
        with self._lock:
            self._n_out -= 1


_PLAIN = tuple(dict.fromkeys((*REQUIRED, *TOKEN_KEYS, *ROW_FLOATS, *ROW_LISTS)))


def _plain_values(batch: RolloutBatch) -> Iterator[Any]:
    given = vars(batch)
    return (given[key] for key in _PLAIN if given[key] is not None)


def _arrays(batch: RolloutBatch) -> list[tuple[str, str | None, Any]]:
    """(field, name or None, array) of everything in a batch that may be a tensor."""
    found: list[tuple[str, str | None, Any]] = [
        (key, None, value) for key in _PLAIN if hasattr(value := getattr(batch, key), "shape")
    ]
    for key in NAMED_FLOATS:
        found += [(key, name, value) for name, value in getattr(batch, key).items()]
    return found


def _slots(batches: Sequence[RolloutBatch]) -> list[Slot]:
    slots: list[Slot] = []
    at = 0
    for part, batch in enumerate(batches):
        for key, name, value in _arrays(batch):
            if on_gpu(value):
                slot = Slot(part, key, name, value, _carried_as(key, value), at)
                slots.append(slot)
                at += -(-slot.n_bytes // ALIGN) * ALIGN
    return slots


def _carried_as(key: str, tensor: Any) -> np.dtype:
    if key in MASKS:
        return np.dtype(np.bool_)
    kind = str(tensor.dtype).rpartition(".")[2]
    if key == "input_ids" or (key in INT_TRACKS and kind in _HELD_IN_32_BITS):
        return np.dtype(np.int32)
    if key in ROW_LISTS or key in INT_TRACKS:
        return np.dtype(np.bool_ if kind == "bool" else np.float64 if "float" in kind else np.int64)
    return np.dtype(np.float32 if len(tensor.shape) == 2 else np.float64)


def _owned(batch: RolloutBatch) -> RolloutBatch:
    """A batch whose host arrays and lists are copies: the trainer may change its own at once."""
    change: dict[str, Any] = {
        key: [_own_item(item) for item in value]
        for key in ROW_LISTS
        if isinstance(value := getattr(batch, key), (list, tuple))
    }
    for key, name, value in _arrays(batch):
        if not on_gpu(value):
            copy = owned_copy(value)
            if name is None:
                change[key] = copy
            else:
                change.setdefault(key, {})[name] = copy
    return _with(batch, change)


def _own_item(item: Any) -> Any:
    """A copy of a row's list or mapping; deeper values are shared with the trainer."""
    return list(item) if isinstance(item, list) else dict(item) if isinstance(item, dict) else item


def _with(batch: RolloutBatch, change: dict[str, Any]) -> RolloutBatch:
    named = {key: {**getattr(batch, key), **change[key]} for key in NAMED_FLOATS if key in change}
    return replace(batch, **{**change, **named})


def _torch_dtype(dtype: np.dtype) -> Any:
    import torch

    return {
        "b": torch.bool,
        "i4": torch.int32,
        "i8": torch.int64,
        "f4": torch.float32,
        "f8": torch.float64,
    }["b" if dtype.kind == "b" else f"{dtype.kind}{dtype.itemsize}"]
