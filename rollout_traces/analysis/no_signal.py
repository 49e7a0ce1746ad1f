"""Rollouts of which nothing can be learned: rewards that are all equal, a success or component that is always 0 in a part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rollout_traces.analysis.diagnosis import ENVIRONMENT, Diagnosis, Severity
from rollout_traces.analysis.entries import SURE
from rollout_traces.analysis.in_words import number, part_filter, part_text, series_text
from rollout_traces.analysis.relations import known_number, known_reward, quoted, unit_over_steps
from rollout_traces.analysis.scope import RunScope
from rollout_traces.analysis.screen import FEWEST_EVALUATIONS
from rollout_traces.analysis.step_series import Part, SeriesName


@dataclass(frozen=True)
class _Given:
    """What the rollouts of a part were given.

    Attributes:
        part: which.
        first: their first step.
        steps, groups, n: how many steps, groups and rollouts.
        known, low, high, mean: measure -> how many know it, its ends and mean.
    """

    part: Part
    first: int
    steps: int
    groups: int
    n: int
    known: dict[str, int]
    low: dict[str, float | None]
    high: dict[str, float | None]
    mean: dict[str, float | None]

    def is_one_value(self, name: str) -> bool:
        """Whether most of several steps' rollouts know a measure, and it is one value in all."""
        several = self.steps >= FEWEST_EVALUATIONS and 2 * self.known[name] > self.n
        return several and self.low[name] == self.high[name]

    def is_never(self, name: str, whole: _Given) -> bool:
        """Whether a measure is 0 in all, which is no chance if as many groups had it as everywhere."""
        mean, most = whole.mean[name], whole.high[name]
        if not self.is_one_value(name) or self.high[name] != 0 or not mean or not most or mean <= 0:
            return False
        return self.groups * np.log1p(-min(mean / most, 1 - SURE)) < np.log(SURE)


def no_signal_entries(scope: RunScope, found: Sequence[Diagnosis]) -> list[Diagnosis]:
    """An error where all rewards of a run are equal; a warning for each part in which they are, or in which a success or component is always 0.

    Args:
        scope: the run and split.
        found: the other entries; what they say of a part is not said again.
    """
    names = [name for name in ("reward", "success") if scope.columns.has(name)]
    names += [name for name in scope.columns.numbers if name.startswith("component/")]
    whole = next(_given(scope, names, ""), None) if names else None
    if whole is None:
        return []
    if "reward" in names and whole.is_one_value("reward"):
        return [_equal(whole)]
    told = {(each.part, name.column) for each in found for name in each.series}
    entries = []
    for column in (*scope.segments, *scope.further):
        for given in _given(scope, names, column):
            never = [name for name in names if given.is_never(name, whole)]
            if any((given.part, name) in told for name in ("reward", *never)):
                continue
            if "reward" in names and given.is_one_value("reward"):
                entries.append(_equal(given))
            elif never:
                entries.append(_never(given, never, whole))
    return entries


def _given(scope: RunScope, names: Sequence[str], column: str) -> Iterator[_Given]:
    """What the rollouts of a run were given, or those of each value of a column."""
    of = [known_reward(scope.columns) if name == "reward" else known_number(name) for name in names]
    figures = ", ".join(
        f"count({each}) as known{i}, min({each}) as low{i}, max({each}) as high{i}, avg({each}) as mean{i}"
        for i, each in enumerate(of)
    )
    value = quoted(column) if column else "''"
    query = f"""
        select {value} as value, min(step) as first, count(distinct step) as steps, count(*) as n,
            count(distinct {unit_over_steps(scope.columns, one_run=True)}) as groups, {figures}
        from rollouts where {scope.scope} and {value} is not null group by 1 order by 1"""
    for row in scope.relations.sql(query, scope.params).to_pylist():
        by_name = [{name: row[f"{what}{i}"] for i, name in enumerate(names)} for what in FIGURES]
        part = ((column, str(row["value"])),) if column else ()
        yield _Given(part, int(row["first"]), row["steps"], row["groups"], row["n"], *by_name)


FIGURES = ("known", "low", "high", "mean")


def _equal(given: _Given) -> Diagnosis:
    whose = f" of {part_text(given.part)}" if given.part else ""
    sentence = f"all {given.n:,} rewards{whose} are {number(given.low['reward'] or 0.0)}: nothing can be learned from them."
    severity: Severity = "warn" if given.part else "error"
    return _entry(given, ["reward"], sentence, severity, "all rewards are equal")


def _never(given: _Given, names: Sequence[str], whole: _Given) -> Diagnosis:
    listed = " and ".join(series_text(SeriesName(name)) for name in names)
    usual = " and ".join(number(whole.mean[name] or 0.0) for name in names)
    verb = "is" if len(names) == 1 else "are"
    sentence = f"{listed} {verb} 0 in all {given.n:,} rollouts of {part_text(given.part)}, {usual} over all."
    return _entry(given, names, sentence, "warn", "a reward that is never given")


def _entry(given: _Given, names: Sequence[str], sentence: str, severity: Severity, name: str) -> Diagnosis:
    return Diagnosis(
        severity=severity,
        sentence=sentence,
        advice="Read some of these rollouts, and what the reward function says of them.",
        tier=ENVIRONMENT,
        series=tuple(SeriesName(each) for each in names),
        part=given.part,
        shape="standing",
        onset=(given.first, given.first),
        step=given.first,
        after=given.low[names[0]],
        cost=1.0,
        where=part_filter(given.part),
        name=name,
    )
