"""Totals over the ranks of a torch.distributed group: every rank gets the same, whoever had the key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rollout_traces.stats.tracker.record import Totals
from rollout_traces.stats.tracker.reduce_type import ReduceType


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
