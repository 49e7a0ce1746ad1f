"""Slow change over a run: what a policy learns, told from movements, and taken off the parts that learn nothing of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rollout_traces.analysis.detected_movement import NEAR_EDGE, RESIDUE, WARM_UP, Moved, beside
from rollout_traces.analysis.learning import is_given, may_be_learned
from rollout_traces.analysis.noise import Noise
from rollout_traces.analysis.panel import Panel, one_of
from rollout_traces.analysis.parts import Chosen
from rollout_traces.analysis.scan import SHORTEST_RAMP, Whitened, lengths, polynomials, whitened
from rollout_traces.analysis.screen import DRIFT_DEGREE, Scanned, freedom_of, log_chance, scan
from rollout_traces.analysis.templates import LARGE_PART, SPIKE, Located, Template

SLOW = 0.2
"""A ramp over this part of the run or more is slow change."""
CURVE_DEGREE = 3
"""A policy that learns late and then has learned is a cubic."""
LEARNED_WITHIN = 2.0 ** np.arange(1, 6)
"""A policy that learns fast at first and ever less is an exponential; parts of the run that its rate may be."""
AMBIGUOUS = 8.0
"""Log likelihood by which one account of a series has to be better than another, for it to be said without the other."""
SCARCE = 0.1
"""A share that is less than this part of what it is on the other side of a step is hardly there."""


def with_curve(basis: np.ndarray) -> np.ndarray:
    """A basis, float [S, K, T], with slow change."""
    return beside(basis, polynomials(basis.shape[-1], DRIFT_DEGREE)[1:])


def beside_learning(panel: Panel, noise: Noise, basis: np.ndarray) -> tuple[Panel, Noise, np.ndarray]:
    """The series beside what a policy learns: a curve of its own, or that of all rows where a part learns nothing of its own.

    Args:
        panel, noise: the series.
        basis: float [S, K, T], what they do without learning.
    """
    smooth = with_curve(basis)
    follows = np.asarray([not may_be_learned(panel, part) for part in panel.parts])
    if panel.parts[0] != () or not follows.any():
        return panel, noise, smooth
    w = whitened(noise.clipped[:1], noise.at(np.asarray([0])), basis[:1])
    rows = smooth[0, basis.shape[1] :]
    white = w.apply(smooth[:1])[0]
    y = w.apply(np.where(np.isfinite(noise.clipped[:1]), noise.clipped[:1], 0.0))[0]
    size = np.linalg.lstsq(white.T, y, rcond=None)[0]
    learned = np.where(follows, 1 - panel.control, 0.0)[:, None] * (size[basis.shape[1] :] @ rows)
    smooth[follows, basis.shape[1] :] = 0.0
    unlearned = replace(panel, values=panel.values - learned)
    return unlearned, replace(noise, clipped=noise.clipped - learned), smooth


def is_of_most(found: Moved) -> bool:
    """Tells whether a movement is slow change over the run of all rows, or of most of them while a part does something against it."""
    panel, n = found.panel, len(found.panel.steps)
    if not found.template.is_drift(n) or panel.parts[0] != () or found.chosen.values is None:
        return False
    return bool(panel.rows[list(found.chosen.members)].sum() > panel.rows[0].sum() / 2)


def drift_of_run(panel: Panel, noise: Noise, basis: np.ndarray, at: int) -> Moved:
    """Slow change over the run, of the part that shows it most or of all rows."""
    place = next((i for i, part in enumerate(panel.parts) if part == ()), at)
    z = float(np.sqrt(max(_explained_by_curve(noise, basis, place), 0.0)))
    n = len(panel.steps)
    located = Located(Template("ramp", 0, n), (0, 0), None, z)
    chance = float(log_chance(np.asarray(z), np.asarray(np.inf)))
    return Moved(
        panel, basis, noise, located, Chosen(place, panel.parts[place], (place,)), chance, drift=True
    )


def learning_is_likelier(panel: Panel, noise: Noise, basis: np.ndarray, best: Scanned, at: int) -> bool:
    """Tells whether slow change over the run is a likelier account of a series than its best movement, each alone or with another movement.

    Args:
        panel, noise: the series.
        basis: float [S, K, T], what they do already.
        best: the scan beside it.
        at: which series.
    """
    n = len(panel.steps)
    curve, gained = with_curve(basis[at : at + 1])[0], _explained_by_curve(noise, basis, at)
    drifting = _account(panel, noise, curve, at, gained, DRIFT_DEGREE * np.log(n) / 2)
    moved = np.concatenate([basis[at], best.template(at, n).over(n)[None]])
    return drifting > _account(panel, noise, moved, at, float(best.z[at] ** 2), _cost(best, at, panel))


def _explained_by_curve(noise: Noise, basis: np.ndarray, at: int) -> float:
    """The sum of squares of a series that slow change explains beside a basis, float [S, K, T]."""
    one, own = np.asarray([at]), basis[at : at + 1]
    plain, smooth = (whitened(noise.clipped[one], noise.at(one), each) for each in (own, with_curve(own)))
    return float(plain.loss[0] - smooth.loss[0])


def _account(panel: Panel, noise: Noise, basis: np.ndarray, at: int, explained: float, cost: float) -> float:
    """Log evidence of what a basis explains of a series, alone or with the best movement beside it, whichever is more.

    Args:
        panel, noise: the series.
        basis: float [K, T].
        at: which series.
        explained: the sum of squares that it explains.
        cost: log of how many such bases there are.
    """
    alone, tails = np.asarray([at]), freedom_of(panel)[at]
    one = one_of(panel, [at])
    best, _ = scan(one, noise.at(alone), basis)
    both = float(best.z[0] ** 2), _cost(best, 0, one)
    return max(_gain(explained, tails) - cost, _gain(explained + both[0], tails) - cost - both[1])


def _cost(best: Scanned, at: int, panel: Panel) -> float:
    """Log of how many templates the best one of a series is one of."""
    n = len(panel.steps)
    return float(np.log(n * (1 if best.kind[at] == "level" else len(lengths(n)))))


def may_be_slow(found: Moved, w: Whitened, best: Scanned, at: int) -> bool:
    """Tells whether a change of all rows that lasts is hardly better described by a step than as slow change over a part of the run."""
    panel, template = found.panel, found.template
    n = len(panel.steps)
    lasts = template.kind != "window" or template.stop - template.start > LARGE_PART * n
    starts = template.start <= WARM_UP and template.stop - template.start > SPIKE
    if not (lasts or starts) or is_given(panel) or not may_be_learned(panel, found.chosen.values):
        return False
    if not lasts:  # what is learned has its largest curvature at the start
        return True
    ramp = max(
        np.abs(w.ramps(length)[at]).max()
        for length in lengths(n).tolist()
        if length >= max(SLOW * n, SHORTEST_RAMP)
    )
    explained = [(float(ramp**2), float(np.log(n * len(lengths(n)))))]
    if (w.basis[at] ** 2).sum() < CURVE_DEGREE:
        wide = whitened(
            found.noise.clipped[at : at + 1],
            found.noise.at(np.asarray([at])),
            np.concatenate([polynomials(n, CURVE_DEGREE), found.basis[at, 1:]])[None],
        )
        explained.append((float(w.loss[at] - wide.loss[0]), CURVE_DEGREE * np.log(n) / 2 + np.log(n)))
    explained.append((_saturating(found, w, at), float(np.log(n * len(LEARNED_WITHIN)))))
    own = float(best.z[at] ** 2), _cost(best, at, panel)
    tails = freedom_of(panel)[at]
    return any(_gain(own[0] - slow[0], tails) + slow[1] - own[1] < AMBIGUOUS for slow in explained)


def _saturating(found: Moved, w: Whitened, at: int) -> float:
    """The sum of squares that learning ever less explains of the series of a movement, beside what it does without."""
    n, n_rates = len(found.panel.steps), len(LEARNED_WITHIN)
    curves = np.exp(-np.outer(LEARNED_WITHIN, np.arange(n) / n))
    basis = np.broadcast_to(found.basis[at], (n_rates, *found.basis[at].shape))
    one = found.noise.at(np.full(n_rates, at))
    wide = whitened(one.clipped, one, np.concatenate([basis, curves[:, None]], axis=1))
    return float(w.loss[at] - wide.loss.min())


def came_or_went(panel: Panel, members: Sequence[int], template: Template) -> bool:
    """Tells whether a share that was hardly there comes, at once or after a stretch without it, or is gone at once: what is learned shows from the start.

    Slow change would be less at first than a level; a ramp that begins late was nothing before it.

    Args:
        panel: the series of the share.
        members: those that move.
        template: how.
    """
    if not panel.is_share or template.kind == "window":
        return False
    n, start = len(panel.steps), template.start
    there = np.isfinite(panel.levels[members]) & (panel.rows[members] > 0)
    rows_T = np.where(there, panel.rows[members], 0.0).sum(axis=0)
    held_T = np.where(there, panel.levels[members] * panel.rows[members], 0.0).sum(axis=0)
    if held_T.sum() > rows_T.sum() / 2:  # of what most have, the rest is looked at
        held_T = rows_T - held_T
    risen = min(template.stop, n - NEAR_EDGE) if template.kind == "ramp" else start
    edge = (slice(max(start - NEAR_EDGE, 0), start), slice(risen, risen + NEAR_EDGE))
    sides = (slice(start), slice(risen, None))
    n_rows = [rows_T[steps].sum() for steps in (*sides, *edge)]
    if min(n_rows) <= 0:
        return False
    before, after, near_before, near_after = (
        held_T[steps].sum() / n for steps, n in zip((*sides, *edge), n_rows, strict=True)
    )
    if template.kind == "ramp":
        return bool(start >= SLOW * n and before < SCARCE * after)
    few, many, near = (before, after, near_after) if before < after else (after, before, near_before)
    return bool(few < SCARCE * many and near >= RESIDUE * many)


def _gain(squares: float, freedom: float) -> float:
    """Log likelihood that one account of a series has over another that leaves so many more squares."""
    return float(np.sign(squares) * freedom * np.log1p(np.abs(squares) / freedom) / 2)
