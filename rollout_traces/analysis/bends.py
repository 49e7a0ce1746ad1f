"""Slow change that bends: it turns, gets faster by far, or runs away; none of it saturates, as what is learned does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rollout_traces.analysis.compete import PLAINLY
from rollout_traces.analysis.detected_movement import (
    NEAR_EDGE,
    RESIDUE,
    STILL,
    WARM_UP,
    Moved,
    beside,
    rows_of_basis,
)
from rollout_traces.analysis.parts import THERE
from rollout_traces.analysis.scan import n_tests, polynomials, whitened
from rollout_traces.analysis.screen import freedom_of, log_chance
from rollout_traces.analysis.slow_change import SLOW
from rollout_traces.analysis.templates import Located, Template

FASTER = 3.0
"""Times as fast as before that a number goes behind a kink, or of what it had been that it goes beyond."""


def turns(found: Moved) -> bool:
    """Tells whether a series goes back, since a movement began, by more than half of what it had gone before: what is learned saturates."""
    at, n, start = found.chosen.at, len(found.panel.steps), found.template.start
    if found.template.kind == "window" or min(start, n - start) < SLOW * n:
        return False
    values = found.noise.clipped[at]
    known = np.isfinite(values)
    stretches = slice(NEAR_EDGE), slice(start - NEAR_EDGE, start), slice(n - NEAR_EDGE, n)
    if not all(known[each].any() for each in stretches):
        return False
    first, edge, last = (float(values[each][known[each]].mean()) for each in stretches)
    error = np.sqrt(2 * np.median(found.noise.variance[at][known]) / NEAR_EDGE)
    before, after = edge - first, last - edge
    return before * after < 0 and abs(after) > RESIDUE * abs(before) and abs(before) > STILL * error


def since_it_bent(drift: Moved, others: Sequence[Moved]) -> Moved:
    """What a series did since a kink in its slow change, where that is most of it: it turned, which nothing that saturates does, or got faster by far.

    The kink is at the step where one in a line explains most, beside what else the series did.

    Args:
        drift: slow change over the run, of one series.
        others: what else the series did.
    """
    at, n = np.asarray([drift.chosen.at]), len(drift.panel.steps)
    line = beside(drift.basis[at], np.concatenate([*map(rows_of_basis, others), polynomials(n, 1)[1:]]))
    w = whitened(drift.noise.clipped[at], drift.noise.at(at), line)
    kinks = np.maximum(np.arange(n) - np.arange(n)[:, None], 0.0)
    explained = w.explained(0, kinks)
    start = int(explained.argmax())
    z = float(np.sqrt(explained[start]))
    log_p = float(np.log(n_tests(n)) + log_chance(np.asarray(z), freedom_of(drift.panel)[at[0]]))
    white = w.apply(np.concatenate([line[0], kinks[start : start + 1]])[None])[0]
    size = np.linalg.lstsq(white.T, w.apply(np.nan_to_num(drift.noise.clipped[at]))[0], rcond=None)[0]
    slope = float(size[-2]) * 2 / (n - 1)
    slopes = slope, slope + float(size[-1])
    before, after = slopes[0] * start, slopes[1] * (n - 1 - start)
    is_turn = before * after < 0 and abs(after) > RESIDUE * abs(before)
    is_faster = abs(slopes[1]) > FASTER * abs(slopes[0]) and abs(after) > abs(before) / RESIDUE
    if not (is_turn or is_faster) or min(start, n - start) < SLOW * n or log_p > PLAINLY:
        return _since_it_ran_away(drift)
    near = np.flatnonzero(explained >= explained[start] - THERE**2)
    located = Located(
        Template("ramp", start, n), (int(near[0]), int(near[-1])), None, float(np.copysign(z, after))
    )
    return replace(drift, located=located, drift=not is_turn, log_p=log_p)


def _since_it_ran_away(drift: Moved) -> Moved:
    """A logged number that is looked at as its logarithm, since it began to go ever faster beyond all that it had been."""
    panel, at = drift.panel, drift.chosen.at
    levels, values, n = panel.levels[at], panel.values[at], len(panel.steps)
    if panel.source is not None or np.array_equal(levels, values) or not np.isfinite(levels).all():
        return drift
    end = float(levels[n - NEAR_EDGE :].mean())
    beyond = [
        each
        for each in range(max(int(SLOW * n), WARM_UP + NEAR_EDGE), n - int(SLOW * n) + 1)
        if abs(end - float(np.median(levels[each - NEAR_EDGE : each])))
        > FASTER * float(np.ptp(levels[WARM_UP:each]))
    ]
    if not beyond:
        return drift
    line, t = polynomials(n, 1)[:, WARM_UP:], np.arange(WARM_UP, n)
    bent = [np.vstack([line, np.maximum(t - each, 0)]).T for each in beyond]
    start = beyond[
        int(np.argmin([np.linalg.lstsq(each, values[WARM_UP:], rcond=None)[1][0] for each in bent]))
    ]
    first, middle, last = (float(each.mean()) for each in np.array_split(levels[start:], 3))
    if (last - middle) * (middle - first) <= 0 or abs(last - middle) < abs(middle - first):
        return drift
    z = float(np.copysign(drift.located.z, last - first))
    onset = max(start - NEAR_EDGE, 0), min(start + NEAR_EDGE, n - 1)
    return replace(drift, located=Located(Template("ramp", start, n), onset, None, z))
