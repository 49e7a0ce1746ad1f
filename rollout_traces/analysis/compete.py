"""Movements become entries: those that are alike form one, and what follows from another by contrast hangs under it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import numpy as np

from rollout_traces.analysis.curves import Part, SeriesName, is_size
from rollout_traces.analysis.detected_movement import NEAR_EDGE, Moved, beside, is_spike
from rollout_traces.analysis.noise import of_neighbours
from rollout_traces.analysis.panel import Panel, rows_of
from rollout_traces.analysis.parts import BOUND, PLAINLY, REMAINS, effects
from rollout_traces.analysis.run_rows import BY_OUTCOME, RunRows
from rollout_traces.analysis.scan import OF_RUN, Whitened, coefficients, n_tests, whitened
from rollout_traces.analysis.screen import freedom_of, log_chance
from rollout_traces.analysis.slow_change import PLAIN_CHANCE, is_loss, is_purpose

ALIKE = 4.0
"""Log likelihood that another movement's steps may cost a movement that is the same: two ends, each known within 95 %."""
ALIKE_PART = 0.1
"""... or this part of what its own steps explain: a movement is no exact step or ramp, and a large one has exact edges."""
ENDS = 10
"""Part of the run at each end at which a change over the whole run is read."""
OF_LARGER_SHARE = 1 / 3
"""Part of the larger share of an end up to which rollouts that end so are hardly the same ones before and since."""
OF_REWARDS = "group/reward_std_mean"
OF_MORE = {
    "mismatch_abs_max": "n_sampled",
    "log_ratio_sum": "n_sampled",
    "n_tool_errors": "n_tool_calls",
    "error_signatures": "n_tool_calls",
}
"""Largest values and sums over the tokens of a rollout, of which longer ones have more, and errors of its calls."""
LENGTHS = 16
"""Stretches of lengths in which rollouts are about as long."""
STARTS = 0.05
"""Part of the run from its start; what changes within it is how the run starts ..."""
STARTS_STEPS = 3, 5
"""... or within so many steps, at most a quarter of the run, the second where that is an eighth of it: until queues are full, samples get older."""


@dataclass(eq=False)
class AlikeMovements:
    """Movements that are one.

    Attributes:
        found: the surest first.
        part: whose they are.
        follows: entries that follow from it.
    """

    found: list[Moved]
    part: Part | None
    follows: list[AlikeMovements] = field(default_factory=list)

    @property
    def head(self) -> Moved:
        """The surest."""
        return self.found[0]


def entries(found: Sequence[Moved]) -> list[AlikeMovements]:
    """Groups movements, the surest first.

    Args:
        found: all movements; those that are slow change over the run are one, learning.
    """
    made: list[AlikeMovements] = []
    learned = [each for each in found if each.drift and is_learning(each)]
    against = [
        each
        for each in learned
        if any(_goes_against(each, other) for other in learned)
        and not any(_takes_it_there(other, each) for other in found)
    ]
    slow = sorted((each for each in learned if each not in against), key=lambda f: -f.located.z)
    slow = without_children([each for each in slow if not _is_point(each)] or slow)
    for part in dict.fromkeys(each.chosen.values for each in slow):
        made.append(AlikeMovements([each for each in slow if each.chosen.values == part], part))
    others = [
        replace(each, drift=each.drift or _comes_with(each, found)) for each in found if each not in learned
    ]
    others += [replace(each, drift=False) for each in against]
    for each in sorted(others, key=_place):
        home = next(
            (
                entry
                for entry in made
                if not (entry.head.drift and is_learning(entry.head)) and _joins(each, entry)
            ),
            None,
        )
        is_weak = home is None or not home.head.is_sure
        if is_weak and any(_is_said(each, other) for other in made if other is not home):
            continue
        if home is None:
            made.append(AlikeMovements([each], each.chosen.values))
        elif _is_point(home.head) and home.head.panel.parents[0] == each.panel.names[0].column:
            is_surer = home.head.is_sure and not (each.is_sure or home.head.drift)
            home.found[is_surer:1] = [each]  # in its place, or behind it
        elif (each.n_carriers or not _is_covered(each, home)) and (each.is_sure or not home.head.is_sure):
            home.found.append(each)
    for entry in made:
        entry.found = _without_what_others_have_less_of(entry)
        if not all(each.drift for each in entry.found):  # what begins with something sudden is not slow
            entry.found = [replace(each, drift=False) for each in entry.found]
    return _causes(made)


