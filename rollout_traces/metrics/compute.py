"""From a step to its metrics: runs the families that can run, keeps the keys that were asked for."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

import numpy as np

from rollout_traces.capture.host_copy import capture
from rollout_traces.errors import ConfigError
from rollout_traces.ledger.build import build_ledger
from rollout_traces.ledger.columns import Ledger
from rollout_traces.ledger.loss_histogram import MAX_SOURCES
from rollout_traces.metrics.registry import (
    FAMILIES,
    Family,
    Key,
    families_off,
    finite_of,
    key_parts,
    may_overlap,
    under,
)
from rollout_traces.metrics.view import StepView, ToolUse, Values
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.model.text import words
from rollout_traces.settings.logger_options import FULL, KeyFilter
from rollout_traces.settings.run_settings import RunSettings

log = logging.getLogger("rollout_traces.metrics")

DEFAULT = "default"
FAILED = "metrics_failed"
"""1 when a family raised; which one and why stands in the log. Never filtered."""
PER_EPISODE = frozenset(
    words(
        "success format_share solved_groups success_standard_error majority_vote pass_at_k group_ties "
        "group_spread"
    )
)
"""Families of groups and pass rates: rows of one episode count once there."""
_WHOLE_STEP_ONLY = ("discarded", "update")
_PER_SOURCE_DEFAULT = ("source/*/reward/mean", "source/*/success/mean")
BESIDE_FAMILIES = ("source/", "discarded/", "flags/", "total/")
"""Beginnings of keys that no family declares: the families' own of each source and of what was left out, flags, and how many rollouts came."""
MAX_KEYS_KEPT = 4096
"""Keys of which a filter remembers whether they were asked for."""
HISTOGRAMS = {"reward/histogram": "reward", "tokens/completion/histogram": "n_sampled"}
"""Key, without the split -> the ledger column it shows."""


