"""Rollouts of which nothing can be learned: rewards that are all equal, a success or component that is always 0 in a part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rollout_traces.analysis.diagnosis import ENVIRONMENT, Diagnosis, Severity
from rollout_traces.analysis.entries import SURE
from rollout_traces.analysis.in_words import number, part_filter, part_text, series_text
from rollout_traces.analysis.relations import known_reward
from rollout_traces.analysis.run_rows import BY_OUTCOME, RunRows
from rollout_traces.analysis.scope import RunScope
from rollout_traces.analysis.screen import FEWEST_EVALUATIONS
from rollout_traces.analysis.step_series import Part, SeriesName


def no_signal_entries(scope: RunScope, rows: RunRows, found: Sequence[Diagnosis]) -> list[Diagnosis]:
    """An error where all rewards of a run are equal; a warning for each part in which they are, or in which a success or component is always 0.

    Args:
        scope: the run and split.
        rows: its rollouts.
        found: the other entries; what they say of a part is not said again.
    """
    if scope.columns.has("reward") and len(rows.steps) >= FEWEST_EVALUATIONS:
        query = f"""select count(x) as known, min(x) as low, max(x) as high
            from (select {known_reward(scope.columns)} as x from rollouts where {scope.scope})"""
        (of_all,) = scope.relations.sql(query, scope.params).to_pylist()
        if 2 * of_all["known"] > len(rows.at) and of_all["low"] == of_all["high"]:
            return [_equal((), int(rows.steps[0]), len(rows.at), of_all["low"])]
    values = {each.name.column: each.read() for each in rows.measures if _is_signal(each.name)}
    told = {(each.part, name.column) for each in found for name in each.series}
    entries = []
    for column in [each for each in rows.parts if each not in BY_OUTCOME]:
        codes, texts = rows.parts[column]
        alike = {name: _of_one_value(codes, of, len(texts)) for name, of in values.items()}
        for code, text in enumerate(texts):
            part = ((column, text),)
            names = [name for name in alike if alike[name][code] and (part, name) not in told]
            if names and (part, "reward") not in told:
                entries += _of_part(rows, part, codes == code, {name: values[name] for name in names})
    return entries


def _is_signal(name: SeriesName) -> bool:
    """Tells whether a series is what rollouts were given, a number."""
    is_given = name.column in ("reward", "success") or name.column.startswith("component/")
    return is_given and name.value is None and name.statistic == "mean"


def _of_one_value(codes: np.ndarray, values: np.ndarray, n_parts: int) -> np.ndarray:
    """bool [V]: whether most rows of a part know a number, and it is one value in all.

    Args:
        codes: int [N], the part of each row, -1 for none.
        values: float [N], NaN where unknown.
        n_parts: V.
    """
    held = codes >= 0
    known = held & np.isfinite(values)
    one = np.full(n_parts, np.nan)
    one[codes[known]] = values[known]
    others = np.bincount(codes[known], values[known] != one[codes[known]], n_parts)
    n_known, n_rows = (np.bincount(codes[rows], minlength=n_parts) for rows in (known, held))
    return (2 * n_known > n_rows) & (others == 0)


def _of_part(rows: RunRows, part: Part, held: np.ndarray, alike: Mapping[str, np.ndarray]) -> list[Diagnosis]:
    """The entry of a part in which some numbers are one value each; none where that may be chance."""
    first, n, seen = int(rows.steps[rows.at[held].min()]), int(held.sum()), len(np.unique(rows.at[held]))
    if seen < FEWEST_EVALUATIONS:
        return []
    if "reward" in alike:
        return [_equal(part, first, n, float(np.nanmax(alike["reward"][held])))]
    groups, usual = len(np.unique(rows.unit[held])), {}
    for name, values in alike.items():
        mean, most = float(np.nanmean(values)), float(np.nanmax(values))
        never = mean > 0 and np.nanmax(values[held]) == 0
        if never and groups * np.log1p(-min(mean / most, 1 - SURE)) < np.log(SURE):
            usual[name] = number(mean)
    if not usual:
        return []
    listed = " and ".join(series_text(SeriesName(name)) for name in usual)
    verb = "is" if len(usual) == 1 else "are"
    sentence = f"{listed} {verb} 0 in all {n:,} rollouts of {part_text(part)}, {' and '.join(usual.values())} over all."
    return [_entry(part, first, list(usual), 0.0, sentence, "warn", "a reward that is never given")]


def _equal(part: Part, first: int, n: int, value: float) -> Diagnosis:
    whose = f" of {part_text(part)}" if part else ""
    sentence = f"all {n:,} rewards{whose} are {number(value)}: nothing can be learned from them."
    severity: Severity = "warn" if part else "error"
    return _entry(part, first, ["reward"], value, sentence, severity, "all rewards are equal")


def _entry(
    part: Part, first: int, names: Sequence[str], value: float, sentence: str, severity: Severity, name: str
) -> Diagnosis:
    return Diagnosis(
        severity=severity,
        sentence=sentence,
        advice="Read some of these rollouts, and what the reward function says of them.",
        tier=ENVIRONMENT,
        series=tuple(SeriesName(each) for each in names),
        part=part,
        shape="standing",
        onset=(first, first),
        step=first,
        after=value,
        cost=1.0,
        where=part_filter(part),
        name=name,
    )
