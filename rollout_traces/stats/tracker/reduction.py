"""Totals over the ranks of a torch.distributed group: every rank gets the same, whoever had the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout_traces.stats.tracker.record import Totals
from rollout_traces.stats.tracker.reduce_type import ReduceType


def reduce_totals(mine: Mapping[str, Totals], group: Any) -> dict[str, Totals]:
    """Sums totals up over a process group; every rank of it has to call this.

    Args:
        mine: this rank's totals by key.
        group: the process group.

    Returns:
        The totals of all keys that any rank has, equal on every rank, in the order of their keys.

    Raises:
        ValueError: ranks recorded a key with different reduce types. Raised on every rank.
    """
    import torch
    import torch.distributed as dist

    types = _shared_types({key: total.reduce_type for key, total in mine.items()}, group)
    keys = sorted(types)
    if not keys:
        return {}
    local = [mine.get(key, Totals(types[key])) for key in keys]
    device = _device_of(group)
    added = torch.tensor([[t.sum, t.count] for t in local], dtype=torch.float64, device=device)
    minima = torch.tensor([[t.min, -t.max] for t in local], dtype=torch.float64, device=device)
    dist.all_reduce(added, group=group)
    dist.all_reduce(minima, op=dist.ReduceOp.MIN, group=group)
    return {
        key: Totals(types[key], total, count, low, -negative_high)
        for key, (total, count), (low, negative_high) in zip(
            keys, added.tolist(), minima.tolist(), strict=True
        )
    }


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
