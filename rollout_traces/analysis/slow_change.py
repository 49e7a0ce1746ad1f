"""Slow change over a run: what a policy learns, told from movements and taken off the parts that learn nothing of their own.

What bends, turns, gets faster by far or runs away is none of it: what is learned saturates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rollout_traces.analysis.detected_movement import (
    NEAR_EDGE,
    RESIDUE,
    Moved,
    beside,
    constant_basis,
    is_spike,
    of_chosen,
    rows_of_basis,
)
from rollout_traces.analysis.learning import is_given, may_be_learned
from rollout_traces.analysis.noise import Noise
from rollout_traces.analysis.panel import Panel, one_of
from rollout_traces.analysis.parts import Chosen
from rollout_traces.analysis.scan import (
    Kind,
    Located,
    Template,
    Whitened,
    lengths,
    n_tests,
    polynomials,
    whitened,
)
from rollout_traces.analysis.screen import DRIFT_DEGREE, EVIDENT, Scanned, freedom_of, log_chance, scan

SLOW = 0.2
"""A policy that learns late takes this part of the run at least, up to four times that ..."""
RISES = 5
"""... lasting so many times as long, each half as long again ..."""
MIDDLES = 64
"""... around one of so many places: a logistic curve, which has no step at which it begins ..."""
TEN_TO_NINETY = math.log(9)
"""... and rises from 10 to 90 % over twice this in its own unit."""
LEARNED_WITHIN = 2.0 ** np.arange(1, 6)
"""A policy that learns fast at first and ever less is an exponential; parts of the run that its rate may be."""
AMBIGUOUS_PART = 0.01
"""Part of what it explains by which one account of a series has to be better than another, beside `EVIDENT`: nothing is an exact curve, and a step in the middle of a run gains 0.07 over a curve of a fifth of it."""
PLAIN_CHANCE = np.log(1e-4)
"""Log of the chance up to which slow change plainly has a kink, or goes different ways in an evaluation and in training."""
SCARCE = 0.1
"""A share that is less than this part of what it is on the other side of a step is hardly there."""


def with_curve(basis: np.ndarray) -> np.ndarray:
    """A basis, float [S, K, T], with slow change."""
    return beside(basis, polynomials(basis.shape[-1], DRIFT_DEGREE)[1:])


OfAll = tuple[tuple[slice, np.ndarray], ...]
"""What all rows do that parts do too: rows of a basis, and bool [S], which series."""


def beside_learning(
    panel: Panel, noise: Noise, basis: np.ndarray, of_all: OfAll = ()
) -> tuple[Panel, Noise, np.ndarray, OfAll]:
    """The series beside what a policy learns: a curve of its own, or that of all rows where a part learns nothing of its own.

    Args:
        panel, noise: the series as they are.
        basis: float [S, K, T], what they do without learning.
        of_all: what all rows do already.
    """
    smooth = with_curve(basis)
    follows = np.asarray([not may_be_learned(panel, part) for part in panel.parts])
    if is_purpose(panel):
        risen, fallen = _up_and_down(noise, smooth)
        follows[1:] |= (fallen > RESIDUE * risen)[1:]  # what is learned stays
    if panel.parts[0] != () or not follows.any():
        return *less_of_all(panel, noise, smooth, of_all), smooth, of_all
    curve = slice(basis.shape[1], smooth.shape[1])
    of_all = (*of_all, (curve, follows))
    unlearned = less_of_all(panel, noise, smooth, of_all)
    smooth[follows, curve] = 0.0
    return *unlearned, smooth, of_all


def _up_and_down(noise: Noise, smooth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float [S] each: by how much the curve of a series, beside what else it does, float [S, K, T], rises, and by how much it falls."""
    w = whitened(noise.clipped, noise, smooth)
    y, rows = w.apply(np.where(np.isfinite(noise.clipped), noise.clipped, 0.0)), w.apply(smooth)
    sizes = [np.linalg.lstsq(own.T, values, rcond=None)[0] for own, values in zip(rows, y, strict=True)]
    curves = np.einsum("sk,skt->st", np.stack(sizes)[:, -DRIFT_DEGREE:], smooth[:, -DRIFT_DEGREE:])
    by = np.diff(curves, axis=1)
    return np.maximum(by, 0.0).sum(axis=1), np.maximum(-by, 0.0).sum(axis=1)


