"""The values recorded under a key, how they become one; and records of several ranks as one: over a process group, or from
what each exported.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

COUNT = "__count"


@dataclass(frozen=True)
class MergeRule:
    """The rule for merging an exported key with the same key of another worker.

    Attributes:
        reduce_type: AVG, SUM, MIN, MAX or SCALAR.
        weight: what an average was taken over.
    """

    reduce_type: ReduceType
    weight: float = 1.0


class Export(dict[str, float]):
    """Exported values by key; a plain dict, and beside it how each key merges.

    Attributes:
        rules: key -> its merge rule; travels with the export when it is pickled or copied.
    """

    def __init__(self, values: Mapping[str, float] | None = None, rules: Any = None) -> None:
        super().__init__(values or {})
        self.rules: dict[str, MergeRule] = dict(rules or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return Export, (dict(self), self.rules)

    def add(self, other: Export) -> None:
        """Takes over the keys of another export."""
        self.update(other)
        self.rules |= other.rules


def export_totals(key: str, total: Totals) -> Export:
    """Makes a key's totals into what is exported; empty when there was nothing under its mask."""
    kind = total.reduce_type
    mean = total.sum / total.count if total.count else None
    least, largest = (total.min, total.max) if total.count else (None, None)
    if kind is ReduceType.AVG_MIN_MAX:
        found = [
            (f"{key}/avg", mean, MergeRule(ReduceType.AVG, total.count)),
            (f"{key}/min", least, MergeRule(ReduceType.MIN)),
            (f"{key}/max", largest, MergeRule(ReduceType.MAX)),
        ]
    elif kind is ReduceType.SCALAR:
        found = [
            (key, mean, MergeRule(kind, total.count)),
            (f"{key}{COUNT}", int(total.count), MergeRule(ReduceType.SUM)),
        ]
    else:
        values = {
            ReduceType.AVG: mean,
            ReduceType.SUM: total.sum,
            ReduceType.MIN: least,
            ReduceType.MAX: largest,
        }
        found = [(key, values[kind], MergeRule(kind, total.count))]
    rules = {name: rule for name, value, rule in found if value is not None}
    return Export({name: value for name, value, _ in found if value is not None}, rules)


def merge_exports(exports: Iterable[Mapping[str, float]]) -> Export:
    """Merges what several workers exported.

    A key with a count beside it merges as `sum(value * count) / sum(count)`. Any other key merges by its
    reduce type, averages by what they were taken over. For plain dicts, which have lost the types, keys
    that end in `/min` and `/max` merge as such and the others as an average with equal weights. NaN of one
    worker is NaN of all.

    Args:
        exports: what `export` or `export_all` gave on each worker.

    Returns:
        One export with the keys of all of them.
    """
    parts = list(exports)
    merged = Export()
    for key in dict.fromkeys(key for part in parts for key in part):
        having = [part for part in parts if key in part]
        rules = [_rule(part, key) for part in having]
        merged.add(_merge_key(key, [float(part[key]) for part in having], rules))
    return merged


def _merge_key(key: str, values: list[float], rules: list[MergeRule]) -> Export:
    kind = rules[0].reduce_type
    if kind is ReduceType.SUM:
        total = sum(values)
        return Export({key: int(total) if key.endswith(COUNT) else total}, {key: MergeRule(kind)})
    if kind in (ReduceType.MIN, ReduceType.MAX):
        extreme = smallest(values) if kind is ReduceType.MIN else -smallest(-value for value in values)
        return Export({key: extreme}, {key: MergeRule(kind)})
    weight = sum(rule.weight for rule in rules)
    if not weight:
        return Export()
    pairs = zip(values, rules, strict=True)
    mean = sum(value * rule.weight for value, rule in pairs if rule.weight) / weight
    return Export({key: mean}, {key: MergeRule(kind, weight)})


def _rule(part: Mapping[str, float], key: str) -> MergeRule:
    if isinstance(part, Export) and key in part.rules:
        return part.rules[key]
    if key.endswith(COUNT):
        return MergeRule(ReduceType.SUM)
    if key + COUNT in part:
        return MergeRule(ReduceType.SCALAR, float(part[key + COUNT]))
    if key.endswith("/min"):
        return MergeRule(ReduceType.MIN)
    if key.endswith("/max"):
        return MergeRule(ReduceType.MAX)
    return MergeRule(ReduceType.AVG)


def reduce_totals(mine: Mapping[str, Totals], group: Any, key_sync_group: Any = None) -> dict[str, Totals]:
    """Sums totals up over a process group; every rank of it has to call this.

    Args:
        mine: this rank's totals by key.
        group: the process group.
        key_sync_group: the process group whose ranks agree on the keys first; `group` when None. A larger one
            keeps ranks in step where only some of them record a key, as the last stage of a pipeline does.

    Returns:
        The totals of all keys that any rank of `group` has, equal on every rank, in the order of their keys.
        NaN of one rank is NaN of all.

    Raises:
        ValueError: ranks recorded a key with different reduce types. Raised on every rank.
    """
    import torch
    import torch.distributed as dist

    names_group = group if key_sync_group is None else key_sync_group
    types = _shared_types({key: total.reduce_type for key, total in mine.items()}, names_group)
    keys = sorted(types)
    if not keys:
        return {}
    local = [mine.get(key, Totals(types[key])) for key in keys]
    device = _device_of(group)
    rows = [
        (t.sum, t.count, math.isnan(t.min), math.isnan(t.max), key in mine)
        for key, t in zip(keys, local, strict=True)
    ]
    added = torch.tensor(rows, dtype=torch.float64, device=device)
    least = torch.tensor([[t.min, -t.max] for t in local], dtype=torch.float64, device=device)
    dist.all_reduce(added, group=group)
    dist.all_reduce(
        least.nan_to_num_(nan=math.inf, posinf=math.inf, neginf=-math.inf), op=dist.ReduceOp.MIN, group=group
    )
    reduced = {}
    for key, (total, count, nan_min, nan_max, n_ranks), (low, negative_high) in zip(
        keys, added.tolist(), least.tolist(), strict=True
    ):
        if n_ranks:
            extremes = (math.nan if nan_min else low, math.nan if nan_max else -negative_high)
            reduced[key] = Totals(types[key], total, count, *extremes)
    return reduced


def shared_names(mine: list[str], group: Any) -> list[str]:
    """The names that any rank of a process group has, sorted."""
    return sorted({name for names in _gathered(mine, group) for name in names})


def _shared_types(mine: dict[str, ReduceType], group: Any) -> dict[str, ReduceType]:
    shared: dict[str, ReduceType] = {}
    for rank, types in enumerate(_gathered(mine, group)):
        for key, reduce_type in types.items():
            if shared.setdefault(key, reduce_type) is not reduce_type:
                raise ValueError(
                    f"`{key}`: recorded with {reduce_type.name} on rank {rank} of the group and with "
                    f"{shared[key].name} on an earlier one. Expected one reduce type a key."
                )
    return shared


def _gathered(mine: Any, group: Any) -> list[Any]:
    import torch.distributed as dist

    parts: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(parts, mine, group=group)
    return parts


def _device_of(group: Any) -> Any:
    import torch
    import torch.distributed as dist

    if "nccl" in str(dist.get_backend(group)):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


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
