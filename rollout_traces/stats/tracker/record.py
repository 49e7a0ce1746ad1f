"""The values recorded under a key, and how they become one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any


class ReduceType(Enum):
    """The ways in which values recorded under a key become what is exported."""

    AVG_MIN_MAX = auto()
    """`key/avg`, `key/min` and `key/max` over the tokens of the denominator."""
    AVG = auto()
    """The mean over the tokens of the denominator."""
    SUM = auto()
    """The sum over the tokens of the denominator."""
    MIN = auto()
    """The smallest value."""
    MAX = auto()
    """The largest value."""
    SCALAR = auto()
    """The mean of plain numbers, and how many there were under `key__count`."""


@dataclass
class StatRecord:
    """The values recorded under one key.

    The parts are 0-dimensional tensors on the device that they were computed on, or floats, so that
    recording never waits for a device.

    Attributes:
        reduce_type: how they become one.
        denominator: full key of the mask that they were taken over; None for masks and scalars.
        sums: one sum a recorded value.
        counts: one count a recorded value.
        minima: one minimum a recorded tensor, inf where the mask was empty.
        maxima: one maximum a recorded tensor, -inf where the mask was empty.
        masks: for a denominator, the masks in the order recorded.
    """

    reduce_type: ReduceType
    denominator: str | None = None
    sums: list[Any] = field(default_factory=list)
    counts: list[Any] = field(default_factory=list)
    minima: list[Any] = field(default_factory=list)
    maxima: list[Any] = field(default_factory=list)
    masks: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Totals:
    """A record summed up, on one rank or over several.

    Attributes:
        reduce_type: how it becomes what is exported.
        sum: sum of the values.
        count: number of tokens or numbers.
        min: smallest value, inf when there was none, NaN when a value was NaN.
        max: largest value, -inf when there was none, NaN when a value was NaN.
    """

    reduce_type: ReduceType
    sum: float = 0.0
    count: float = 0.0
    min: float = float("inf")
    max: float = float("-inf")

    @classmethod
    def of(cls, record: StatRecord) -> Totals:
        """Sums up a record; this is where a device is waited for."""
        return cls(
            record.reduce_type,
            sum(map(float, record.sums)),
            sum(map(float, record.counts)),
            smallest(map(float, record.minima)),
            -smallest(-float(value) for value in record.maxima),
        )


def smallest(values: Iterable[float]) -> float:
    """The smallest value: inf of none, NaN as soon as one is NaN, whatever their order."""
    least = math.inf
    for value in values:
        if math.isnan(value):
            return math.nan
        least = min(least, value)
    return least


def mask_record(record: StatRecord, mask: Any) -> None:
    """Adds a denominator's mask, a bool tensor of any shape."""
    record.masks.append(mask.detach().clone())
    record.sums.append(mask.sum())


def value_record(record: StatRecord, value: Any, mask: Any) -> None:
    """Adds a float tensor taken over a mask of the same shape."""
    import torch

    value = value.detach()
    record.sums.append(torch.where(mask, value, 0.0).sum(dtype=torch.float64))
    record.counts.append(mask.sum())
    if record.reduce_type in (ReduceType.AVG_MIN_MAX, ReduceType.MIN):
        record.minima.append(torch.where(mask, value, float("inf")).min())
    if record.reduce_type in (ReduceType.AVG_MIN_MAX, ReduceType.MAX):
        record.maxima.append(torch.where(mask, value, float("-inf")).max())
