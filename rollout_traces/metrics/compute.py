"""From a step to its metrics: runs the families that can run, keeps the keys that were asked for."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import numpy as np

from rollout_traces.batch import RolloutBatch
from rollout_traces.capture.host_copy import capture
from rollout_traces.errors import ConfigError
from rollout_traces.ledger.build import build_ledger
from rollout_traces.ledger.columns import Ledger
from rollout_traces.metrics.aggregate import key_parts, under
from rollout_traces.metrics.patterns import as_globs, may_overlap
from rollout_traces.metrics.registry import FAMILIES, Family, families_off
from rollout_traces.metrics.tool_use import ToolUse
from rollout_traces.metrics.view import StepView
from rollout_traces.packed_batch import PackedBatch
from rollout_traces.settings.key_filter import FULL, KeyFilter
from rollout_traces.settings.run_settings import RunSettings

log = logging.getLogger("rollout_traces.metrics")

DEFAULT = "default"
MAX_SOURCES = 8
"""With more sources than this in a step, metrics by source are off: they would flood the dashboard."""
MAX_KEYS_KEPT = 4096
"""Keys of which a filter remembers whether they were asked for: names in the data make new ones."""
FAILED = "metrics_failed"
"""1 when a family raised; which one and why stands in the log. Never filtered."""
PER_EPISODE = frozenset(
    (
        "success",
        "format_share",
        "solved_groups",
        "success_standard_error",
        "majority_vote",
        "pass_at_k",
        "group_ties",
        "group_spread",
    )
)
"""Families of groups and pass rates: rows of one episode count once there."""
_WHOLE_STEP_ONLY = ("discarded", "update")
_PER_SOURCE_DEFAULT = ("source/*/reward/mean", "source/*/success/mean")


def rollout_metrics(
    batch: RolloutBatch | PackedBatch | Mapping[str, Any] | Sequence[Any] | None,
    ledger: Ledger | None = None,
    *,
    keys: str | Sequence[str] = DEFAULT,
    split: str = "rollout",
    settings: RunSettings | None = None,
    tool_use: Mapping[int, ToolUse] | None = None,
    group_scalars: Mapping[str, Sequence[float]] | None = None,
) -> dict[str, float]:
    """The metrics of a step over all its rollouts, discarded ones included.

    Args:
        batch: the rollouts: what `RolloutLogger.log_rollouts` takes, or a `PackedBatch`. None computes what
            the ledger alone allows.
        ledger: their ledger; built from the batch when None.
        keys: `default` (about forty keys), `full`, or patterns as in `fnmatch`, with or without the split
            in front; `default` may be one of them, and one that starts with `!` takes keys away.
        split: `rollout` or `eval-rollout`, where the batch does not say.
        settings: what the run declares: clip bounds, ranges, what counts as solved.
        tool_use: row -> `tool_use(transcript)`, for rows that were decoded.
        group_scalars: name -> one value a group.

    Returns:
        Finite floats by key, `<split>/` in front. What lacks its inputs is absent, see `missing_inputs`.

    Raises:
        BatchError: the batch cannot be understood.
        ValueError: neither batch nor ledger is given.
    """
    view = step_view(batch, ledger, split, settings, tool_use, group_scalars)
    if view.batch is not None:
        split = view.batch.split
    elif len(splits := set(view.ledger.get("split").tolist())) == 1:
        split = splits.pop() or split
    return metrics_of(view, keys, split)


def metrics_of(view: StepView, keys: str | Sequence[str], split: str | None = None) -> dict[str, float]:
    """As `rollout_metrics`, of a view.

    Args:
        view: the step.
        keys: as for `rollout_metrics`.
        split: what stands before the keys; the batch's when None.
    """
    if split is None:
        assert view.batch is not None
        split = view.batch.split
    wanted = key_filter(keys)
    result: dict[str, float] = {}
    off = families_off(wanted.families, view)
    for spec in wanted.families:
        if spec.name not in off:
            result |= _run(spec, view)
    if wanted.may_want_under("source"):
        result |= _by_source(view)
    if wanted.may_want_under("discarded"):
        result |= _of_discarded(view)
    return under(split, {key: value for key, value in result.items() if key == FAILED or wanted(key)})


def missing_inputs(
    batch: RolloutBatch | PackedBatch | None,
    ledger: Ledger | None = None,
    *,
    keys: str | Sequence[str] = FULL,
    settings: RunSettings | None = None,
    tool_use: Mapping[int, ToolUse] | None = None,
) -> dict[str, tuple[str, ...]]:
    """Which families are off, and what they lack.

    Args:
        batch: as for `rollout_metrics`.
        ledger: as for `rollout_metrics`.
        keys: families without a key among these are not reported.
        settings: what the run declares.
        tool_use: as for `rollout_metrics`.

    Returns:
        Family name -> the names of the ledger columns, tracks or settings that are missing.
    """
    return dict(missing_of(step_view(batch, ledger, "rollout", settings, tool_use, None), keys))


def missing_of(view: StepView, keys: str | Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """As `missing_inputs`, of a view."""
    return families_off(key_filter(keys).families, view)


def check_keys(keys: str | Sequence[str]) -> None:
    """Refuses patterns that match no key of any metric, as misspelled ones do.

    Args:
        keys: as for `rollout_metrics`.

    Raises:
        ConfigError: names the pattern, and keys that are written alike.
    """
    declared = [glob for spec in FAMILIES.values() for key in spec.keys for glob in as_globs(key.pattern)]
    names = [keys] if isinstance(keys, str) else keys
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"metric_keys: seen {keys!r}. Expected a pattern, or a list of patterns.")
    for name in names:
        pattern = _without_split(name).removeprefix("!")
        nested = pattern.startswith(("source/", "discarded/"))
        if nested or pattern in (DEFAULT, FULL) or any(may_overlap(pattern, glob) for glob in declared):
            continue
        alike = get_close_matches(pattern, declared, n=3, cutoff=0.5)
        raise ConfigError(
            f"metric_keys: {name!r} matches no metric. "
            f"Expected {DEFAULT!r}, {FULL!r} or patterns of the keys in docs/metrics.md"
            + (f", such as {', '.join(alike)}." if alike else ".")
        )


def step_view(
    batch: Any,
    ledger: Ledger | None,
    split: str,
    settings: RunSettings | None,
    tool_use: Mapping[int, ToolUse] | None,
    group_scalars: Mapping[str, Sequence[float]] | None,
) -> StepView:
    """What the families see; arguments as for `rollout_metrics`."""
    settings = settings or RunSettings()
    if batch is None and ledger is None:
        raise ValueError("rollout_metrics: neither a batch nor a ledger. Expected at least one of them.")
    if batch is not None and not isinstance(batch, PackedBatch):
        batch = capture(RolloutBatch.from_any(batch), step=0, split=split)
    if ledger is None:
        ledger = build_ledger(batch, settings)
    not_given = None if batch is None else batch.not_given
    return StepView(ledger, batch, settings, tool_use or {}, group_scalars or {}, not_given)


def key_filter(keys: str | Sequence[str]) -> WantedMetrics:
    """The filter of some keys over the families that are registered; one that was made is used again."""
    names = (keys,) if isinstance(keys, str) else tuple(keys)
    return _key_filter(names, tuple(FAMILIES.values()))


class WantedMetrics:
    """Which metrics were asked for.

    Args:
        keys: as for `rollout_metrics`.
        families: those that are registered.
    """

    def __init__(self, keys: Sequence[str], families: Sequence[Family]) -> None:
        names = [_without_split(name) for name in keys]
        self._asked = [name for name in names if not name.startswith("!")] or [FULL]
        named = {FULL: ("*",), DEFAULT: _default_globs(families)}
        self._is_wanted = lru_cache(MAX_KEYS_KEPT)(KeyFilter(names or [FULL], named, "metric_keys"))
        self._wants_under = {part: self._may_want_under(part) for part in ("source", "discarded")}
        self.families = tuple(spec for spec in families if self.may_want(spec))

    def __call__(self, key: str) -> bool:
        """Whether a key, without its split, was asked for."""
        return self._is_wanted(key)

    def may_want(self, spec: Family) -> bool:
        """Whether a family can give a key that was asked for."""
        return any(self._may_name(name, spec) for name in self._asked)

    @staticmethod
    def _may_name(name: str, spec: Family) -> bool:
        if name == DEFAULT:
            return any(key.default for key in spec.keys)
        return name == FULL or any(
            may_overlap(name, glob) for key in spec.keys for glob in as_globs(key.pattern)
        )

    def may_want_under(self, part: str) -> bool:
        """Whether a key of a part of the step can have been asked for.

        Args:
            part: `source` or `discarded`.
        """
        return self._wants_under[part]

    def _may_want_under(self, part: str) -> bool:
        asked = [name for name in self._asked if name != DEFAULT]
        if DEFAULT in self._asked:
            asked += _PER_SOURCE_DEFAULT
        return FULL in asked or any(may_overlap(pattern, f"{part}/*/*") for pattern in asked)


@lru_cache(16)
def _key_filter(names: tuple[str, ...], families: tuple[Family, ...]) -> WantedMetrics:
    return WantedMetrics(names, families)


def _without_split(pattern: str) -> str:
    mark = "!" if pattern.startswith("!") else ""
    return mark + pattern.removeprefix("!").removeprefix("rollout/").removeprefix("eval-rollout/")


def _default_globs(families: Sequence[Family]) -> tuple[str, ...]:
    declared = (
        glob for spec in families for key in spec.keys if key.default for glob in as_globs(key.pattern)
    )
    return (*declared, *_PER_SOURCE_DEFAULT)


def _run(spec: Family, view: StepView) -> dict[str, float]:
    """The values of a family that is on; a family that fails costs its own keys and says so."""
    if not view.ledger.n_rows:
        return {}
    try:
        values = spec.function(view.episodes if spec.name in PER_EPISODE else view)
    except Exception as error:  # noqa: BLE001  one family must not take the others with it; it is logged
        log.warning("metric family %s could not be computed: %r", spec.name, error)
        return {FAILED: 1.0}
    return {key: float(value) for key, value in values.items() if math.isfinite(value)}


def _by_source(view: StepView) -> dict[str, float]:
    if "source" not in view.ledger.columns:
        return {}
    sources = view.ledger.get("source")
    names = sorted({name for name in sources.tolist() if name is not None})
    if not 2 <= len(names) <= MAX_SOURCES:
        return {}
    result: dict[str, float] = {}
    for name, part in key_parts(names).items():
        result |= under(f"source/{part}", _ledger_metrics(view.take(sources == name)))
    return result


def _of_discarded(view: StepView) -> dict[str, float]:
    if "discard_reason" not in view.ledger.columns:
        return {}
    left_out = np.asarray([reason is not None for reason in view.ledger.get("discard_reason").tolist()], bool)
    if not left_out.any():
        return {}
    return under("discarded", _ledger_metrics(view.take(left_out)))


def _ledger_metrics(view: StepView) -> dict[str, float]:
    result: dict[str, float] = {}
    families = tuple(FAMILIES.values())
    off = families_off(families, view)
    for spec in families:
        if spec.reads == "ledger" and spec.name not in _WHOLE_STEP_ONLY and spec.name not in off:
            result |= _run(spec, view)
    return result
