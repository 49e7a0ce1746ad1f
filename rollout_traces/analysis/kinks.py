"""Kinks: the step from which a series goes back, gets faster by far or runs away, which nothing that is learned does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rollout_traces.analysis.compete import is_learning, starts
from rollout_traces.analysis.detected_movement import (
    MOST_OF_RUN,
    NEAR_EDGE,
    RESIDUE,
    STILL,
    Moved,
    beside,
    is_spike,
    rows_of_basis,
)
from rollout_traces.analysis.learning import may_be_learned
from rollout_traces.analysis.noise import OF_LEVEL, TINY, of_neighbours
from rollout_traces.analysis.panel import Panel
from rollout_traces.analysis.parts import PLAINLY, REMAINS, THERE
from rollout_traces.analysis.scan import (
    WARM_UP,
    Located,
    Template,
    Whitened,
    n_tests,
    polynomials,
    whitened,
)
from rollout_traces.analysis.screen import DRIFT_DEGREE, freedom_of, log_chance
from rollout_traces.analysis.slow_change import (
    FASTER,
    MIDDLES,
    PLAIN_CHANCE,
    RISES,
    SCARCE,
    SLOW,
    learned_curves,
    with_curve,
)

MANY_TIMES = 10.0
"""Times as fast as before that a number goes behind a kink from which it runs away the way that it went."""
QUIET = 2 * OF_LEVEL
"""Noise, as a part of a number's level, up to which it is hardly measured over rollouts."""
BEYOND_LEARNING = SCARCE / 2
"""Part of what it becomes that a number is at most before a kink from which it is not learned: a divergence may grow tenfold where learning begins late."""
MOST_KINKS = 512
"""Steps at which a kink is looked for, spaced evenly over a longer run."""