def nobody_learns(learning: Moved, others: Sequence[Moved]) -> bool:
    """Tells whether slow change beside other movements goes the way that no policy learns by more than the other; how an evaluation gets worse is told beside what training does."""
    panel = learning.panel
    wanted = panel.names[0].wanted
    if not wanted or "/" in panel.names[0].column:
        return False
    basis = np.concatenate([constant_basis(panel)[0], *map(rows_of_basis, others)])
    noise = learning.noise.at(np.asarray([learning.chosen.at]))
    risen, fallen = _up_and_down(noise, with_curve(basis[None]))[::wanted]
    return bool(fallen[0] > risen[0])


def less_of_all(panel: Panel, noise: Noise, basis: np.ndarray, of_all: OfAll) -> tuple[Panel, Noise]:
    """Parts less what all rows do, as far as it is in them still: fitted together, since a curve fitted alone holds a ramp beside it too.

    Args:
        panel, noise: the series as they are, that of all rows first.
        basis: float [S, K, T], what they do.
        of_all: which of it all do.
    """
    if not of_all:
        return panel, noise
    w = whitened(noise.clipped[:1], noise.at(np.asarray([0])), basis[:1])
    y = w.apply(np.where(np.isfinite(noise.clipped[:1]), noise.clipped[:1], 0.0))[0]
    size = np.linalg.lstsq(w.apply(basis[:1])[0].T, y, rcond=None)[0]
    shared = sum(
        np.where(follows, 1 - panel.control, 0.0)[:, None] * (size[rows] @ basis[0, rows])
        for rows, follows in of_all
    )
    return replace(panel, values=panel.values - shared), replace(noise, clipped=noise.clipped - shared)


def drift_of_run(
    panel: Panel, noise: Noise, basis: np.ndarray, at: int, apart: Chosen | None = None
) -> Moved:
    """Slow change over the run, of the part that alone shows it, of all rows, or of the part that shows it most."""
    place = next((i for i, part in enumerate(panel.parts) if part == ()), at)
    chosen = apart or Chosen(place, panel.parts[place], (place,))
    z = float(np.sqrt(max(_explained_by_curve(noise, basis, chosen.at), 0.0)))
    n = len(panel.steps)
    located = Located(Template("ramp", 0, n), (0, 0), None, z)
    chance = float(log_chance(np.asarray(z), np.asarray(np.inf)))
    return Moved(panel, basis, noise, located, chosen, chance, drift=True)


def is_needed(drift: Moved, others: Sequence[Moved]) -> bool:
    """Tells whether slow change over the run explains anything of a series beside its other movements."""
    panel, at = drift.panel, drift.chosen.at
    if not others:
        return True
    rows = np.concatenate([rows_of_basis(each) for each in others])
    explained = _explained_by_curve(drift.noise, beside(constant_basis(panel), rows), at)
    return gain(explained, freedom_of(panel)[at]) > DRIFT_DEGREE * np.log(len(panel.steps)) / 2


def learning_is_likelier(panel: Panel, noise: Noise, basis: np.ndarray, best: Scanned, at: int) -> bool:
    """Tells whether slow change over the run is a likelier account of a series than its best movement, each alone or with another movement.

    Args:
        panel, noise: the series.
        basis: float [S, K, T], what they do already.
        best: the scan beside it.
        at: which series.
    """
    n, tails = len(panel.steps), freedom_of(panel)[at]
    curve, gained = with_curve(basis[at : at + 1])[0], _explained_by_curve(noise, basis, at)
    drifting = _accounts(panel, noise, curve, at, gained, DRIFT_DEGREE * float(np.log(n)) / 2)
    template = np.concatenate([basis[at], best.template(at, n).over(n)[None]])
    moved = _accounts(panel, noise, template, at, float(best.z[at] ** 2), _cost(best.kind[at], n))
    most = max(squares for squares, _ in (*drifting, *moved))
    slow, sudden = (
        max(-gain(most - squares, tails) - cost for squares, cost in each) for each in (drifting, moved)
    )
    return slow > sudden


def shows_beside_learned(found: Moved, others: Sequence[Moved]) -> bool:
    """Tells whether a movement of several steps tells more of its series than the nearest curve of what is learned, which slow change over the run may be far from, or shows beside it.

    Args:
        found: the movement.
        others: what else the series does.
    """
    panel, at, n = found.panel, np.asarray([found.chosen.at]), len(found.panel.steps)
    if is_spike(found) or not may_be_learned(panel, panel.parts[found.chosen.at]):
        return True
    own = rows_of_basis(found)
    rest = np.concatenate([np.ones((1, n)), *(rows_of_basis(each) for each in others if each is not found)])

    beside, sizes = _beside_learned(found, rest)
    with_it, left = _beside_learned(found, np.concatenate([rest, own]))
    of_curve = float(beside.loss[0] - (sizes**2).max())
    if with_it.loss[0] <= of_curve:  # it tells as much as any curve does
        return True
    z = np.sqrt(max(of_curve - float(with_it.loss[0] - (left**2).max()), 0.0))
    return bool(np.log(n_tests(n)) + log_chance(np.asarray(z), freedom_of(panel)[at[0]]) <= PLAIN_CHANCE)


