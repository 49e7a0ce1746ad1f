"""What comes and goes: steps here and there, or every tenth one, at which a measure is far from all others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rollout_traces.analysis.compete import without_children
from rollout_traces.analysis.curves import FEWEST_TIMES, STEP_SIZE, Part
from rollout_traces.analysis.detected_movement import NEAR, STILL
from rollout_traces.analysis.diagnosis import OTHER, Diagnosis, Movement, Severity
from rollout_traces.analysis.entries import LARGEST, named
from rollout_traces.analysis.in_words import (
    number,
    part_filter,
    part_text,
    percent,
    series_text,
    steps_filter,
)
from rollout_traces.analysis.learning import is_given
from rollout_traces.analysis.noise import CLIPPED, DEVIATION, TINY, UNEVEN, of_neighbours
from rollout_traces.analysis.panel import FEWEST_GROUPS, Panel
from rollout_traces.analysis.parts import FEWEST_ROWS, PLAINLY, REMAINS, SAME_ROWS
from rollout_traces.analysis.run_rows import BY_OUTCOME, FEWEST_HITS
from rollout_traces.analysis.scan import SPIKE
from rollout_traces.analysis.schedules import is_logged, setting_changes
from rollout_traces.analysis.screen import TAIL, log_chance
from rollout_traces.analysis.severity import SURE
from rollout_traces.analysis.slow_change import FASTER, PLAIN_CHANCE

LONGEST_PERIOD = 64
"""Steps from one time to the next of what comes every so many, at most."""
GOES = "comes and goes"
"""The name of such an entry."""
MOST_TIMES = 1 / 3
"""Part of the steps, at most; of more nobody knows which are the usual ones."""


@dataclass(frozen=True, eq=False)
class _Recurring:
    """A series that is far off at some steps: which, int [K] places, the log of its chance, the levels there and at the others, whether it never was before the first, and whether those are by how much it goes up and down instead."""

    panel: Panel
    part: Part
    at: np.ndarray
    log_p: float
    there: float
    usual: float
    begins: bool = False
    is_spread: bool = False


def recurring_entries(panels: Sequence[Panel], n_rows: float) -> list[Diagnosis]:
    """An entry for each set of steps at which measures of rollouts are off together, of the smallest part that shows it.

    Args:
        panels: the series of the run.
        n_rows: its rollouts.
    """
    n_series = np.log(max(sum(len(panel.names) for panel in panels), 1))
    found: list[list[_Recurring]] = []
    for panel in panels:
        is_known = panel.source is not None or is_logged(panel)
        if not is_known or is_given(panel) or setting_changes(panel) is not None:
            continue
        seen = _seen(panel, _since) or _seen(panel, _far_off) or _seen(panel, _every)
        best = min(seen, key=lambda each: each.log_p, default=None)
        if best is not None and not _is_mix(panel, best.at):
            whose = best
            if not best.is_spread:
                whose = _levels(panel, _whose(panel, best), best.at, best.log_p, best.begins)
            if panel.is_centred and not whose.part:  # the same at each step but for rounding
                continue
            _joined(found, whose).append(whose)
    sure = [each for each in found if any(one.log_p + n_series <= _limit(one) for one in each)]
    kept = [sorted(without_children(each), key=lambda one: (-len(one.at), one.log_p)) for each in sure]
    kept = [each for each in kept if not _is_usual(each)]
    return [_entry(each, n_rows, float(n_series)) for each in kept]


def _seen(panel: Panel, find: Callable[[Panel, int], _Recurring | None]) -> list[_Recurring]:
    """What is found of the series of a panel that jump, each hardly by chance."""
    found = [each for each in (find(panel, i) for i in _that_jump(panel)) if each is not None]
    if is_logged(panel):
        found = [replace(each, log_p=each.log_p + _log_chance_of_period(each)) for each in found]
    return [each for each in found if each.log_p <= PLAIN_CHANCE]


def _log_chance_of_period(found: _Recurring) -> float:
    """Log of the chance that so many of the steps lie at one distance from each other; 0 where they do not."""
    n, k = len(found.panel.steps), len(found.at)
    if k < FEWEST_TIMES or not period_of(found.panel.steps[found.at]):
        return 0.0
    return min(float(np.log(n**2 / (2 * (k - 1)))) - math.log(math.comb(n, k)), 0.0)


def _limit(found: _Recurring) -> float:
    """Log of the chance, over all series, up to which one is said: more is known of what had never been before."""
    return PLAIN_CHANCE if found.begins and not found.is_spread else float(np.log(SURE))


def _joined(found: list[list[_Recurring]], other: _Recurring) -> list[_Recurring]:
    """Those of the same part, one's steps nearly all among the other's; a new list where there are none."""
    steps = set(other.panel.steps[other.at].tolist())
    for each in found:
        own = set(each[0].panel.steps[each[0].at].tolist())
        is_alike = (each[0].part, each[0].is_spread) == (other.part, other.is_spread)
        if is_alike and len(own & steps) >= SAME_ROWS * min(len(own), len(steps)):
            return each
    found.append([])
    return found[-1]


def _is_usual(found: Sequence[_Recurring]) -> bool:
    """Tells whether logged numbers alone come and go, from the start or without a plan, as the time of steps that write a checkpoint, and not only from a later step on."""
    is_regular = bool(period_of(found[0].panel.steps[found[0].at]))
    begins = any(each.begins for each in found)
    return all(is_logged(each.panel) for each in found) and (
        _is_planned(found[0]) or not (is_regular or begins)
    )


def _is_planned(found: _Recurring) -> bool:
    """Tells whether something comes every so many steps since the run began."""
    steps, period = found.panel.steps, period_of(found.panel.steps[found.at])
    return bool(period) and bool(steps[found.at[0]] - steps[0] <= period)


def _is_mix(panel: Panel, at: np.ndarray) -> bool:
    """Tells whether the steps are those of other rollouts: some part is more than half of them there, or at the others, beside what it is otherwise."""
    share_S_T = panel.rows / np.maximum(panel.rows[0], 1.0)
    there = np.isin(np.arange(len(panel.steps)), at)
    return bool(
        (np.abs(share_S_T[:, there].mean(axis=1) - share_S_T[:, ~there].mean(axis=1)) > REMAINS).any()
    )


def _that_jump(panel: Panel) -> list[int]:
    """The series that jump several times by more than their groups differ."""
    with np.errstate(invalid="ignore"):
        jumps = np.diff(panel.values, axis=1) ** 2 > PLAINLY**2 * np.median(
            panel.errors, axis=1, keepdims=True
        )
    return np.flatnonzero(jumps.sum(axis=1) >= FEWEST_TIMES).tolist()


def _far_off(panel: Panel, i: int) -> _Recurring | None:
    """The steps at which a series lies beyond a gap in how far its steps lie from the usual level.

    Under a tail of exponent n, the ratio of the k-th largest distance to the next exceeds r with a chance of r^(-n k) (Renyi 1953).
    """
    values = panel.levels[i] if is_logged(panel) else panel.values[i]
    places = np.flatnonzero(np.isfinite(values))
    if len(places) * MOST_TIMES < FEWEST_TIMES:
        return None
    left = _off_neighbours(panel, i, values[places], places)
    most = int(len(places) * MOST_TIMES)
    beyond = max(float(np.median(np.abs(left))), PLAINLY)
    best: tuple[float, np.ndarray] | None = None
    for side in (left, -left):
        order = np.argsort(-side, kind="stable")
        far, counts = side[order], np.arange(FEWEST_TIMES, most + 1)
        ratios = far[counts - 1] / np.maximum(far[counts], beyond)
        log_p = np.log(2 * len(counts)) - TAIL * counts * np.log(np.maximum(ratios, 1.0))
        k = int(np.argmin(log_p))
        if best is None or log_p[k] < best[0]:
            best = float(log_p[k]), np.sort(places[order[: counts[k]]])
    assert best is not None
    return _of_several(panel, i, best[1], best[0])


def _off_neighbours(panel: Panel, i: int, values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """By how many errors some values of a series, float [N], lie from their neighbours: of the groups there, or of a logged number its own."""
    left = values - of_neighbours(values)
    if is_logged(panel):
        error = DEVIATION * np.median(np.abs(left))
    else:
        around, usual = of_neighbours(panel.errors[i][places]), np.median(panel.errors[i][places])
        error = np.sqrt(np.where(around > UNEVEN * usual, around, usual))
    return np.asarray(left / np.maximum(error, TINY**0.5))


def _of_several(panel: Panel, i: int, at: np.ndarray, log_p: float) -> _Recurring | None:
    """A series that is off at some steps, where these have several rows and groups of it; of a share, several by which it is off."""
    n_rows, n_groups = (np.median(counted[i][at]) for counted in (panel.rows, panel.groups))
    is_plain = is_logged(panel) or (n_rows >= FEWEST_ROWS and n_groups >= FEWEST_GROUPS)
    found = _levels(panel, i, at, log_p)
    by = abs(found.there - found.usual) * n_rows if panel.is_share else np.inf
    return found if is_plain and by >= FEWEST_HITS else None


def _every(panel: Panel, i: int) -> _Recurring | None:
    """The steps that come every so many up to the end, at which a series of rollouts lies to one side of its neighbours by more than an error on average.

    Each counts `CLIPPED` errors at most, so that a few alone are nothing that comes again.
    """
    if panel.source is None:
        return None
    places = np.flatnonzero(np.isfinite(panel.values[i]))
    size = _off_neighbours(panel, i, panel.values[i, places], places)
    size = np.clip(size / max(1.0, DEVIATION * float(np.median(np.abs(size)))), -CLIPPED, CLIPPED)
    size -= size.mean()  # of a share that is rare all lie above
    n, best, at, tried = len(size), 0.0, places[:0], 0
    root = np.sqrt(np.arange(1, n + 1))[FEWEST_TIMES - 1 :, None]
    for period in range(SPIKE, min(n // FEWEST_TIMES, LONGEST_PERIOD) + 1):
        n_times = n // period
        by_phase = size[n - n_times * period :].reshape(n_times, period)[::-1]
        z = np.abs(np.cumsum(by_phase, axis=0))[FEWEST_TIMES - 1 :] / root[: n_times - FEWEST_TIMES + 1]
        z[z * period < root[: len(z)] * (period - 1)] = 0.0
        times, phase = divmod(int(z.argmax()), period)
        tried += z.size
        if z[times, phase] > best:
            best, first = float(z[times, phase]), n - (times + FEWEST_TIMES) * period + phase
            at = places[first::period]
    if not len(at):
        return None
    return _of_several(panel, i, at, float(np.log(tried) + log_chance(np.asarray(best), np.asarray(np.inf))))


def _since(panel: Panel, i: int) -> _Recurring | None:
    """The steps at which a series is at the other one of two levels, between which it goes since one of them by more than it did before; or, of a logged number, all since then where it goes up and down by so much more."""
    places = np.flatnonzero(np.isfinite(panel.values[i]) & (panel.rows[i] > 0))
    values, errors = panel.values[i, places], np.nan_to_num(panel.errors[i, places])
    jumps, error = np.abs(np.diff(values)), np.sqrt(errors[1:] + errors[:-1])
    is_number, nothing = is_logged(panel), TINY**0.5
    if is_number and panel.names[0] != STEP_SIZE and not np.median(jumps):  # as the least reward of a step
        return None
    usual = DEVIATION * np.median(jumps) if is_number else np.maximum(error, np.median(error))
    jumps /= np.maximum(usual, nothing)
    log_p, start = _begins(jumps, PLAINLY)
    at = _at_another_level(values, start)
    if len(at):
        chance = _log_chance_of_two(values, start, at, PLAINLY * float(np.median(usual)))
        return _levels(panel, i, places[at], min(log_p, chance), begins=True)
    if not is_number:
        return None
    levels = panel.levels[i, places]
    of_size = levels
    if levels.min() >= 0 and levels.any():  # what is larger differs by more
        of_size = np.log(np.maximum(levels, levels[levels > 0].min()))
    bends, by = np.abs(np.diff(of_size, 2)), np.abs(np.diff(levels))  # a line goes on, and bends by nothing
    log_p, start = _begins(bends, nothing)
    if not start or not all(
        np.median(each[start:]) > FASTER * np.median(each[: start - 1]) > 0 for each in (bends, by)
    ):
        return None
    there, usual = float(np.median(by[start:])), float(np.median(by[: start - 1]))
    return _Recurring(panel, panel.parts[i], places[start:], log_p, there, usual, begins=True, is_spread=True)


def _begins(jumps: np.ndarray, least: float) -> tuple[float, int]:
    """Log of the chance of the jumps that lie beyond all before one of them, and the place behind the first of those; 0 where there are none.

    That the k largest of n + s are all among the last n has a chance of C(n, k) / C(n + s, k) where nothing changed; how far they lie beyond the next one is as for `_far_off`.

    Args:
        jumps: float [N].
        least: what a jump is no more than at times.
    """
    n_jumps, log_p, start = len(jumps), 0.0, 0
    largest = np.maximum(np.maximum.accumulate(jumps), least)
    furthest = 1 + np.flatnonzero(jumps[1:] > largest[:-1])
    for first in furthest[(furthest >= 2 * FEWEST_TIMES) & (furthest < n_jumps - FEWEST_TIMES)].tolist():
        before, later = largest[first - 1], np.sort(jumps[first:])[::-1]
        k = np.arange(FEWEST_TIMES, int((later > before).sum()) + 1)
        if not len(k):
            continue
        n = len(later)
        of_order = np.cumsum(np.log(np.arange(n, 0, -1) / np.arange(n_jumps, n_jumps - n, -1)))
        nexts = np.maximum(np.append(later, 0.0)[k], before)
        chance = np.log(n_jumps) + of_order[k - 1] - TAIL * k * np.log(later[k - 1] / nexts)
        if chance.min() < log_p:
            log_p, start = float(chance.min()), first + 1
    return log_p, start


def _at_another_level(values: np.ndarray, start: int) -> np.ndarray:
    """The places from a start on at which a series, float [N], is at the one of two levels where it was not before; none where those are not plainly two, or it hardly goes between them."""
    if not start:
        return np.empty(0, np.int64)
    before, since = float(np.median(values[max(start - NEAR, 0) : start])), values[start:]
    ordered = np.sort(since)
    sums, n = np.cumsum(ordered)[:-1], np.arange(1, len(ordered))
    lows, highs = sums / n, (ordered.sum() - sums) / n[::-1]
    split = int(np.argmax(n * n[::-1] * (highs - lows) ** 2))
    low, high = lows[split], highs[split]
    is_high = since > ordered[split]
    spread = float(np.sqrt(((since - np.where(is_high, high, low)) ** 2).mean()))
    is_other = is_high if abs(high - before) > abs(low - before) else ~is_high
    n_times = int((np.diff(is_other.astype(int), prepend=0) > 0).sum())
    is_plain = high - low > STILL * spread and n_times >= FEWEST_TIMES
    return start + np.flatnonzero(is_other & is_plain)


def _log_chance_of_two(values: np.ndarray, start: int, at: np.ndarray, least: float) -> float:
    """Log of the chance that steps lie so much further from what was usual before than any of the others, as for `_far_off`.

    Args:
        values: float [N].
        start: the place since which they do.
        at: int [K], their places.
        least: how far a step may lie at times.
    """
    away = np.abs(values - np.median(values[:start]))
    following = max(float(np.delete(away, at).max()), least, TINY)
    gap = np.log(max(float(away[at].min()), TINY)) - np.log(following)
    return float(np.log(len(values)) - TAIL * len(at) * max(gap, 0.0))


def _levels(panel: Panel, i: int, at: np.ndarray, log_p: float, begins: bool = False) -> _Recurring:
    """A series with its levels at some steps and at the others."""
    known = np.isfinite(panel.levels[i]) & (panel.rows[i] > 0)
    beside = known.copy()
    beside[at] = False
    there, usual = (
        float(np.average(panel.levels[i][each], weights=panel.rows[i][each])) if each.any() else 0.0
        for each in (known & ~beside, beside)
    )
    return _Recurring(panel, panel.parts[i], at, log_p, there, usual, begins)


def _whose(panel: Panel, seen: _Recurring) -> int:
    """The series of the one value of a column in which a measure is off, by half of what was seen at least, where in each other one it is off by less than half as much; else that of all rows."""
    at, best, largest = seen.at, 0, REMAINS * abs(seen.there - seen.usual)
    for column in dict.fromkeys(part[0][0] for part in panel.parts if part and part[0][0] not in BY_OUTCOME):
        members = [i for i, part in enumerate(panel.parts) if part and part[0][0] == column]
        off = {i: abs(one.there - one.usual) for i in members for one in [_levels(panel, i, at, 0.0)]}
        top = max(members, key=lambda i: off[i])
        rest = max((off[i] for i in members if i != top), default=off[top])
        if rest < REMAINS * off[top] and off[top] > largest:
            best, largest = top, off[top]
    return best


def period_of(steps: np.ndarray) -> int:
    """The distance at which steps come, int [K]; 0 where it is not the same each time."""
    apart = np.unique(np.diff(steps))
    return int(apart[0]) if len(apart) == 1 and apart[0] > 1 else 0


def _entry(found: Sequence[_Recurring], n_rows: float, n_series: float) -> Diagnosis:
    head = found[0]
    steps = head.panel.steps[head.at]
    first, last = int(steps[0]), int(steps[-1])
    moved = [
        Movement(
            each.panel.names[0],
            each.part,
            "recurring",
            (first, first),
            first,
            (last, last),
            last,
            each.usual,
            each.there,
            float(np.sign(each.there - each.usual)),
            float(np.exp(each.log_p)),
        )
        for each in found
    ]
    signature, at = named(moved, [abs(m.z) for m in moved], head.part, False)
    lead, others = moved[at], [*moved[:at], *moved[at + 1 :]]
    form = percent if lead.name.value is not None else number
    period, n = period_of(steps), len(head.panel.steps)
    listed = ", ".join(map(str, steps[: FEWEST_TIMES + 1].tolist())) + (
        ", …" if len(steps) > FEWEST_TIMES + 1 else ""
    )
    of = f"the {int((head.panel.steps >= first).sum())} steps since {first}" if head.begins else f"{n} steps"
    when = f"every {period} steps from {first} on" if period else f"at {len(steps)} of {of} ({listed})"
    on = f" on {part_text(head.part)}" if head.part else ""
    also = ", ".join(dict.fromkeys(series_text(m.name) for m in others))
    every = ", ".join(map(str, steps.tolist()))
    at_steps = steps_filter(first, None) if head.is_spread else f"step in ({every})"
    there, usual = form(lead.after or 0.0), form(lead.before or 0.0)
    what = f"is {there}{on} {when}, {usual} at the others"
    if head.is_spread:
        what = f"goes up and down by {there} from step to step{on}, since step {first}, by {usual} before"
    return Diagnosis(
        severity=_severity(found, n_series),
        sentence=f"{series_text(lead.name)} {what}{'; with it ' + also if also else ''}.",
        advice="" if head.is_spread else "What happens at these steps, and at no others?",
        tier=signature.tier if signature else OTHER,
        series=tuple(m.name for m in (lead, *others)),
        part=head.part,
        shape="recurring",
        onset=(first, first),
        step=first,
        end=(last, last),
        last=last,
        before=lead.before,
        after=lead.after,
        p=lead.p,
        cost=LARGEST
        * float(head.panel.rows[head.panel.parts.index(head.part)][head.at].sum())
        / max(n_rows, 1.0),
        where=" and ".join(filter(None, (part_filter(head.part), at_steps))),
        name="varies more" if head.is_spread else GOES,
        movements=(lead, *others),
    )


def _severity(found: Sequence[_Recurring], n_series: float) -> Severity:
    """An error where rewards fail since a step, beyond chance over all series, of which the log is given; a warning where they come and go, or where it is none of what somebody planned since the run began. That a number goes up and down by more is info, as the largest of a step's rewards may."""
    if found[0].is_spread:
        return "info"
    paid = [each for each in found if each.panel.names[0].is_paid]
    if any(
        each.begins and each.there < each.usual and each.log_p + n_series <= np.log(SURE) for each in paid
    ):
        return "error"
    return "info" if _is_planned(found[0]) and not paid else "warn"