def _place(found: Moved) -> tuple[bool, bool, float]:
    """Orders movements: how many rollouts there are, of which times are, the surest first, and last what is computed from another one."""
    return _is_computed(found), not is_size(found.panel.names[0]), -abs(found.located.z)


def of_their_own(found: Sequence[Moved]) -> list[Moved]:
    """Movements without the spread of rewards of groups at steps that a few of those carry, while no few rewards do."""
    rewards = {span(each) for each in found if each.n_carriers and each.panel.names[0].column == "reward"}
    return [
        each
        for each in found
        if not each.n_carriers or each.panel.names[0].column != OF_REWARDS or span(each) in rewards
    ]


def _without_what_others_have_less_of(entry: AlikeMovements) -> list[Moved]:
    """An entry's movements; of a part without what adds up to the same, where another measure of it moved too."""
    centred = [each.panel for each in entry.found if each.panel.is_centred]
    summed = {column for panel in centred for column in (panel.names[0].column, panel.parents[0])}
    others = [each for each in entry.found if each.panel.names[0].column not in summed]
    if not entry.part or not others:
        return entry.found
    return [each for each in entry.found if not each.panel.is_centred]


def _causes(made: list[AlikeMovements]) -> list[AlikeMovements]:
    """The entries that follow from no other; one that follows from what is learned is learned too, unless less is solved."""
    causes = list(made)
    for entry in made:
        cause = next(
            (
                each
                for each in causes
                if each is not entry
                and (each.head.is_sure or not entry.head.is_sure)
                and _is_from_mix(entry, each)
            ),
            None,
        )
        if cause is None:
            continue
        if cause.head.drift and is_loss(entry.head) and is_purpose(entry.head.panel):
            continue
        if cause.head.drift:
            entry.found = [replace(found, drift=True) for found in entry.found]
        else:
            causes.remove(entry)
            cause.follows.append(entry)
    return causes


def _is_from_mix(entry: AlikeMovements, cause: AlikeMovements) -> bool:
    """Tells whether an entry is, at its steps, what comes of other shares of how rollouts ended, which another entry tells from then on or before, or of longer answers or more calls, as largest values over tokens and errors are, or is of those of one end, which are others when they are many times as many."""
    onset = int(entry.head.panel.steps[entry.head.located.onset[1]])
    part = entry.head.panel.parts[entry.head.chosen.at] if entry.part is None else entry.part
    for found in cause.found:
        name, begins = found.panel.names[0], span(found)[0]
        is_of_all = name.column in BY_OUTCOME or not found.chosen.values
        is_whose = is_of_all and (name.column, name.value) in part
        if is_whose and begins <= onset + NEAR_EDGE and _are_other_ones(found):
            return True
    columns = {found.panel.names[0].column for found in cause.found if span(found)[0] <= onset}
    of_rows = [found for found in entry.found if found.panel.source is not None]
    more = OF_MORE.get(entry.head.panel.names[0].column)
    if more in columns and _is_of_mix(entry.head, more):
        return True
    return bool(of_rows) and any(
        all(_is_of_mix(found, column) for found in of_rows) for column in columns & set(BY_OUTCOME)
    )


def _are_other_ones(found: Moved) -> bool:
    """Tells whether a share is many times what it was, or a small part of it, so that those that have the value are hardly the same ones."""
    levels, inside = found.panel.levels[found.chosen.at], found.template.inside(len(found.panel.steps))
    sides = [levels[steps & np.isfinite(levels)] for steps in (~inside, inside)]
    before, since = (float(np.sum(side)) / max(len(side), 1) for side in sides)
    return min(map(len, sides)) > 0 and min(before, since) < OF_LARGER_SHARE * max(before, since)


