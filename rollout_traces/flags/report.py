"""How often flags were raised, as step metrics."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rollout_traces.flags.base import Flag, Severity
from rollout_traces.flags.detect import wanted


@dataclass(frozen=True)
class Alert:
    """What the sink raises in Trackio.

    Attributes:
        title: a few words, the flag's name among them.
        text: one sentence with the share and its threshold.
        level: the flag's severity; Trackio's levels have the same names.
    """

    title: str
    text: str
    level: Severity


def flag_metrics(
    flags_by_row: Mapping[int, Sequence[Flag]],
    n_rows: int,
    split: str,
    *,
    off: Collection[str] = (),
    random_flags: Mapping[int, Sequence[Flag]] | None = None,
    only: Collection[str] | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """Shares of rollouts that carry each flag; a flag that is off has no key.

    Args:
        flags_by_row: what `flag_population` found on the step's rows.
        n_rows: rollouts of the step.
        split: `rollout` or `eval-rollout`.
        off: names of flags whose inputs are missing (`off_flags`).
        random_flags: row -> what `flag_row` found, for every traced row that was chosen uniformly at
            random, those without flags included; None when nothing was traced.
        only: the names that were looked for; None as in `detect.wanted`.
        parameters: the thresholds they were looked for with.

    Returns:
        `<split>/flags/<name>_share` over all rows for flags that need no text, and for those that do
        `<split>/flags/<name>_random_share` over the random rows, of which there are
        `<split>/flags/random_share_n`.
    """
    specs = [spec for spec in wanted(split, only, parameters or {}) if spec.name not in off]
    metrics: dict[str, float] = {}
    if n_rows:
        raised = _rows_with(flags_by_row)
        for spec in specs:
            if spec.population is not None:
                metrics[f"{split}/flags/{spec.name}_share"] = raised.get(spec.name, 0) / n_rows
    if random_flags:
        raised = _rows_with(random_flags)
        metrics[f"{split}/flags/random_share_n"] = float(len(random_flags))
        for spec in specs:
            if spec.row is not None:
                share = raised.get(spec.name, 0) / len(random_flags)
                metrics[f"{split}/flags/{spec.name}_random_share"] = share
    return metrics


def curves(metrics: Mapping[str, float], raised: set[str]) -> dict[str, float]:
    """What of a step's metrics is logged: a flag's curve begins at the first step that raised it.

    A dashboard with a flat zero for each flag that never fired is hard to read.

    Args:
        metrics: a step's metrics; keys that are not flag shares stay.
        raised: keys of the flag shares that were above zero so far; those of this step are added.

    Returns:
        The metrics without the shares of flags that were never raised.
    """
    raised |= {key for key, share in metrics.items() if "/flags/" in key and share > 0}
    return {key: value for key, value in metrics.items() if "/flags/" not in key or key in raised}


def describe_off(off: Mapping[str, Sequence[str]]) -> str:
    """What `off_flags` found as one sentence, by what is missing; empty when nothing is.

    Args:
        off: flag name -> what it lacks.
    """
    return _described(tuple((name, tuple(keys)) for name, keys in off.items()))


@lru_cache(16)
def _described(off: tuple[tuple[str, tuple[str, ...]], ...]) -> str:
    """A run's steps mostly lack the same: the sentence is made once."""
    by_key: dict[str, list[str]] = {}
    for name, keys in off:
        by_key.setdefault(" or ".join(keys), []).append(name)
    parts = [f"{', '.join(names)} (no {keys})" for keys, names in by_key.items()]
    return f"Flags that are off: {'; '.join(parts)}." if parts else ""


def _rows_with(flags_by_row: Mapping[int, Sequence[Flag]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for flags in flags_by_row.values():
        for name in {flag.name for flag in flags}:
            counts[name] = counts.get(name, 0) + 1
    return counts
