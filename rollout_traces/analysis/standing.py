"""Standing differences: a worker that is off from the run's first step to its last, so that no series ever moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rollout_traces.analysis.columns_compared import LEAST_SHARE
from rollout_traces.analysis.compete import without_children
from rollout_traces.analysis.curves import UNKNOWN, Part
from rollout_traces.analysis.diagnosis import OTHER, Diagnosis, Movement
from rollout_traces.analysis.entries import LARGEST, named
from rollout_traces.analysis.in_words import (
    number,
    part_filter,
    part_text,
    percent,
    series_text,
    steps_filter,
)
from rollout_traces.analysis.learning import is_given, may_be_learned
from rollout_traces.analysis.panel import ALONE, Panel, rows_of
from rollout_traces.analysis.parts import REMAINS, SAME_ROWS
from rollout_traces.analysis.run_rows import ENOUGH_ROWS, ROUNDING
from rollout_traces.analysis.screen import FEWEST_EVALUATIONS, log_chance
from rollout_traces.analysis.severity import SURE

ENDS = 3
"""The run is looked at in so many stretches: what stands shows in each of them."""


@dataclass(frozen=True)
class _Apart:
    """A series that lies apart in a part: its levels there and elsewhere, by how many errors of as many steps they differ, and the part of the rollouts."""

    panel: Panel
    part: Part
    own: float
    elsewhere: float
    z: float
    n_steps: int
    share: float

    @property
    def log_p(self) -> float:
        """Log of its chance, with steps as units."""
        return float(log_chance(np.asarray(self.z), np.asarray(self.n_steps - 1.0)))


def standing_entries(
    panels: Sequence[Panel], said: Sequence[Diagnosis], steps: np.ndarray
) -> list[Diagnosis]:
    """An entry for each part that does not hang on prompts and has less than half of a measure, or more than twice, at all steps; or lies further from the others than rollouts do.

    Who sampled or scored a rollout should not matter; a source or how a rollout came out may.

    Args:
        panels: the series of the run.
        said: what other entries say.
        steps: int [T], the run's.
    """
    covered = {(name, value) for each in said for name in each.series for value in each.part or ()}
    found: dict[Part, list[_Apart]] = {}
    n_series = sum(len(panel.names) for panel in panels)
    for panel in panels:
        for each in _apart(panel, n_series):
            if not any((panel.names[0], value) in covered for value in each.part):
                found.setdefault(each.part, []).append(each)
    return [
        _entry(part, sorted(without_children(each), key=lambda one: -abs(one.z)), steps)
        for part, each in found.items()
    ] + [
        entry
        for panel in panels
        if (entry := _alone(panel, n_series)) is not None
        if not any((panel.names[0], value) in covered for value in entry.part or ())
    ]


OF_ONE_PART = "; compare its settings and version with the others'."


def _alone(panel: Panel, n_series: int) -> Diagnosis | None:
    """The entry of a rare value that nearly only the rollouts of one part by who sampled them have, or of rewards beyond all others that come late, which at each of several steps would be others, or come earlier, by chance."""
    if not panel.is_share or panel.measure is None or panel.parts[0] != () or is_given(panel):
        return None
    held = np.round(np.nan_to_num(panel.levels) * panel.rows)
    at, n_held, n_rows = np.flatnonzero(held[0]), held.sum(axis=1), panel.rows.sum(axis=1)
    name, first = panel.names[0], int(panel.steps[at[0]]) if len(at) else 0
    if len(at) < FEWEST_EVALUATIONS or (n_held[0] > ALONE * n_rows[0] and not name.is_beyond):
        return None
    hold_it = np.flatnonzero(n_held >= SAME_ROWS * n_held[0]).tolist()
    sampled = [i for i in hold_it if not may_be_learned(panel, panel.parts[i])]
    i = min(sampled, key=lambda i: n_rows[i], default=0)
    part = panel.parts[i]
    n_since, n_elsewhere = int(panel.rows[i, at[0] :].sum()), int(n_held[0] - n_held[i])
    log_p = len(at) * np.log(n_rows[i] / n_rows[0])
    if name.is_beyond and panel.source is not None:
        n_groups = len(np.unique(panel.source.unit[panel.measure.read() == 1]))
        log_p += n_groups * np.log(panel.rows[0, at[0] :].sum() / n_rows[0])
    if log_p + np.log(n_series) > np.log(SURE):
        return None
    seen = f"{int(n_held[i])} of {n_since:,} rollouts"
    sentence = (
        f"on {part_text(part)} alone: {seen} since step {first}, {n_elsewhere or 'none'} elsewhere"
        if part
        else f"since step {first} alone: {seen}, none before"
    )
    share = float(n_held[i]) / max(n_since, 1)
    return Diagnosis(
        severity="warn" if part else "info",  # what is paid once a task is solved may be learned late
        sentence=f"{series_text(name)} occurs {sentence}.",
        advice=f"Read some of these rollouts{OF_ONE_PART if part else '.'}",
        tier=OTHER,
        series=(name,),
        part=part,
        shape="came",
        onset=(first, first),
        step=first,
        before=0.0,
        after=share,
        elsewhere=0.0,
        cost=share,
        where=" and ".join(
            filter(None, (panel.measure.condition, part_filter(part), steps_filter(first, None)))
        ),
        name="of one part alone" if part else "beyond all others",
    )


def _apart(panel: Panel, n_series: int) -> Iterator[_Apart]:
    """The parts of a measure that lie apart, of each column the furthest first, each beside those that are not yet named."""
    if (
        panel.measure is None
        or len(panel.steps) < FEWEST_EVALUATIONS
        or is_given(panel)
        or panel.names[0].value == UNKNOWN
        or panel.names[0].statistic == "correlation"
    ):
        return
    known = np.isfinite(panel.levels) & (panel.rows > 0)
    rows = np.where(known, panel.rows, 0.0)
    values = panel.measure.read()
    spread = float(np.nanstd(values[:: len(values) // ENOUGH_ROWS + 1]))
    total = rows * np.where(known, panel.levels, 0.0)
    for column in dict.fromkeys(part[0][0] for part in panel.parts if part):
        left = [i for i, part in enumerate(panel.parts) if part and part[0][0] == column]
        names_it = any(panel.parts[i][0][1] in str(panel.names[0].value) for i in left)
        if names_it or may_be_learned(panel, panel.parts[left[0]]):
            continue
        left = [i for i, is_one in zip(left, _are_workers(rows[left]), strict=True) if is_one]
        while len(left) > 1:
            seen = [_beside(panel, i, [j for j in left if j != i], rows, total, spread) for i in left]
            best = max((each for each in seen if each), key=lambda each: abs(each.z), default=None)
            if best is None or best.log_p > np.log(SURE / n_series):
                break
            if not _is_of_prompts(panel, best):
                yield best
            left = [i for i in left if panel.parts[i] != best.part]


def _are_workers(rows_V_T: np.ndarray) -> np.ndarray:
    """bool [V]: whether the values of a column have at least half of an equal share in every stretch of the run, as what samples or scores rollouts has; what became of a few of them has not."""
    stretches = np.stack([each.sum(axis=1) for each in np.array_split(rows_V_T, ENDS, axis=1)])
    return (stretches >= REMAINS * stretches.mean(axis=1, keepdims=True)).all(axis=0)


def _beside(
    panel: Panel, at: int, others: Sequence[int], rows: np.ndarray, total: np.ndarray, spread: float
) -> _Apart | None:
    """A part beside others of its column, step by step; None where it does not lie apart in every stretch of the run."""
    n_own, n_rest = rows[at], rows[others].sum(axis=0)
    both = (n_own > 0) & (n_rest > 0)
    if both.sum() < FEWEST_EVALUATIONS:
        return None
    own, rest = total[at][both] / n_own[both], total[others].sum(axis=0)[both] / n_rest[both]
    weight = n_own[both] * n_rest[both] / (n_own[both] + n_rest[both])
    stretches = [
        (float(np.average(a, weights=w)), float(np.average(b, weights=w)))
        for a, b, w in zip(*(np.array_split(each, ENDS) for each in (own, rest, weight)), strict=True)
    ]
    if (
        not all(_is_apart(panel, *each, spread) for each in stretches)
        or len({a > b for a, b in stretches}) > 1
    ):
        return None
    apart = own - rest
    mean = float(np.average(apart, weights=weight))
    if min(abs(a - b) for a, b in stretches) < REMAINS * abs(mean):
        return None
    error = float(np.sqrt((weight**2 * (apart - mean) ** 2).sum())) / float(weight.sum())
    error = max(error, ROUNDING * abs(mean))
    there = n_own[both].sum(), n_rest[both].sum()
    return _Apart(
        panel,
        panel.parts[at],
        float(total[at][both].sum() / there[0]),
        float(total[others].sum(axis=0)[both].sum() / there[1]),
        mean / error,
        int(both.sum()),
        float(n_own.sum() / (n_own + n_rest).sum()),
    )


def _is_of_prompts(panel: Panel, found: _Apart) -> bool:
    """Tells whether a part lies apart for what it is asked: where prompts come again, the rollouts of one prompt differ by less than half as much."""
    rows = panel.source
    if rows is None or panel.measure is None or not len(rows.prompt):
        return False
    values, n_steps = panel.measure.read(), len(rows.steps)
    known = np.flatnonzero(np.isfinite(values) & (rows.prompt >= 0))
    values, prompt = values[known], rows.prompt[known]
    n_visits = np.bincount(np.unique(prompt * n_steps + rows.at[known]) // n_steps)
    again = n_visits[prompt] > 1
    net = (values - (np.bincount(prompt, values) / np.maximum(np.bincount(prompt), 1))[prompt])[again]
    own = rows_of(rows, found.part)[known[again]]
    if 2 * len(own) < len(known) or not own.any() or own.all():
        return False
    return bool(abs(net[own].mean() - net[~own].mean()) < REMAINS * abs(found.own - found.elsewhere))


def _is_apart(panel: Panel, one: float, other: float, spread: float) -> bool:
    """Tells whether one level is less than half of another, of a share whether what lacks it is; or whether they differ by more than rollouts do."""
    low, high = sorted((abs(one), abs(other)))
    if panel.is_share and high - low < LEAST_SHARE:
        return False
    if abs(one - other) > spread or (one * other >= 0 and low < REMAINS * high):
        return True
    return panel.is_share and 1 - high < REMAINS * (1 - low)


def _entry(part: Part, found: Sequence[_Apart], steps: np.ndarray) -> Diagnosis:
    first = int(steps[0])
    moved = [
        Movement(
            each.panel.names[0],
            part,
            "standing",
            (first, first),
            first,
            None,
            None,
            each.elsewhere,
            each.own,
            each.z,
            0.0,
            each.elsewhere,
        )
        for each in found
    ]
    signature, at = named(moved, [abs(m.z) for m in moved], part, False)
    lead, others = moved[at], [*moved[:at], *moved[at + 1 :]]
    form = percent if lead.name.value is not None else number
    sentence = f"{series_text(lead.name)} is {form(lead.after or 0.0)} on {part_text(part)}, {form(lead.elsewhere or 0.0)} elsewhere, from the first step on"
    for way, held in (("higher", True), ("lower", False)):
        names = dict.fromkeys(series_text(m.name) for m in others if (m.z > 0) == held)
        sentence += f"; also {way}: {', '.join(names)}" if names else ""
    return Diagnosis(
        severity="warn",
        sentence=f"{sentence}.",
        advice="Is it meant to be so? Compare its settings and version with the others'.",
        tier=signature.tier if signature else OTHER,
        series=tuple(m.name for m in (lead, *others)),
        part=part,
        shape="standing",
        onset=(first, first),
        step=first,
        before=lead.before,
        after=lead.after,
        elsewhere=lead.elsewhere,
        cost=max(each.share for each in found) * LARGEST,
        where=part_filter(part),
        name="a standing difference",
        movements=(lead, *others),
    )