def _is_of_mix(found: Moved, column: str) -> bool:
    """Tells whether the upper bound of what remains of a movement among rows of one value of a column, beside what those have at other steps, is under half of it."""
    rows, measure = found.panel.source, found.panel.measure
    if rows is None or measure is None or is_spike(found) or measure.name.column == column:
        return False
    values, codes = measure.read(), _compared_by(rows, column)
    whose = {part for part, _ in found.chosen.values or ()}
    if not ((codes >= 0).any() and whose <= set(rows.parts)):
        return False
    held = np.isfinite(values) & (codes >= 0)
    if found.chosen.values:
        held &= rows_of(rows, found.chosen.values)
    at, values, codes = rows.at[held], values[held], codes[held]
    weight = rows.weight[held] if measure.drawn else np.ones(len(at))
    n_T, n_codes = np.bincount(at, weight, len(rows.steps)), int(codes.max(initial=0)) + 1
    others = weight * ~found.template.inside(len(n_T))[at]  # what each end usually has beside the movement
    with np.errstate(invalid="ignore", divide="ignore"):
        usual = np.bincount(codes, values * others, n_codes) / np.bincount(codes, others, n_codes)
        usual = np.where(
            np.isfinite(usual), usual, np.average(values, weights=others) if others.any() else 0.0
        )
        both = np.stack(
            [np.bincount(at, each * weight, len(n_T)) / n_T for each in (values, values - usual[codes])]
        )
    place = np.asarray([found.chosen.at] * 2)
    w = whitened(both, found.noise.at(place), found.basis[place])
    size, error = effects(w, found.template.over(len(n_T)))
    remains = float(size[1] * np.sign(size[0]))
    return bool(remains + BOUND * error[1] < REMAINS * abs(size[0]))


def _compared_by(rows: RunRows, column: str) -> np.ndarray:
    """int [N]: the value of each row by which like is held against like, of a length one of `LENGTHS` stretches of as many rows; -1 where it is not known."""
    if column in rows.parts:
        return rows.parts[column][0]
    number = next((each.read() for each in rows.measures if each.name == SeriesName(column)), None)
    if number is None or not np.isfinite(number).any():
        return np.full(len(rows.at), -1)
    edges = np.nanquantile(number, np.linspace(0, 1, LENGTHS + 1)[1:-1])
    return np.where(np.isfinite(number), np.searchsorted(edges, number), -1)


def _comes_with(each: Moved, found: Sequence[Moved]) -> bool:
    """Tells whether a movement of what is computed from another measure comes while that is learned late, or hardly shows beside what is learned of it: rewards of a group differ most halfway, and all are alike at the end."""
    own, parts = each.template, each.chosen.values
    return any(
        other.panel.names[0] == SeriesName(each.panel.parents[0])
        and other.chosen.values == parts
        and other.drift
        and (
            _is_of_its_parent(each, other)
            if is_learning(other)
            else max(own.start, other.template.start) < min(own.stop, other.template.stop)
        )
        for other in found
    )


def _is_of_its_parent(each: Moved, parent: Moved) -> bool:
    """Tells whether hardly a movement is left beside what it is computed from, and the square of that."""
    n = len(each.panel.steps)
    if is_spike(each) or not np.array_equal(each.panel.steps, parent.panel.steps):
        return False
    values = parent.panel.values[parent.chosen.at]
    values = of_neighbours(np.where(np.isfinite(values), values, np.nanmean(values)))
    at = np.asarray([each.chosen.at])
    own = beside(each.basis[at], np.stack([values, values**2]))
    left, _ = coefficients(whitened(each.panel.values[at], each.noise.at(at), own), each.template.over(n))
    return bool(np.log(n_tests(n)) + log_chance(left, freedom_of(each.panel)[at])[0] > PLAIN_CHANCE)


