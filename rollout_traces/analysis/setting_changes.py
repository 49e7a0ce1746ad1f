"""The changes of a logged number that stays as it is between them, such as a learning rate: as they are, without a search."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollout_traces.analysis.noise import Noise, is_setting
from rollout_traces.analysis.panel import Panel
from rollout_traces.analysis.templates import Located, Template

MOST_CHANGES = 6
"""Changes of a setting; a number that has more is counted, not set."""


@dataclass(frozen=True)
class _Change:
    """From one value to another, over a step or over several that follow each other."""

    start: int
    stop: int
    before: float
    after: float


def setting_changes(panel: Panel, noise: Noise) -> list[Located] | None:
    """The changes of a logged number that mostly stays as it is, each with its size in usual errors.

    Args:
        panel: one series for a logged scalar.
        noise: its noise.

    Returns:
        The changes in their order; None where it is another kind of series, or changes too often.
    """
    if panel.measure is not None or not np.isfinite(panel.values).all() or not is_setting(panel.values)[0]:
        return None
    return changes_of(panel.values[0], float(np.sqrt(np.median(noise.variance[0]))))


def changes_of(values_T: np.ndarray, error: float) -> list[Located] | None:
    """Changes: there and back as a window, several steps of one direction as a ramp, else a level.

    Args:
        values_T: float [T], without gaps.
        error: what a value may differ by and be the same.

    Returns:
        The changes in their order; None where these are no changes of a setting.
    """
    n = len(values_T)
    apart = np.diff(values_T)
    changes: list[_Change] = []
    for at in (np.flatnonzero(np.abs(apart) > error) + 1).tolist():
        before, after = float(values_T[at - 1]), float(values_T[at])
        earlier = changes[-1] if changes else None
        if earlier and earlier.stop == at and (earlier.after - earlier.before) * (after - before) > 0:
            changes[-1] = _Change(earlier.start, at + 1, earlier.before, after)
        else:
            changes.append(_Change(at, at + 1, before, after))
    if not changes or len(changes) > MOST_CHANGES:
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