def rollout_metrics(
    batch: RolloutBatch | PackedBatch | Mapping[str, Any] | Sequence[Any] | None,
    ledger: Ledger | None = None,
    *,
    keys: str | Sequence[str] = DEFAULT,
    split: str = "rollout",
    settings: RunSettings | None = None,
    tool_use: Mapping[int, ToolUse] | None = None,
    group_scalars: Mapping[str, Sequence[float]] | None = None,
) -> Values:
    """Computes the metrics of a step over all its rollouts, discarded ones included.

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


def metrics_of(view: StepView, keys: str | Sequence[str], split: str) -> Values:
    """As `rollout_metrics`, of a view; `split` stands before the keys."""
    wanted = wanted_metrics(keys)
    off = families_off(wanted.families, view)
    result = _computed([spec for spec in wanted.families if spec.name not in off], view)
    if "source" in wanted.parts:
        result |= _by_source(view)
    if "discarded" in wanted.parts and view.discarded.any():
        result |= under("discarded", _ledger_metrics(view.take(view.discarded)))
    return under(split, {key: value for key, value in result.items() if key == FAILED or wanted.wants(key)})


def missing_inputs(
    batch: RolloutBatch | PackedBatch | None,
    ledger: Ledger | None = None,
    *,
    keys: str | Sequence[str] = FULL,
    settings: RunSettings | None = None,
    tool_use: Mapping[int, ToolUse] | None = None,
) -> dict[str, tuple[str, ...]]:
    """Names the families that are off, and what they lack.

    Args:
        batch: as for `rollout_metrics`.
        ledger: as for `rollout_metrics`.
        keys: families without a key among these are not reported.
        settings: what the run declares.
        tool_use: as for `rollout_metrics`.

    Returns:
        Family name -> the names of the ledger columns, tracks or settings that are missing.
    """
    return missing_of(step_view(batch, ledger, "rollout", settings, tool_use, None), keys)


def missing_of(view: StepView, keys: str | Sequence[str]) -> dict[str, tuple[str, ...]]:
    """As `missing_inputs`, of a view."""
    return families_off(wanted_metrics(keys).families, view)


def check_keys(keys: str | Sequence[str]) -> None:
    """Refuses patterns that match no key of any metric, as misspelled ones do.

    Args:
        keys: as for `rollout_metrics`.

    Raises:
        ConfigError: names the pattern, and keys that are written alike.
    """
    declared = _declared(tuple(FAMILIES.values()))
    names = [keys] if isinstance(keys, str) else keys
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"metric_keys: seen {keys!r}. Expected a pattern, or a list of patterns.")
    for name in names:
        pattern = _without_split(name).removeprefix("!")
        nested = pattern.startswith(("source/", "discarded/"))
        if nested or pattern in (DEFAULT, FULL) or any(may_overlap(pattern, glob) for glob in declared):
            continue
        alike = get_close_matches(pattern, declared, cutoff=0.5)
        raise ConfigError(
            f"metric_keys: {name!r} matches no metric. "
            f"Expected {DEFAULT!r}, {FULL!r} or patterns of the keys in docs/metrics.md"
            + (f", such as {', '.join(alike)}." if alike else ".")
        )


def is_computed(key: str) -> bool:
    """Tells whether a logged key is one that is computed from a step's rollouts, and not one of the trainer's own beside them.

    Args:
        key: with its split, as `rollout/reward/mean`.
    """
    plain = _without_split(key)
    if plain == key:
        return False
    declared = _declared(tuple(FAMILIES.values()))
    return plain.startswith(BESIDE_FAMILIES) or any(fnmatchcase(plain, glob) for glob in declared)


@lru_cache(maxsize=1)
def _declared(families: tuple[Family, ...]) -> tuple[str, ...]:
    return tuple(glob for spec in families for key in spec.keys for glob in key.globs)


def step_histograms(ledger: Ledger, split: str = "rollout") -> dict[str, np.ndarray]:
    """Gives the values behind the histograms of a step.

    Args:
        ledger: every row of the step.
        split: `rollout` or `eval-rollout`.

    Returns:
        `<split>/<key>` -> float64 array of the finite values; a key without any is absent.
    """
    view = StepView(ledger)
    values = {key: view.known(name) for key, name in HISTOGRAMS.items()}
    values["reward/histogram"] = finite_of(view.rewards)[0]
    return {f"{split}/{key}": known for key, known in values.items() if len(known)}


def step_view(
    batch: Any,
    ledger: Ledger | None,
    split: str,
    settings: RunSettings | None,
    tool_use: Mapping[int, ToolUse] | None,
    group_scalars: Mapping[str, Sequence[float]] | None,
) -> StepView:
    """Makes what the families see; arguments as for `rollout_metrics`."""
    settings = settings or RunSettings()
    if batch is None and ledger is None:
        raise ValueError("rollout_metrics: neither a batch nor a ledger. Expected at least one of them.")
    if batch is not None and not isinstance(batch, PackedBatch):
        batch = capture(RolloutBatch.from_any(batch), step=0, split=split)
    if ledger is None:
        ledger = build_ledger(batch, settings)
    not_given = None if batch is None else batch.not_given
    return StepView(ledger, batch, settings, tool_use or {}, group_scalars or {}, not_given)


class WantedMetrics:
    """The metrics that were asked for; arguments as of `wanted_metrics`."""

    def __init__(self, keys: Sequence[str], families: Sequence[Family]) -> None:
        names = [_without_split(name) for name in keys] or [FULL]
        default = [glob for spec in families for key in spec.keys if key.default for glob in key.globs]
        named = {FULL: ("*",), DEFAULT: (*default, *_PER_SOURCE_DEFAULT)}
        # names in the data make new keys at every step
        self.wants = lru_cache(MAX_KEYS_KEPT)(KeyFilter(names, named, "metric_keys"))
        self._asked = [name for name in names if not name.startswith("!")] or [FULL]
        self.families = [spec for spec in families if any(map(self._may_want, spec.keys))]
        parts = ("source", "discarded")
        nested = [*self._asked, *(_PER_SOURCE_DEFAULT if DEFAULT in self._asked else ())]
        self.parts = {part for part in parts if any(_may_name(name, f"{part}/*/*") for name in nested)}

    def _may_want(self, key: Key) -> bool:
        globs = key.globs
        by_default = key.default and DEFAULT in self._asked
        return by_default or any(_may_name(name, glob) for name in self._asked for glob in globs)


def _may_name(asked: str, glob: str) -> bool:
    return asked == FULL or (asked != DEFAULT and may_overlap(asked, glob))


_wanted = lru_cache(WantedMetrics)  # the same is asked for at every step of a run


def wanted_metrics(keys: str | Sequence[str]) -> WantedMetrics:
    """Reads which metrics are asked for, as for `rollout_metrics`, among the families that are registered now."""
    return _wanted((keys,) if isinstance(keys, str) else tuple(keys), tuple(FAMILIES.values()))


def _without_split(pattern: str) -> str:
    mark = "!" if pattern.startswith("!") else ""
    return mark + pattern.removeprefix("!").removeprefix("rollout/").removeprefix("eval-rollout/")


def _computed(families: Iterable[Family], view: StepView) -> Values:
    """The finite values of some families; one that fails leaves `FAILED` in place of its own."""
    result: Values = {}
    for spec in families if view.ledger.n_rows else ():
        try:
            values = spec.function(view.episodes if spec.name in PER_EPISODE else view)
            result |= {key: float(value) for key, value in values.items() if math.isfinite(value)}
        except Exception as error:  # noqa: BLE001  one family must not take the others with it; it is logged
            log.warning("metric family %s could not be computed: %r", spec.name, error)
            result[FAILED] = 1.0
    return result


def _by_source(view: StepView) -> Values:
    sources = view.ledger.get("source")
    names = sorted({name for name in sources.tolist() if name is not None})
    result: Values = {}
    for name, part in key_parts(names).items() if 2 <= len(names) <= MAX_SOURCES else ():
        result |= under(f"source/{part}", _ledger_metrics(view.take(sources == name)))
    return result


def _ledger_metrics(view: StepView) -> Values:
    off = {*families_off(FAMILIES.values(), view), *_WHOLE_STEP_ONLY}
    return _computed([s for s in FAMILIES.values() if s.reads == "ledger" and s.name not in off], view)