def _is_said(each: Moved, entry: AlikeMovements) -> bool:
    """Tells whether an entry says a movement already, of the column that it is computed from or of its own, or as what is learned from the start."""
    if _is_covered(each, entry):
        return _same_time(each, entry.head)
    if each.drift and starts(each) and is_learning(entry.head) and _same_series(each, entry):
        return True
    return any(
        own.panel.names[0] == each.panel.names[0]
        and own.chosen.values == each.chosen.values
        and span(own) == span(each)
        for own in entry.found
    )


def _goes_against(found: Moved, other: Moved) -> bool:
    """Tells whether a figure of an evaluation falls over the run while the same figure rises in training."""
    name, training = found.panel.names[0], other.panel.names[0]
    is_same = name.column.endswith(f"/{training.column}") and name[1:] == training[1:]
    return (
        is_same
        and training.is_paid
        and _way(found) < 0 < _way(other)
        and max(found.log_p, other.log_p) <= PLAIN_CHANCE
    )


def _takes_it_there(found: Moved, drift: Moved) -> bool:
    """Tells whether a movement of the same figure that lasts went the way in which it ends, which slow change need not have gone."""
    is_same = found.panel.names[0] == drift.panel.names[0] and not is_learning(found)
    return is_same and found.template.kind != "window" and found.located.z * _way(drift) > 0