def _beside_learned(found: Moved, basis: np.ndarray) -> tuple[Whitened, np.ndarray]:
    """The series of a movement beside a basis, float [K, T], and the sizes in it of curves of what is learned, float [C]; 0 of those by which what training is for would be less."""
    at, curves = np.asarray([found.chosen.at]), learned_curves(basis.shape[1])
    w = whitened(found.noise.clipped[at], found.noise.at(at), basis[None])
    sizes = w.sizes(curves)
    falls = (curves[:, -1] - curves[:, 0]) * sizes < 0
    return w, np.where(falls & is_purpose(found.panel), 0.0, sizes)


def _explained_by_curve(noise: Noise, basis: np.ndarray, at: int) -> float:
    """The sum of squares of a series that slow change explains beside a basis, float [S, K, T]."""
    one, own = np.asarray([at]), basis[at : at + 1]
    plain, smooth = (whitened(noise.clipped[one], noise.at(one), each) for each in (own, with_curve(own)))
    return float(plain.loss[0] - smooth.loss[0])


def _accounts(
    panel: Panel, noise: Noise, basis: np.ndarray, at: int, explained: float, cost: float
) -> list[tuple[float, float]]:
    """The sum of squares of a series that a basis explains alone, and with the best movement beside it, each with the log of how many such there are.

    Args:
        panel, noise: the series.
        basis: float [K, T].
        at: which series.
        explained: the sum of squares that it explains.
        cost: log of how many such bases there are.
    """
    one = one_of(panel, [at])
    best, _ = scan(one, noise.at(np.asarray([at])), basis)
    return [
        (explained, cost),
        (explained + float(best.z[0] ** 2), cost + _cost(best.kind[0], len(panel.steps))),
    ]


def _cost(kind: Kind, n: int) -> float:
    """Log of how many templates of a kind there are in `n` steps."""
    return float(np.log(n * (1 if kind == "level" else len(lengths(n)))))


def may_be_slow(found: Moved, template: Template) -> bool:
    """Tells whether a change of several steps is hardly better described with a step at which it begins than by what is learned, beside a parabola too.

    Args:
        found: the change.
        template: the one of the scan's that it is nearest to, of which there are about as many as of what is learned.
    """
    panel, n = found.panel, len(found.panel.steps)
    if is_spike(found) or is_given(panel) or is_loss(found):
        return False
    # what is held back in one part is learned in the others
    if not (may_be_learned(panel, found.chosen.values) or is_purpose(panel)):
        return False
    if _is_many_times(found):
        return False
    noise = of_chosen(panel, found.noise, found.chosen)[1]
    basis = found.basis[found.chosen.at][None]
    w = whitened(noise.clipped, noise, basis)
    curves, own_T = learned_curves(n), template.over(n)[None]
    of_curve, of_own = float(np.log(len(curves))), _cost(template.kind, n)
    squares = [(float((w.sizes(curves) ** 2).max()), float(w.sizes(own_T)[0] ** 2), 0.0)]
    if (w.basis[0] ** 2).sum() <= DRIFT_DEGREE:
        smooth = np.concatenate([polynomials(n, DRIFT_DEGREE), basis[0, 1:]])
        wide = whitened(noise.clipped, noise, smooth[None])
        bent = float(w.loss[0] - wide.loss[0])
        both = bent + float((wide.sizes(curves) ** 2).max()), bent + float(wide.sizes(own_T)[0] ** 2)
        squares.append((*both, DRIFT_DEGREE * float(np.log(n)) / 2))
    tails, most = freedom_of(panel)[found.chosen.at], max(max(each[:2]) for each in squares)
    slow = max(-gain(most - curve, tails) - of_curve - cost for curve, _, cost in squares)
    sudden = max(-gain(most - own, tails) - of_own - cost for _, own, cost in squares)
    is_near = any(own - curve < AMBIGUOUS_PART * own for curve, own, _ in squares)
    return sudden - slow < EVIDENT or is_near


