"""Logged numbers that somebody set, that follow a schedule, that a controller adapts or that count: what they jump by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollout_traces.analysis.kinks import kink_of
from rollout_traces.analysis.noise import OF_LEVEL, TINY, is_occasional, is_setting
from rollout_traces.analysis.panel import Panel
from rollout_traces.analysis.run_rows import ROUNDING
from rollout_traces.analysis.scan import OF_RUN, Located, Template

MOST_CHANGES = 6
"""Changes of a setting; a number that has more is counted, not set."""


@dataclass(frozen=True)
class _Change:
    """From one value to another, over a step or over several that follow each other."""

    start: int
    stop: int
    before: float
    after: float


def setting_changes(panel: Panel) -> list[Located] | None:
    """The changes of a logged number that somebody set, or that counts, each with its size in what it may go on by.

    Args:
        panel: one series for a logged scalar.

    Returns:
        The changes in their order, none of a number that keeps to its schedule; None where it is another kind of series, or changes too often.
    """
    levels_T = panel.levels[0]
    if panel.measure is not None or not np.isfinite(levels_T).all():
        return None
    if is_logged(panel) and (counts(levels_T) or is_rounding(levels_T)):
        return []
    if is_logged(panel) and is_setting(levels_T[None])[0] and is_occasional(levels_T):
        return None
    if is_logged(panel) and is_adapted(levels_T):
        return []
    if _turns_again(levels_T):
        return None
    if not has_no_noise(levels_T) or (is_logged(panel) and _is_steered_away(panel)):
        return None
    return changes_of(*jumps_of(levels_T))


def _turns_again(levels_T: np.ndarray) -> bool:
    """Tells whether a number that mostly stays as it is goes up and down again and again in one stretch of the run, where nobody sets it, as the rollouts that a filter leaves."""
    by = np.diff(levels_T)
    ways = np.sign(by[by != 0])
    turns = int((ways[1:] != ways[:-1]).sum())
    return bool(is_setting(levels_T[None])[0]) and not is_steered(levels_T) and turns > MOST_CHANGES


def _is_steered_away(panel: Panel) -> bool:
    """Tells whether a number that looks steered, as one whose noise lasts does, runs away."""
    levels_T = panel.levels[0]
    keeps_to_it = bool(is_setting(levels_T[None])[0]) or is_scheduled(levels_T)
    return not keeps_to_it and kink_of(panel, 0) is not None


def has_no_noise(values_T: np.ndarray) -> bool:
    """Tells whether a number is set, keeps to a schedule or is steered.

    Args:
        values_T: float [T], without gaps.
    """
    return bool(is_setting(values_T[None])[0]) or is_scheduled(values_T) or is_steered(values_T)


def is_logged(panel: Panel) -> bool:
    """Tells whether a series is a number that the trainer logged."""
    return panel.names[0].statistic == "logged"


def is_rounding(values_T: np.ndarray) -> bool:
    """Tells whether a number is what rounding leaves of 0, as the mean of advantages that are centred: up to float32's where it has both signs.

    Args:
        values_T: float [T], without gaps.
    """
    least = float(np.finfo(np.float32).eps)
    return bool(np.abs(values_T).max() < (least if values_T.min() < 0 < values_T.max() else least**2))


def counts(values_T: np.ndarray) -> bool:
    """Tells whether a number counts something, as tokens, samples or hours since the run began, or since it was resumed: that it rises is no news."""
    by = np.diff(values_T)
    usual, is_whole = np.median(by), (values_T == np.round(values_T)).all()
    if is_whole and set(by.tolist()) == {0.0, 1.0}:  # as an epoch does
        return True
    again = values_T[1:][by <= 0]
    is_back = len(again) > 0 and bool((np.abs(again - values_T[0]) <= BESIDE * usual).all())
    from_nothing = is_whole or is_back or BESIDE * values_T[0] <= values_T.max()
    alike = np.median(np.abs(by - usual)) < usual / 2
    return bool(from_nothing and alike) and int((by <= 0).sum()) <= MOST_CHANGES


SMOOTH = 1 / 2
"""A number without noise changes its rate less and less: what is left is less than this much at each further difference."""
TAKEN_BACK = 1 / 4
"""Part of a step, beside those around it, that the next one takes back of a number with noise: a half of white noise."""
BESIDE = 5
"""Steps to each side of one that say by how much a schedule goes on ..."""
JUMPS = 2.0
"""... and times that by which it goes on where it jumps."""


def is_scheduled(values_T: np.ndarray) -> bool:
    """Tells whether a number follows a smooth curve without any noise, as a learning rate does that is warmed up and decays.

    Args:
        values_T: float [T], without gaps.
    """
    curve, left = (float(np.median(np.abs(np.diff(values_T, n)))) for n in (2, 3))
    return left <= max(SMOOTH * curve, ROUNDING * float(np.abs(values_T).max()))


def is_steered(values_T: np.ndarray) -> bool:
    """Tells whether a number goes up and down by steps that are much like those before them, as a coefficient does that a controller adapts, and none takes the one before it back, as noise does.

    Args:
        values_T: float [T], without gaps.
    """
    by = np.diff(values_T)
    if min((by > 0).sum(), (by < 0).sum()) < BESIDE:
        return False
    around = np.lib.stride_tricks.sliding_window_view(np.pad(by, BESIDE, mode="reflect"), 2 * BESIDE + 1)
    rest = by - np.median(around, axis=1)
    keeps = rest[1:] @ rest[:-1] >= -TAKEN_BACK * (rest @ rest)
    return bool(keeps and np.median(np.abs(np.diff(by))) <= SMOOTH * np.median(np.abs(by)))


def likelihood_of_wandering(values_T: np.ndarray) -> float:
    """Log likelihood, on the scale of `Fits`, of a number that goes on from where it is by steps that are like those before, as one does that is steered.

    Args:
        values_T: float [T], without gaps.
    """
    by = np.diff(values_T)
    before, after = by[:-1], by[1:]
    lasts = np.clip((before * after).sum() / max((before**2).sum(), TINY), 0.0, 1.0)
    squares = by[0] ** 2 + ((after - lasts * before) ** 2).sum()
    return float(-len(values_T) / 2 * np.log(max(squares, TINY)))


def is_adapted(values_T: np.ndarray) -> bool:
    """Tells whether a number changes again and again by the same factor, both ways, as a coefficient does that a controller multiplies.

    Args:
        values_T: float [T], without gaps.
    """
    by = np.diff(np.log(values_T)) if values_T.min() > 0 else np.empty(0)
    size = np.abs(by[np.abs(by) > OF_LEVEL])
    if len(size) <= MOST_CHANGES or by.min() > -OF_LEVEL or by.max() < OF_LEVEL:
        return False
    usual, (second, largest) = np.median(size), np.sort(size)[-2:]
    alike = np.abs(size - usual) <= OF_LEVEL * usual
    return bool(alike.mean() > 1 / 2 and largest <= JUMPS * second)


def jumps_of(values_T: np.ndarray) -> tuple[np.ndarray, float]:
    """A schedule without what it goes on by between its jumps, float [T], and what it may go on by where they are; that one goes on at all, which had stood still, is a jump."""
    by = np.diff(values_T)
    around = np.lib.stride_tricks.sliding_window_view(np.pad(by, BESIDE, mode="reflect"), 2 * BESIDE + 1)
    # one side of which goes the other way all the time says nothing of how far a step goes
    usual = np.maximum(
        *(
            np.where((side * by[:, None] < 0).all(axis=1), 0.0, np.median(np.abs(side), axis=1))
            for side in (around[:, :BESIDE], around[:, BESIDE + 1 :])
        )
    )
    level = np.abs(values_T).max()
    if is_setting(values_T[None])[0]:
        for start, stop in _moves(by):
            one_way = (by[start:stop] >= 0).all() or (by[start:stop] <= 0).all()
            if one_way and _stood(by, start + 1):
                usual[start:stop] = 0.0
                level = np.median(np.abs(values_T)) or level
    jumped = np.abs(by) > JUMPS * usual
    usual_at_jumps = max(float(np.max(usual, where=jumped, initial=0.0)), OF_LEVEL * float(level))
    return values_T[0] + np.concatenate([[0.0], np.cumsum(np.where(jumped, by, 0.0))]), (
        1 + JUMPS
    ) * usual_at_jumps


def _stood(by_T: np.ndarray, start: int) -> bool:
    """Tells whether a number stood still for the ten steps before one, of what it goes on by."""
    return start > 2 * BESIDE and not by_T[start - 1 - 2 * BESIDE : start - 1].any()


def _moves(by_T: np.ndarray) -> list[tuple[int, int]]:
    """First place and the one behind the last of each stretch in which a number goes on, by every few steps at least as one that is whole does."""
    at = np.flatnonzero(by_T)
    ends = np.flatnonzero(np.diff(at) > BESIDE)
    return [(int(each[0]), int(each[-1]) + 1) for each in np.split(at, ends + 1) if len(each)]


def changes_of(values_T: np.ndarray, error: float) -> list[Located] | None:
    """Changes: there and back as a window, several steps of one direction, of which one follows another soon, as a ramp, else a level.

    Args:
        values_T: float [T], without gaps.
        error: what a value may differ by and be the same.

    Returns:
        The changes in their order; None where these are no changes of a setting.
    """
    n = len(values_T)
    apart = np.diff(values_T)
    changes: list[_Change] = []
    for at in (np.flatnonzero(apart) + 1).tolist():
        before, after = float(values_T[at - 1]), float(values_T[at])
        earlier = changes[-1] if changes else None
        soon = earlier is not None and at - earlier.stop < (BESIDE if _stood(apart, earlier.start) else 1)
        if earlier and soon and (earlier.after - earlier.before) * (after - before) > 0:
            changes[-1] = _Change(earlier.start, at + 1, earlier.before, after)
        else:
            changes.append(_Change(at, at + 1, before, after))
    changes = [each for each in changes if abs(each.after - each.before) > error]
    if len(changes) > 1 and np.ptp([change.after - change.before for change in changes]) <= error:
        return []  # as an epoch does
    if len(changes) > MOST_CHANGES:
        return None
    found = []
    while changes:
        first = changes.pop(0)
        size = (first.after - first.before) / error
        back = changes[0] if changes else None
        stood = first.start > 1  # a first step alone, as of a warm-up, is no level to come back to
        if back is not None and stood and abs(back.after - first.before) <= error:
            changes.pop(0)
            window = Template("window", first.start, back.start)
            end = back.start - 1, back.stop - 2
            found.append(Located(window, (first.start, first.stop - 1), end, size))
        elif first.stop - first.start > 1:
            ramp = Template("ramp", first.start, first.stop)
            found.append(Located(ramp, (first.start, first.start), None, size))
        else:
            found.append(Located(Template("level", first.start, n), (first.start, first.start), None, size))
    return found


def warm_up_of(panels: Sequence[Panel]) -> int:
    """Counts the first steps over which a number that is set or scheduled is raised from less than half of its most, as a learning rate is; 0 where none is, or for more of the run than is how it starts.

    Args:
        panels: of logged numbers, one series each.
    """
    found = 0
    for panel in panels:
        levels_T = panel.levels[0]
        if not is_logged(panel) or not np.isfinite(levels_T).all() or not has_no_noise(levels_T):
            continue
        most = int(levels_T.argmax())
        rises = (np.diff(levels_T[: most + 1]) > 0).all()
        if rises and most <= len(levels_T) // OF_RUN and 2 * levels_T[0] < levels_T[most]:
            found = max(found, most)
    return found