def _way(found: Moved) -> float:
    """The sign of what a series ends higher by than it began."""
    levels = found.panel.levels[found.chosen.at]
    known = levels[np.isfinite(levels)]
    ends = max(len(known) // ENDS, 1)
    return float(np.sign(known[-ends:].mean() - known[:ends].mean())) if len(known) else 0.0


def _is_computed(found: Moved) -> bool:
    """Tells whether a measure is computed from another one, as advantages, so that it says less of whose a movement is."""
    return bool(found.panel.parents[0]) and not _is_point(found)


def _is_point(found: Moved) -> bool:
    """Tells whether a movement is of how many rows have one value of a number."""
    return found.panel.names[0].column == found.panel.parents[0]


class OfPanel(Protocol):
    """Something that is said of a measure."""

    @property
    def panel(self) -> Panel:
        """The series of the measure."""
        ...


Of = TypeVar("Of", bound=OfPanel)


def without_children(found: Sequence[Of]) -> list[Of]:
    """Those whose measure is not computed from that of another one, or of a number whose values are among the others."""
    names = {each.panel.names[0] for each in found}
    return [each for each in found if not any(_is_from(each.panel, name) for name in names)]


def _is_from(panel: Panel, name: SeriesName) -> bool:
    """Tells whether a measure is computed from another one, or is of one value of it."""
    own = panel.names[0]
    return (
        name.column == panel.parents[0] and (name.column != own.column or name.value is None) and name != own
    )


def is_learning(found: Moved) -> bool:
    """Tells whether a movement has no onset: slow change from the first step to the last."""
    return found.template.start == 0 and found.template.stop == len(found.panel.steps)


def first_steps(n: int) -> int:
    """Counts the steps, of a run's `n`, that are how it starts."""
    least, usual = STARTS_STEPS
    return max(min(least, n // OF_RUN), min(usual, n // 8), int(STARTS * n))


def starts(found: Moved) -> bool:
    """Tells whether a movement begins with the run."""
    return found.template.start <= first_steps(len(found.panel.steps))


def span(found: Moved) -> tuple[int, int | None]:
    """First and last step of a movement."""
    steps, template = found.panel.steps, found.template
    lasts = template.kind != "window" or template.stop == len(steps)
    return int(steps[template.start]), None if lasts else int(steps[template.stop - 1])


def _is_covered(each: Moved, entry: AlikeMovements) -> bool:
    """Tells whether an entry, as sure as a movement, is of the column that it is computed from."""
    parent = each.panel.parents[0]
    is_child = bool(parent) and any(f.panel.names[0].column == parent for f in entry.found)
    return is_child and (entry.head.is_sure or not each.is_sure)


def _joins(each: Moved, entry: AlikeMovements) -> bool:
    """Tells whether a movement is the entry's: of the same part, at the same steps, and, of all rows, slow change or not as it is, unless both are of what is paid and one is a loss."""
    of_part = bool(each.chosen.values) and each.chosen.values == entry.part
    if each.drift != entry.head.drift and not (of_part or _are_lost(each, entry.head)):
        return False
    if _same_series(each, entry):
        return False
    return _same_time(each, entry.head) and _same_part(each, entry)


def _are_lost(one: Moved, other: Moved) -> bool:
    """Tells whether two movements are of what is paid, and fall, and one of what training is for, which nobody learns."""
    fall = all(each.panel.names[0].is_paid and each.located.z < 0 for each in (one, other))
    return fall and (is_loss(one) or is_loss(other))


def _same_series(each: Moved, entry: AlikeMovements) -> bool:
    return any(f.panel.names[0] == each.panel.names[0] for f in entry.found)


def _same_part(each: Moved, entry: AlikeMovements) -> bool:
    of = each.panel, entry.head.panel
    if any(is_size(panel.names[0]) for panel in of) and any(panel.source is not None for panel in of):
        return False  # how many rollouts there are is another matter than what they do
    if each.chosen.values == entry.part:
        return True
    if entry.part is not None and entry.part in each.chosen.also:
        return True
    if each.chosen.values is not None and each.chosen.values in entry.head.chosen.also:
        return True
    if each.panel.is_centred and _the_others(each) == entry.part:  # what one part gains others lose
        return True
    if each.panel.source is not None or entry.head.panel.source is None:
        return False
    # what is logged is of all rollouts, the part's among them; what is set is of no part, nor how few carry the update
    return not (entry.part and (each.is_set or each.panel.names[0].statistic != "logged"))


def _the_others(found: Moved) -> Part:
    """The part of a column's other values."""
    return tuple(found.panel.parts[i][0] for i in sorted(found.chosen.outside))


def _same_time(each: Moved, head: Moved) -> bool:
    """Tells whether the head's steps explain a movement as well as its own do."""
    if is_spike(each) != is_spike(head) or (each.template.kind == "window") != (
        head.template.kind == "window"
    ):
        return False
    if span(each) == span(head):
        return True
    # when a number was set is known to the step
    is_exact = each.is_set or head.is_set
    if (is_exact or each.template.kind != head.template.kind) and not _begin_together(each, head):
        return False
    template = moved_to(head, each.panel)
    if template is None:
        return False
    one = _of_one(each)
    own, _ = coefficients(one, each.template.over(len(each.panel.steps)))
    other, _ = coefficients(one, template)
    if own[0] * other[0] <= 0 or abs(other[0]) < PLAINLY:
        return False
    lost = (own[0] ** 2 - other[0] ** 2) / 2
    # what may be chance is found near anything
    return bool(lost < (max(ALIKE, ALIKE_PART * own[0] ** 2 / 2) if each.is_sure else 1.0))


def _begin_together(one: Moved, other: Moved) -> bool:
    """Tells whether the intervals of the onsets overlap: a ramp over the run explains nearly any level that comes late."""
    (first, last), (low, high) = (f.panel.steps[list(f.located.onset)].tolist() for f in (one, other))
    return bool(first <= high and low <= last)


def _of_one(found: Moved) -> Whitened:
    at = np.asarray([found.chosen.at])
    return whitened(found.panel.values[at], found.noise.at(at), found.basis[at])


def moved_to(found: Moved, panel: Panel) -> np.ndarray | None:
    """A movement's template over the steps of other series, float [T]; None where none of them is in it."""
    own = found.panel.steps
    if np.array_equal(own, panel.steps):
        return found.template.over(len(own))
    values = found.template.over(len(own))
    at = np.searchsorted(own, panel.steps, side="right") - 1
    carried = np.where(at >= 0, values[np.maximum(at, 0)], 0.0)
    if found.template.kind == "window":
        carried[panel.steps > own[found.template.stop - 1]] = 0.0
    return carried if 0 < np.count_nonzero(carried) < len(carried) else None