def _is_many_times(found: Moved) -> bool:
    """Tells whether a mean over rollouts ends at more than three times all that it was before, as seconds of a tool do; what is solved may."""
    panel, start = found.panel, found.template.start
    if panel.source is None or panel.is_share or panel.names[0].is_paid or panel.names[0].statistic != "mean":
        return False
    levels = panel.levels[found.chosen.at]
    before, end = levels[:start], levels[-NEAR_EDGE:]
    is_known = min(np.isfinite(before).sum(), np.isfinite(end).sum()) >= NEAR_EDGE
    return bool(is_known and np.nanmean(end) > FASTER * np.nanmax(before) > 0)


FASTER = 3.0
"""Times as fast as before that a number goes behind a kink, or of what it had been that it goes beyond."""


def is_loss(found: Moved) -> bool:
    """Tells whether a measure went the way that no policy learns, as rewards that fall or tools that fail more."""
    return found.located.z * found.panel.names[0].wanted < 0


def is_purpose(panel: Panel) -> bool:
    """Tells whether a measure is what training is for, in training or an evaluation."""
    return panel.names[0].wanted > 0


def is_of_rewards(panel: Panel) -> bool:
    """Tells whether a measure is a reward, a success or a component, in training or an evaluation, a value of one, or computed from it."""
    name = panel.names[0]
    is_component = name.value is None and "/component/" in f"/{name.column}"
    return is_purpose(panel) or is_component or name.is_paid or panel.parents[0] == "reward"


def learned_curves(n_steps: int) -> np.ndarray:
    """float [C, T]: curves of what is learned fast at first and ever less, and of what is learned late, at some step, by a logistic curve or a line."""
    t = np.arange(n_steps) / n_steps
    middles, rises = np.meshgrid(np.linspace(0, 1, MIDDLES), SLOW * 2.0 ** (np.arange(RISES) / 2))
    place = (t - middles.reshape(-1, 1)) / rises.reshape(-1, 1)
    return np.concatenate(
        [np.exp(-np.outer(LEARNED_WITHIN, t)), np.tanh(place * TEN_TO_NINETY), np.clip(place, 0, 1)]
    )


def came_or_went(panel: Panel, members: Sequence[int], template: Template) -> bool:
    """Tells whether a share that was hardly there, or what lacks it, comes, at once or after a stretch without it, or is gone at once: what is learned shows from the start.

    Slow change would be less at first than a level; a ramp that begins late was nothing before it.

    Args:
        panel: the series of the share.
        members: those that move.
        template: how.
    """
    if not panel.is_share:
        return False
    there = np.isfinite(panel.levels[members]) & (panel.rows[members] > 0)
    rows_T = np.where(there, panel.rows[members], 0.0).sum(axis=0)
    held_T = np.where(there, panel.levels[members] * panel.rows[members], 0.0).sum(axis=0)
    is_most = held_T.sum() > rows_T.sum() / 2
    return _came_or_went(panel, held_T, rows_T, template) or (
        is_most
        and panel.names[0].statistic != "text"
        and _came_or_went(panel, rows_T - held_T, rows_T, template)
    )


def _came_or_went(panel: Panel, held_T: np.ndarray, rows_T: np.ndarray, template: Template) -> bool:
    """As `came_or_went`, of rollouts by step: those that count, and all."""
    n, start = len(panel.steps), template.start
    risen = min(template.stop, n - NEAR_EDGE) if template.kind == "ramp" else start
    stop = template.stop if template.kind == "window" else n
    edge = (slice(max(start - NEAR_EDGE, 0), start), slice(risen, min(risen + NEAR_EDGE, stop)))
    sides = (np.r_[0:start, stop:n], slice(risen, stop))
    n_rows = [rows_T[steps].sum() for steps in (*sides, *edge)]
    if min(n_rows) <= 0:
        return False
    before, after, near_before, near_after = (
        held_T[steps].sum() / n for steps, n in zip((*sides, *edge), n_rows, strict=True)
    )
    if (
        is_purpose(panel) or panel.names[0].is_paid
    ) and before < after:  # what is hardly ever solved at first is learned late
        return False
    if template.kind == "ramp":
        return bool(start >= SLOW * n and before < SCARCE * after)
    few, many, near = (before, after, near_after) if before < after else (after, before, near_before)
    is_text = panel.names[0].statistic == "text" or panel.names[0].column.startswith("written/")
    if is_text and after < before:  # phrases and forms are given up while others are learned
        return False
    return bool(few < SCARCE * many and near >= RESIDUE * many)


def gain(squares: float, freedom: float) -> float:
    """Log likelihood that one account of a series has over another that leaves so many more squares."""
    return float(np.sign(squares) * freedom * np.log1p(np.abs(squares) / freedom) / 2)
