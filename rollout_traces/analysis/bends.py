"""Slow change that bends: it turns, gets faster by far, or runs away; none of it saturates, as what is learned does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rollout_traces.analysis.compete import PLAINLY, is_spike
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
from rollout_traces.analysis.scan import Whitened, n_tests, polynomials, whitened
from rollout_traces.analysis.screen import freedom_of, log_chance
from rollout_traces.analysis.slow_change import SCARCE, SLOW
from rollout_traces.analysis.templates import Located, Template

FASTER = 3.0
"""Times as fast as before that a number goes behind a kink, or of what it had been that it goes beyond."""

MOST_KINKS = 512
"""Steps at which a kink is looked for, spaced evenly over a longer run."""


def turns(found: Moved) -> bool:
    """Tells whether a series went one way before a movement, and since it began back by more than half of that: what is learned saturates."""
    template, n = found.template, len(found.panel.steps)
    if template.kind == "window" or min(template.start, n - template.start) < SLOW * n:
        return False
    before, after, error = _ways(found, template.start)
    is_way = abs(before) > max(STILL * error, SCARCE / 2 * abs(after))
    return is_way and before * after < 0 and abs(after) > RESIDUE * abs(before)


def _ways(found: Moved, start: int) -> tuple[float, float, float]:
    """By how much a series went before a step, and since, and the error of such a difference; 0 where that is not known."""
    at, n = found.chosen.at, len(found.panel.steps)
    values = found.noise.clipped[at]
    known = np.isfinite(values)
    stretches = slice(NEAR_EDGE), slice(max(start - NEAR_EDGE, 0), start), slice(n - NEAR_EDGE, n)
    if not all(known[each].any() for each in stretches):
        return 0.0, 0.0, 0.0
    first, edge, last = (float(values[each][known[each]].mean()) for each in stretches)
    error = float(np.sqrt(2 * np.median(found.noise.variance[at][known]) / NEAR_EDGE))
    return edge - first, last - edge, error


def since_it_bent(drift: Moved, others: Sequence[Moved]) -> Moved:
    """What a series did since a kink in its slow change, where that is most of it: it turned, which nothing that saturates does, or got faster by far.

    The kink is at the step where one in a line explains most, beside what else the series did but turns.

    Args:
        drift: slow change over the run, of one series.
        others: what else the series did.
    """
    at, n = np.asarray([drift.chosen.at]), len(drift.panel.steps)

    def beside_all(rows: Sequence[np.ndarray], degree: int) -> Whitened:
        basis = beside(drift.basis[at], np.concatenate([*rows, polynomials(n, degree)[1:]]))
        return whitened(drift.noise.clipped[at], drift.noise.at(at), basis)

    back = [each for each in others if turns(each)]
    w = beside_all([rows_of_basis(each) for each in others if each not in back], 1)
    kinks = np.arange(0, n, n // MOST_KINKS + 1)
    explained = w.explained(0, np.maximum(np.arange(n) - kinks[:, None], 0.0))
    start, most = int(kinks[explained.argmax()]), float(explained.max())
    if back and beside_all([*map(rows_of_basis, others)], 2).loss[0] < w.loss[0] - most:
        return drift  # a turn among them tells more
    z = float(np.sqrt(most))
    log_p = float(np.log(n_tests(n)) + log_chance(np.asarray(z), freedom_of(drift.panel)[at[0]]))
    if log_p > PLAINLY or min(start, n - start) < SLOW * n:
        return _since_it_ran_away(drift)
    before, after, _ = _ways(drift, start)
    near = kinks[explained >= most - THERE**2]
    onset = int(near[0]), int(near[-1])
    bent = replace(
        drift,
        located=Located(Template("ramp", start, n), onset, None, float(np.copysign(z, after))),
        log_p=log_p,
    )
    if turns(bent):
        return replace(bent, drift=False)
    is_faster = abs(after) * start > FASTER * abs(before) * (n - start) and abs(after) > abs(before) / RESIDUE
    return bent if is_faster else _since_it_ran_away(drift)


def goes_along(found: Moved, bent: Moved) -> bool:
    """Tells whether a movement of several steps goes the way that slow change does since it got faster: no curve of that is known, and it is the rest of one."""
    goes_its_way = found.located.z * bent.located.z > 0
    return bent.drift and bent.template.start > 0 and not is_spike(found) and goes_its_way


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
