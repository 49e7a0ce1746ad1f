"""Handles of tensors that lie elsewhere, resolved through a buffer that has to be cleared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

_storage: dict[Any, torch.Tensor] = {}
_fetch_buffer: dict[Any, torch.Tensor] = {}


@dataclass
class TensorShardInfo:
    shard_id: Any
    node_addr: str


@dataclass
class RTensor:
    shard: TensorShardInfo
    data: torch.Tensor

    def to_local(self) -> torch.Tensor:
        if self.data.is_meta:
            self.data = _fetch_buffer.setdefault(self.shard.shard_id, _storage[self.shard.shard_id])
        return self.data

    @staticmethod
    def remotize(obj: Any, node_addr: str) -> Any:
        if isinstance(obj, torch.Tensor):
            shard = TensorShardInfo(len(_storage), node_addr)
            _storage[shard.shard_id] = obj
            return RTensor(shard, obj.to("meta"))
        return _mapped(obj, torch.Tensor, lambda tensor: RTensor.remotize(tensor, node_addr))

    @staticmethod
    def localize(obj: Any) -> Any:
        return _mapped(obj, RTensor, RTensor.to_local)

    @staticmethod
    def collect_shards(obj: Any) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        _mapped(obj, RTensor, lambda r: found.setdefault(r.shard.node_addr, []).append(r.shard.shard_id))
        return found

    @property
    def shape(self):
        return self.data.shape

    @property
    def dtype(self):
        return self.data.dtype

    @property
    def device(self):
        return self.data.device

    @property
    def ndim(self):
        return self.data.ndim


def clear_fetch_buffer(shard_ids: Iterable[Any] | None = None) -> int:
    ids = list(_fetch_buffer if shard_ids is None else shard_ids)
    return sum(_fetch_buffer.pop(shard_id, None) is not None for shard_id in ids)


def flatten_shard_ids(obj: Any) -> list[Any]:
    return [shard_id for ids in RTensor.collect_shards(obj).values() for shard_id in ids]


def _mapped(obj: Any, kind: type, function: Any) -> Any:
    if isinstance(obj, kind):
        return function(obj)
    if isinstance(obj, dict):
        return {key: _mapped(value, kind, function) for key, value in obj.items()}
    if isinstance(obj, (list, tuple)):
        return [_mapped(item, kind, function) for item in obj]
    return obj
