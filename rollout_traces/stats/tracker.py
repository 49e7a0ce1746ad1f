"""Statistics of a training step, in the shape of AReaL's `areal.utils.stats_tracker`.

    from rollout_traces import stats_tracker

    tracker = stats_tracker.get("rollout")
    tracker.denominator(n_tokens=mask)
    tracker.stat(denominator="n_tokens", entropy=entropy)
    data = stats_tracker.export_all(reduce_group=group)

Torch is imported when the first tensor is recorded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any, TypeVar

from rollout_traces.errors import extra
from rollout_traces.stats.tracker_merge import (
    Export,
    MergeRule,
    ReduceType,
    StatRecord,
    Totals,
    export_totals,
    mask_record,
    merge_exports,
    reduce_totals,
    shared_names,
    value_record,
)

log = logging.getLogger("rollout_traces.stats.tracker")

__all__ = [
    "DEFAULT_TRACKER",
    "TRACKERS",
    "DistributedStatsTracker",
    "Export",
    "MergeRule",
    "ReduceType",
    "StatsTracker",
    "denominator",
    "disable_scope",
    "export",
    "export_all",
    "get",
    "merge_exports",
    "record_timing",
    "scalar",
    "scope",
    "scope_func_wrapper",
    "stat",
]

TIMING = "timeperf"
Function = TypeVar("Function", bound=Callable[..., Any])


class StatsTracker:
    """Named values of a step, under nested scopes; safe to use from several threads.

    A replacement for AReaL's `DistributedStatsTracker`: same calls, same keys, same errors. Scopes
    belong to the thread or task that opened them. Tensors are reduced when they are recorded and never
    kept; what is kept of a denominator is its mask, for the statistics that follow.

    Args:
        name: put before every key.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name.strip("/")
        self._lock = Lock()
        self._records: dict[str, StatRecord] = {}
        self._scopes: ContextVar[tuple[str, ...]] = ContextVar(f"scopes of tracker {name!r}", default=())
        self._prefixed: ContextVar[bool] = ContextVar(f"prefix of tracker {name!r}", default=True)

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Puts a name before the keys recorded inside; scopes nest, joined by `/`."""
        token = self._scopes.set((*self._scopes.get(), name.strip("/")))
        try:
            yield
        finally:
            self._scopes.reset(token)

    @contextmanager
    def disable_scope(self) -> Iterator[None]:
        """Records without any scope, the tracker's own name included."""
        scopes, prefixed = self._scopes.set(()), self._prefixed.set(False)
        try:
            yield
        finally:
            self._scopes.reset(scopes)
            self._prefixed.reset(prefixed)

    def scope_func_wrapper(self, name: str) -> Callable[[Function], Function]:
        """Decorates a function to run inside a scope."""
        return self.scope(name)

    @contextmanager
    def record_timing(self, key: str) -> Iterator[None]:
        """Records the seconds spent inside under `timeperf/<key>`, whatever the scope."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._add_scalar(f"{TIMING}/{key}", time.perf_counter() - start)

    def scalar(self, **values: Any) -> None:
        """Records plain numbers; exported as their mean and how many there were, `<key>__count`."""
        for key, value in values.items():
            self._add_scalar(self._full(key), float(value))

    def denominator(self, **masks: Any) -> None:
        """Records the masks that later statistics are taken over; exported as their sums.

        Args:
            **masks: bool tensors of any shape, not empty.

        Raises:
            ValueError: not a bool tensor, or an empty one.
        """
        with extra("train", "a denominator"):
            import torch

        for key, mask in masks.items():
            if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
                raise ValueError(f"`{key}`: seen {_seen(mask)}. A denominator must be a bool tensor.")
            if mask.numel() == 0:
                raise ValueError(f"`{key}`: seen {_seen(mask)}. A denominator must not be empty.")
            with self._lock:
                mask_record(self._record(self._full(key), ReduceType.SUM, None), mask)

    def stat(self, denominator: str, reduce_type: ReduceType | None = None, **values: Any) -> None:
        """Records tensors taken over a mask.

        The n-th tensor of a key goes with the n-th mask of its denominator, or with the last one when
        there are fewer.

        Args:
            denominator: key of the mask, recorded before, in the same scope.
            reduce_type: AVG_MIN_MAX when None.
            **values: float tensors of the mask's shape.

        Raises:
            ValueError: no such denominator, not a float tensor, an empty one, another shape than the
                mask's, or SCALAR.
        """
        kind = ReduceType.AVG_MIN_MAX if reduce_type is None else reduce_type
        if not isinstance(kind, ReduceType):
            raise ValueError(f"reduce_type: seen {kind!r}. Expected a ReduceType.")
        if kind is ReduceType.SCALAR:
            raise ValueError(
                f"{', '.join(f'`{key}`' for key in values)}: SCALAR is for plain numbers, use scalar(). "
                "Expected AVG_MIN_MAX, AVG, SUM, MIN or MAX for a tensor."
            )
        for key, value in values.items():
            _check_float(key, value)
            with self._lock:
                self._add_tensor(self._full(key), value, self._full(denominator), kind)

    def export(
        self,
        key: str | None = None,
        reduce_group: Any = None,
        reset: bool = True,
        key_sync_group: Any = None,
    ) -> Export:
        """Exports what was recorded since the last export.

        Args:
            key: one key, in the current scope; None for all.
            reduce_group: torch.distributed group to reduce over; every rank of it has to call, and gets
                the same result, also for keys that it has not recorded itself.
            reset: forget what is exported.
            key_sync_group: torch.distributed group whose ranks agree on the keys first; `reduce_group` when None.

        Returns:
            Floats by key; a key without a value under its mask is absent, one with a NaN is NaN.
        """
        with self._lock:
            full = None if key is None else self._full(key)
            chosen = {k: record for k, record in self._records.items() if full in (None, k)}
            totals = {name: Totals.of(record) for name, record in chosen.items()}
            if reset:
                self._records = {k: v for k, v in self._records.items() if k not in chosen}
        if reduce_group is not None:
            totals = reduce_totals(totals, reduce_group, key_sync_group)
        exported = Export()
        for name, total in totals.items():
            exported.add(export_totals(name, total))
        return exported

    def _full(self, key: str) -> str:
        name = (self.name,) if self.name and self._prefixed.get() else ()
        return "/".join((*name, *self._scopes.get(), key))

    def _record(self, full_key: str, kind: ReduceType, denominator: str | None) -> StatRecord:
        record = self._records.get(full_key)
        if record is None:
            record = self._records[full_key] = StatRecord(kind, denominator)
        if record.reduce_type is not kind:
            raise ValueError(
                f"`{full_key}`: recorded with {record.reduce_type.name} before, now with {kind.name}. "
                "Expected one reduce type a key between two exports."
            )
        return record

    def _add_scalar(self, full_key: str, value: float) -> None:
        with self._lock:
            record = self._record(full_key, ReduceType.SCALAR, None)
            record.sums.append(value)
            record.counts.append(1.0)

    def _add_tensor(self, full_key: str, value: Any, denominator: str, kind: ReduceType) -> None:
        masks = self._records[denominator].masks if denominator in self._records else []
        if not masks:
            known = ", ".join(f"`{name}`" for name, record in self._records.items() if record.masks)
            raise ValueError(
                f"`{full_key}`: its denominator `{denominator}` does not exist. Recorded denominators: "
                f"{known or 'none'}. Call denominator() before stat(), in the same scope."
            )
        existing = self._records.get(full_key)
        n_before = len(existing.sums) if existing is not None else 0
        mask = masks[min(n_before, len(masks) - 1)]
        if mask.shape != value.shape:
            raise ValueError(
                f"`{full_key}`: seen shape {tuple(value.shape)}, its denominator `{denominator}` has "
                f"{tuple(mask.shape)}. Expected equal shapes."
            )
        record = self._record(full_key, kind, denominator)
        value_record(record, value, mask.to(value.device))


def _check_float(key: str, value: Any) -> None:
    with extra("train", "a statistic"):
        import torch

    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        raise ValueError(f"`{key}`: seen {_seen(value)}. A statistic must be a float tensor.")
    if value.numel() == 0:
        raise ValueError(f"`{key}`: seen {_seen(value)}. A statistic must not be empty.")


def _seen(value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"shape {tuple(value.shape)}, dtype {value.dtype}"
    return f"{type(value).__name__} {value!r}"


DistributedStatsTracker = StatsTracker
"""The name that AReaL gives it."""

DEFAULT_TRACKER = StatsTracker()
TRACKERS: dict[str, StatsTracker] = {"": DEFAULT_TRACKER}
_LOCK = Lock()

stat = DEFAULT_TRACKER.stat
denominator = DEFAULT_TRACKER.denominator
export = DEFAULT_TRACKER.export
scope = DEFAULT_TRACKER.scope
disable_scope = DEFAULT_TRACKER.disable_scope
scalar = DEFAULT_TRACKER.scalar
record_timing = DEFAULT_TRACKER.record_timing
scope_func_wrapper = DEFAULT_TRACKER.scope_func_wrapper


def get(name: str = "") -> StatsTracker:
    """The tracker of a name, made when it is first asked for; its name is the prefix of its keys."""
    with _LOCK:
        if name not in TRACKERS:
            TRACKERS[name] = StatsTracker(name)
        return TRACKERS[name]


def export_all(reduce_group: Any = None, reset: bool = True, key_sync_group: Any = None) -> Export:
    """Exports all trackers as one.

    Args:
        reduce_group: torch.distributed group to reduce over. Every rank of it has to call, and gets the
            same result, also for trackers and keys that only some ranks have.
        reset: forget what is exported.
        key_sync_group: torch.distributed group whose ranks agree on trackers and keys first, every rank of which
            has to call; `reduce_group` when None.

    Returns:
        Floats by key. A key that two trackers export is reported in the log; the later tracker's is kept.
    """
    with _LOCK:
        names = list(TRACKERS)
    if reduce_group is not None:
        names = shared_names(names, reduce_group if key_sync_group is None else key_sync_group)
    exported = Export()
    for name in names:
        part = get(name).export(reduce_group=reduce_group, reset=reset, key_sync_group=key_sync_group)
        doubled = sorted(set(part) & set(exported))
        if doubled:
            log.warning("two trackers export %s; the one of %r is kept.", ", ".join(doubled), name)
        exported.add(part)
    return exported
