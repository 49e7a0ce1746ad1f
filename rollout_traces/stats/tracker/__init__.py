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
from threading import Lock
from typing import Any

from rollout_traces.stats.tracker.merge import Export, MergeRule, ReduceType, merge_exports, shared_names
from rollout_traces.stats.tracker.tracker import StatsTracker

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