def kink_of(panel: Panel, at: int) -> int | None:
    """Finds the step from which a logged number runs away by a line to the end, that no curve of what is learned comes near; None where it does not.

    It goes back, faster than it came, as entropy that blows up, or is many times as fast as before and goes far beyond what it was. By least squares of the number, relative to its level where its noise is, or, of what goes back, of its logarithm;
    each value counts for less the longer its noise lasts.

    Args:
        panel: the series.
        at: which of them.
    """
    levels, t = panel.levels[at], np.arange(len(panel.steps))
    known = np.isfinite(levels) & (t >= WARM_UP)
    n = len(t)
    if panel.source is not None or n < 2 * 2 * NEAR_EDGE or known.sum() < 2 * NEAR_EDGE:
        return None
    values, t = levels[known], t[known]
    kinks = np.arange(2 * NEAR_EDGE, n - 2 * NEAR_EDGE + 1, n // MOST_KINKS + 1)
    lines, smooth, rest = (
        np.maximum(t - kinks[:, None], 0.0),
        polynomials(n, DRIFT_DEGREE)[:, known],
        polynomials(n, DRIFT_DEGREE + 1)[:, known],
    )
    learned = np.concatenate([learned_curves(n)[: -MIDDLES * RISES, known], lines > 0])
    by_factors = not np.array_equal(panel.values[at][known], values)
    ways = [(values, of_neighbours(values) if by_factors else np.ones(len(values)))]
    if values.min() > 0:
        ways.append((np.log(values), np.ones(len(values))))
    for is_log, (y, size) in enumerate(ways):
        y, own, curves, flat = y / size, lines / size, learned / size, rest[:1] / size
        best = int(_explained(y, own, smooth / size).argmax())
        left = _beside(y[None], np.concatenate([smooth / size, own[best : best + 1]]))[0]
        of_curves = float((_beside(y[None], flat) ** 2).sum() - _explained(y, curves, flat).max())
        others = min(of_curves, float((_beside(y[None], rest / size) ** 2).sum()))
        least = max(float(left @ left), TINY)
        lasting = float(np.clip(left[1:] @ left[:-1] / least, 0.0, 1 - 1 / n))
        counted = len(left) * (1 - lasting) / (1 + lasting)
        fitted, behind = (y - left) * size, t >= kinks[best]
        went, goes = fitted[behind][0] - fitted[0], fitted[-1] - fitted[behind][0]
        by, since = went / kinks[best], goes / (n - kinks[best])
        is_still = abs(went) < PLAINLY * float((left * size).std())
        turned = not is_still and by * since < 0 and abs(since) > abs(by)
        is_faster = not is_log and (is_still or abs(since) >= MANY_TIMES * abs(by))
        noise = float((left * size)[~behind].std())
        plain = turned or (is_faster and _runs_away(values, behind, since, noise))
        if plain and counted / 2 * np.log(max(others, TINY) / least) > -PLAIN_CHANCE:
            return int(kinks[best])
    return None


def _runs_away(levels: np.ndarray, behind: np.ndarray, since: float, noise: float) -> bool:
    """Tells whether a positive number ends at many times what it ever was before a kink, or at a small part of it.

    One without much noise, which is not measured over rollouts as what a policy learns is, at more than twice of it or less
    than half.

    Args:
        levels: float [N].
        behind: bool [N], which are behind the kink.
        since: by how much it goes on at each step behind it.
        noise: the spread of what is left before the kink.
    """
    end, ever = levels[-NEAR_EDGE:].mean(), levels[~behind]
    times = RESIDUE if noise < QUIET * ever.mean() else BEYOND_LEARNING
    return bool(levels.min() > 0 and (end * times > ever.max() if since > 0 else end < times * ever.min()))


def _beside(values: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Curves, float [C, T], without what a basis, float [K, T], explains of them by least squares."""
    q = np.linalg.qr(basis.T)[0]
    return np.asarray(values - (values @ q) @ q.T)


def _explained(values_T: np.ndarray, curves: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """float [C]: the sum of squares that each of some curves, float [C, T], explains of a series beside a basis, float [K, T]."""
    own = _beside(curves, basis)
    size = (own**2).sum(axis=1)
    return np.where(size > TINY, (own @ values_T) ** 2 / np.maximum(size, TINY), 0.0)


def since_its_kink(found: Moved) -> Moved:
    """A movement of a logged number that lasts, as the line that it is from a step on, where no curve is as near."""
    kink = None if found.template.kind == "window" else kink_of(found.panel, found.chosen.at)
    if kink is None:
        return found
    levels = found.panel.levels[found.chosen.at]
    went = np.nanmean(levels[-NEAR_EDGE:]) - np.nanmean(levels[kink - NEAR_EDGE : kink])
    template = Template("ramp", kink + 1, len(found.panel.steps))
    located = Located(template, (kink, kink + 2), None, float(np.copysign(found.located.z, went)))
    return replace(found, located=located, drift=False)


def turns(found: Moved) -> bool:
    """Tells whether a series went one way before a movement, and since it began back by more than half of that: what is learned saturates."""
    template, n = found.template, len(found.panel.steps)
    if template.kind == "window" or min(template.start, n - template.start) < SLOW * n:
        return False
    before, after, error = _ways(found, template.start)
    is_way = abs(before) > max(STILL * error, SCARCE / 2 * abs(after))
    return is_way and before * after < 0 and abs(after) > RESIDUE * abs(before)


def goes_on(found: Moved) -> bool:
    """Tells whether a logged number went on to the end by a line the way that it went before, or stood: a divergence that is learned late may do so too."""
    template, n = found.template, len(found.panel.steps)
    if (
        found.panel.source is not None
        or template.kind != "ramp"
        or not 0 < template.start < template.stop == n
    ):
        return False
    before, after, error = _ways(found, template.start)
    return abs(before) < STILL * error or before * after > 0


def _ways(found: Moved, start: int) -> tuple[float, float, float]:
    """By how much a series went before a step, and since, and the error of such a difference; 0 where that is not known."""
    at, n = found.chosen.at, len(found.panel.steps)
    values = found.noise.clipped[at]
    known = np.isfinite(values)
    begins = WARM_UP if found.panel.source is None else 0
    stretches = (
        slice(begins, begins + NEAR_EDGE),
        slice(max(start - NEAR_EDGE, 0), start),
        slice(n - NEAR_EDGE, n),
    )
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

    if (kinked := since_its_kink(drift)) is not drift:
        return kinked
    back = [each for each in others if turns(each)]
    w = beside_all([rows_of_basis(each) for each in others if each not in back], 1)
    kinks = np.arange(0, n, n // MOST_KINKS + 1)
    explained = w.sizes(np.maximum(np.arange(n) - kinks[:, None], 0.0)) ** 2
    start, most = int(kinks[explained.argmax()]), float(explained.max())
    if back and beside_all([*map(rows_of_basis, others)], 2).loss[0] < w.loss[0] - most:
        return drift  # a turn among them tells more
    z = float(np.sqrt(most))
    log_p = float(np.log(n_tests(n)) + log_chance(np.asarray(z), freedom_of(drift.panel)[at[0]]))
    if log_p > PLAIN_CHANCE or min(start, n - start) < SLOW * n:
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
    goes_on = bent.drift and bent.template.start > 0 and not is_spike(found)
    goes_on = goes_on and may_be_learned(found.panel, found.chosen.values)
    return goes_on and goes_its_way and since_its_kink(found) is found


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


ENDED, GOES_ON = 8, 0.1
"""Steps behind the end of a change that show that it is one, and the part of it by which a number may go on in their second half."""


def is_of_no_rollouts(slow: Moved, found: Sequence[Moved]) -> bool:
    """Tells whether a logged number changed within a third of the run, ended so, and does not go with what all rollouts learned: no policy learns what they do not show.

    Args:
        slow: slow change of a number.
        found: all movements.
    """
    template, n, at = slow.template, len(slow.panel.steps), np.asarray([slow.chosen.at])
    is_short = (template.stop - template.start) * MOST_OF_RUN <= n and n - template.stop >= ENDED
    if (
        not (slow.drift and is_short and template.kind == "ramp")
        or slow.panel.source is not None
        or starts(slow)
    ):
        return False
    behind, levels = template.stop + (n - template.stop) // 2, slow.panel.levels[slow.chosen.at]
    stretches = (max(template.start - NEAR_EDGE, 0), template.start), (template.stop, behind), (behind, n)
    before, end, last = (float(np.nanmean(levels[slice(*each)])) for each in stretches)
    if abs(last - end) > GOES_ON * abs(end - before):
        return False
    w = whitened(slow.panel.values[at], slow.noise.at(at), with_curve(slow.basis[at]))
    learned = [
        np.interp(slow.panel.steps, other.panel.steps, curve)
        for other in found
        if other.drift and other.panel.source is not None and other.chosen.values == ()
        for values in [other.panel.values[other.chosen.at]]
        for curve in [
            of_neighbours(np.where(np.isfinite(values), values, np.nanmean(values)))
            if is_learning(other)
            else other.template.over(len(values))
        ]
    ]
    own, *others = w.sizes(np.stack([template.over(n), *learned])) ** 2
    return max(others, default=0.0) < REMAINS * own
