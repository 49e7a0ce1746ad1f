"""What needs no statistics: flags of severity error, logged numbers that are NaN or end, rewards that are all equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rollout_traces.analysis.compare import DISCOVERY
from rollout_traces.analysis.curves import (
    FEWEST_BESIDE,
    MOST_GAPS,
    UNKNOWN,
    Part,
    SeriesName,
    ended_numbers,
    logged_numbers,
    missing_numbers,
)
from rollout_traces.analysis.diagnosis import DATA, ENVIRONMENT, Diagnosis, Severity
from rollout_traces.analysis.in_words import (
    number,
    part_filter,
    part_text,
    percent,
    series_text,
    since,
    steps_filter,
    value_filter,
)
from rollout_traces.analysis.parts import REMAINS
from rollout_traces.analysis.relations import current, known_reward
from rollout_traces.analysis.run_rows import BY_OUTCOME, RunRows
from rollout_traces.analysis.scan import SPIKE
from rollout_traces.analysis.schedules import has_no_noise
from rollout_traces.analysis.screen import FEWEST_EVALUATIONS, FEWEST_STEPS
from rollout_traces.analysis.selections import RunScope
from rollout_traces.analysis.severity import SURE
from rollout_traces.flags import REGISTRY
from rollout_traces.metrics import is_computed
from rollout_traces.model.text import quoted

QUIET = 5
"""Steps without a fault after which it is over."""


def fault_entries(scope: RunScope, found: Sequence[Diagnosis]) -> list[Diagnosis]:
    """An entry for each flag of severity error that no other entry of such a severity tells of.

    Args:
        scope: the run and split.
        found: the other entries.
    """
    if not scope.columns.has("flags"):
        return []
    loud = [one for each in found if each.severity != "info" for one in (each, *each.consequences)]
    named = {name.value for one in loud for name in one.series if name.column == "flags"}
    query = f"""
        with counted as (select step, count(*) as n, flatten(list(flags)) as flags
            from rollouts where {scope.scope} group by step)
        select step, n, flags from counted order by step"""
    steps = scope.relations.sql(query, scope.params).to_pylist()
    names = [name for name, spec in REGISTRY.items() if spec.severity == "error" and name not in named]
    return [entry for name in names if (entry := _of_flag(name, steps)) is not None]


def number_entries(scope: RunScope) -> list[Diagnosis]:
    """Entries of logged numbers that are NaN or infinite where they had been finite, which is a fault, or always; that lack or stand still for a while; or that are no longer logged, which may be meant so.

    Args:
        scope: the run.
    """
    logged = logged_numbers(scope.relations, scope.run).items()
    numbers = {key: each for key, each in logged if not is_computed(key)}
    lost: dict[tuple[int, int | None], list[str]] = {}
    never: dict[int, list[str]] = {}
    for key, (steps, values) in numbers.items():
        known = np.isfinite(values)
        if len(known) >= FEWEST_BESIDE and not known.any():
            never.setdefault(int(steps[0]), []).append(key)
        first = int(np.argmin(known))
        if not known.all() and first >= FEWEST_BESIDE:
            last = int(np.flatnonzero(~known)[-1])
            lost.setdefault(
                (int(steps[first]), int(steps[last]) if last + 1 < len(steps) else None), []
            ).append(key)
    found = [_of_numbers("error", lost_text(keys), keys, *at) for at, keys in lost.items()]
    found += [
        _of_numbers(
            "warn",
            f"what the trainer logs is never a number: {', '.join(map(quoted, keys))}",
            keys,
            first,
            None,
        )
        for first, keys in never.items()
    ]
    at = {key: steps for key, (steps, _) in numbers.items()}
    found += [
        _of_numbers(
            "warn", f"{', '.join(map(quoted, keys))} {were} not logged at {n} steps", keys, first, last
        )
        for (first, last, n), keys in missing_numbers(at).items()
        for were in ["was" if len(keys) == 1 else "were"]
    ]
    for key, (steps, values) in numbers.items():
        if (same := _frozen(values)) is not None:
            first, last = steps[list(same)].tolist()
            what = f"{quoted(key)} was {number(values[same[0]])} to the last digit at {same[1] - same[0] + 1} steps in a row"
            found.append(_of_numbers("warn", what, [key], first, last))
    ended = ended_numbers(at)
    return found + [
        _of_numbers("info", f"{quoted(key)} is no longer logged", [key], step, None)
        for key, step in ended.items()
    ]


def evaluation_entries(scope: RunScope, steps: np.ndarray) -> list[Diagnosis]:
    """Entries of evaluations that run every so many steps and did not at some that were due.

    Args:
        scope: the run.
        steps: int [T], the run's.
    """
    if not scope.columns.has("split"):
        return []
    query = f"""select split, list_sort(list(distinct step)) as steps from rollouts
        where run = ? and split like 'eval%' and {current(scope.columns)} group by split order by split"""
    found = []
    for row in scope.relations.sql(query, [scope.run]).to_pylist():
        at = np.asarray(row["steps"], np.int64)
        apart = np.diff(at)
        if len(at) < FEWEST_EVALUATIONS or not 0 < (apart > apart.min()).sum() <= MOST_GAPS:
            continue
        due = np.arange(at[0], at[-1] + 1, apart.min())
        missed = due[np.isin(due, steps) & ~np.isin(due, at)].tolist()
        if np.isin(at, due).all() and len(missed) > 1:
            what = f"{row['split']} did not run at {len(missed)} steps where it was due"
            found.append(_of_numbers("warn", what, [row["split"]], missed[0], missed[-1]))
    return found


def _frozen(values: np.ndarray) -> tuple[int, int] | None:
    """The first and last place of the one stretch in which a number with noise is the same to the last digit, not its least or most; None where there is none, or it often is the same.

    Args:
        values: float [n].
    """
    same = np.flatnonzero(np.diff(values) == 0)
    if len(same) < QUIET - 1 or same[-1] - same[0] != len(same) - 1 or not np.isfinite(values).all():
        return None
    others = np.delete(values, np.arange(same[0], same[-1] + 2))
    if len(others) < FEWEST_STEPS or has_no_noise(others):
        return None
    is_inside = others.min() < values[same[0]] < others.max()
    return (int(same[0]), int(same[-1]) + 1) if is_inside else None


def lost_text(keys: Sequence[str]) -> str:
    """Says which logged numbers are NaN or infinite where they had been finite."""
    return f"what the trainer logs is no longer a number: {', '.join(map(quoted, keys))}"


LOST_ADVICE = "Look at the last batch before it, and at the trainer's log."


def _of_numbers(severity: Severity, what: str, keys: Sequence[str], step: int, last: int | None) -> Diagnosis:
    return Diagnosis(
        severity=severity,
        sentence=f"{what}, {since(step, last)}.",
        advice=LOST_ADVICE if severity != "info" else "",
        tier=DATA,
        series=tuple(SeriesName(key, UNKNOWN, "share") for key in keys),
        part=(),
        shape="level" if last is None else "window",
        onset=(step, step),
        step=step,
        end=None if last is None else (last, last),
        last=last,
        before=0.0,
        after=1.0,
        cost=1.0,
        where=steps_filter(step, last),
    )


def _of_flag(name: str, steps: Sequence[dict[str, Any]]) -> Diagnosis | None:
    has = [(at, (row["flags"] or []).count(name)) for at, row in enumerate(steps)]
    with_it = [(at, n) for at, n in has if n]
    if not with_it:
        return None
    first, last = with_it[0][0], with_it[-1][0]
    over = len(steps) - 1 - last >= QUIET
    n = sum(n for _, n in with_it)
    n_rows = sum(row["n"] for row in steps[first : last + 1 if over else len(steps)])
    at, end = int(steps[first]["step"]), int(steps[last]["step"]) if over else None
    series = SeriesName("flags", name, "share")
    rows = "1 rollout carries" if n == 1 else f"{n:,} rollouts carry"
    return Diagnosis(
        severity="error",
        sentence=f"{rows} {name}, {percent(n / n_rows)}, {since(at, end)}: {REGISTRY[name].meaning}.",
        advice="Open these rollouts: one is enough to see it.",
        tier=DATA,
        series=(series,),
        part=(),
        shape="level",
        onset=(at, at),
        step=at,
        end=None if end is None else (end, end),
        last=end,
        after=n / n_rows,
        cost=n / sum(row["n"] for row in steps),
        where=f"{value_filter('flags', name)} and {steps_filter(at, end)}",
        name="a fault of the data",
    )


def no_signal_entries(scope: RunScope, rows: RunRows, found: Sequence[Diagnosis]) -> list[Diagnosis]:
    """An error where all rewards of a run are equal, or of the steps at its end; a warning where those of other steps are, and for each part in which they are, or in which a success or component is always 0.

    Args:
        scope: the run and split.
        rows: its rollouts.
        found: the other entries; what they say of a part is not said again.
    """
    entries = []
    if scope.columns.has("reward") and len(rows.steps) >= FEWEST_EVALUATIONS:
        query = f"""select count(x) as known, min(x) as low, max(x) as high
            from (select {known_reward(scope.columns)} as x from rollouts where {scope.scope})"""
        (of_all,) = scope.relations.sql(query, scope.params).to_pylist()
        if 2 * of_all["known"] > len(rows.at) and of_all["low"] == of_all["high"]:
            return [_equal((), int(rows.steps[0]), len(rows.at), of_all["low"])]
        entries += _of_steps(rows, found)
    values = {each.name.column: each.read() for each in rows.measures if _is_signal(each.name)}
    known = {(each.part, name.column) for each in found for name in each.series}
    for column in [each for each in rows.parts if each not in BY_OUTCOME]:
        codes, texts = rows.parts[column]
        alike = {name: _of_one_value(codes, of, len(texts)) for name, of in values.items()}
        n_rows = np.bincount(codes[codes >= 0], minlength=len(texts))
        for code, text in enumerate(texts):
            if column in rows.cutting and n_rows[code] < REMAINS * n_rows.mean():  # what became of a few
                continue
            part = ((column, text),)
            names = [name for name in alike if alike[name][code] and (part, name) not in known]
            if names and (part, "reward") not in known:
                entries += _of_part(rows, part, codes == code, {name: values[name] for name in names})
    return entries


def _of_steps(rows: RunRows, found: Sequence[Diagnosis]) -> list[Diagnosis]:
    """The entry of the one stretch of steps, but for a run's first, in which all rewards are the run's least; none where it may be chance, or a loud entry says it.

    The chance is that of as many groups, were each of them as often without a reward as those of all other steps.
    """
    rewards = next((each.read() for each in rows.measures if each.name == SeriesName("reward")), None)
    if rewards is None:
        return []
    n_steps, known, least = len(rows.steps), np.isfinite(rewards), float(np.nanmin(rewards))
    n_known, n_more = (np.bincount(rows.at[held], minlength=n_steps) for held in (known, rewards > least))
    empty = np.flatnonzero((2 * n_known > rows.per_step) & (n_more == 0))
    if not len(empty) or empty[0] == 0 or np.ptp(empty) != len(empty) - 1:
        return []
    first, last = int(empty[0]), int(empty[-1])
    inside = (rows.at >= first) & (rows.at <= last)
    n_groups, others = len(np.unique(rows.unit[inside & known])), np.unique(rows.unit[~inside & known])
    n_paid = len(np.unique(rows.unit[rewards > least]))
    usual = (len(others) - n_paid + 1) / (len(others) + 2)
    log_p = n_groups * np.log(usual) + 2 * np.log(n_steps)
    if log_p > np.log(DISCOVERY):
        return []
    step, end = int(rows.steps[first]), int(rows.steps[last]) if last + 1 < n_steps else None
    if any(_tells_of_reward(each, step) for each in found):
        return []
    whole = _equal((), step, int((inside & known).sum()), least, f", {since(step, end)}")
    return [
        replace(
            whole,
            severity="error" if end is None and log_p < np.log(SURE) else "warn",
            shape="level" if end is None else "window",
            end=None if end is None else (end, end),
            last=end,
            before=float(np.nanmean(rewards[~inside])),
            where=steps_filter(step, end),
        )
    ]


def _tells_of_reward(each: Diagnosis, step: int) -> bool:
    """Tells whether an entry says loudly that all rewards moved about a step."""
    of_reward = each.severity != "info" and SeriesName("reward") in each.series
    return of_reward and not each.part and each.onset[0] - SPIKE <= step <= each.onset[1] + SPIKE


def _is_signal(name: SeriesName) -> bool:
    """Tells whether a series is what rollouts were given, a number."""
    return name.is_paid and name.value is None and name.statistic == "mean"


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


def _equal(part: Part, first: int, n: int, value: float, when: str = "") -> Diagnosis:
    whose = f" of {part_text(part)}" if part else ""
    sentence = f"all {n:,} rewards{whose} are {number(value)}{when}: nothing can be learned from them."
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
