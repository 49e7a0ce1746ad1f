"""What moved in one measure: its movements one after the other, and each one's smallest part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from rollout_traces.analysis.learning import is_given, may_be_learned
from rollout_traces.analysis.noise import Noise, clipped, fits_of, noise_of
from rollout_traces.analysis.panel import Panel, one_of
from rollout_traces.analysis.parts import Chosen, smallest_part
from rollout_traces.analysis.scan import (
    SHORTEST_RAMP,
    Whitened,
    coefficients,
    lengths,
    n_tests,
    polynomials,
    whitened,
)
from rollout_traces.analysis.screen import (
    DRIFT_DEGREE,
    FEWEST_EVALUATIONS,
    Scanned,
    few_values,
    freedom_of,
    log_chance,
    scan,
)
from rollout_traces.analysis.setting_changes import setting_changes
from rollout_traces.analysis.shares import share_sizes
from rollout_traces.analysis.templates import LARGE_PART, SPIKE, Located, Template, locate

MOST_MOVEMENTS = 6
"""Movements of one measure that are looked for, one after the other."""
MOST_ASIDE = 4
"""What looks like one and is none, or is the rest of one, is passed over so often."""
STILL = 3.5
"""Size that a movement keeps when all others of its series are known; else it was their shadow."""

LASTING = -9.0
"""Log of the chance below which something that lasts is sure: one in a hundred series reaches it whose noise alone lasts
(120 each of 40 to 60 steps with correlations of 0.5 to 0.95)."""


@dataclass(frozen=True, eq=False)
class Moved:
    """A movement of a measure or a logged scalar.

    Attributes:
        panel: the series of the measure.
        basis: float [S, K, T], what each series does without it.
        noise: of the panel's series.
        located: the template and when.
        chosen: the part; of one series alone, that part.
        log_p: chance of it.
        drift: whether it is slow change over a large part of the run.
        n_carriers: rows that carry it; 0 where it is no handful's.
        is_sure: whether it is hardly chance; else it is one of those of which a stated part is.
    """

    panel: Panel
    basis: np.ndarray
    noise: Noise
    located: Located
    chosen: Chosen
    log_p: float
    drift: bool = False
    n_carriers: int = 0
    is_sure: bool = True

    @property
    def template(self) -> Template:
        """Its template."""
        return self.located.template


def movements(panel: Panel, noise: Noise, limit: np.ndarray, sure: np.ndarray) -> list[Moved]:
    """The movements of a measure, the surest first, each of its smallest part.

    Args:
        panel: the series of the measure; one series for a logged scalar.
        noise: theirs.
        limit: float [S], log p up to which each series has moved.
        sure: float [S], log p up to which that is hardly chance.
    """
    n = len(panel.steps)
    if (changes := setting_changes(panel, noise)) is not None:
        changed = [_set(panel, noise, located, float(sure[0])) for located in changes]
        return [each for each in changed if each.log_p <= limit[0]]
    basis, is_smooth = _constants(panel), False
    kept: list[Moved] = []
    rests: list[np.ndarray] = []
    noise = replace(noise, variance=noise.variance.copy())
    if panel.is_centred and panel.carried:  # what carries a step takes from all others
        noise.variance[0, list(panel.carried)] = np.inf
    aside = 0
    while len(kept) <= MOST_MOVEMENTS and aside <= MOST_ASIDE:
        best, w = scan(panel, noise, basis)
        at = int(np.lexsort((-best.evidence, best.log_p - limit))[0])
        learned = may_be_learned(panel, panel.parts[at])
        if learned and best.log_p[at] <= limit[at] and not is_smooth and n >= FEWEST_EVALUATIONS:
            smooth = _with_curve(basis)
            gained = w.loss[at] - whitened(noise.clipped, noise, smooth).loss[at]
            drifting = _account(panel, noise, smooth[at], at, float(gained), DRIFT_DEGREE * np.log(n) / 2)
            moved = np.concatenate([basis[at], _template(best, at, n).over(n)[None]])
            moving = _account(panel, noise, moved, at, float(best.z[at] ** 2), _cost(best, at, panel))
            if drifting > moving:
                kept.append(_drift(panel, noise, basis, at))
                panel, noise, basis = _beside_learning(panel, noise, basis)
                is_smooth = True
                continue
        if best.log_p[at] > limit[at]:
            break
        found = _found(panel, noise, basis, best, w, at)
        if found is None or found.log_p > limit[at]:
            _set_aside(noise, best, at)
            aside += 1
            continue
        if not is_smooth and not learned and _is_of_most(found):
            kept.append(_drift(panel, noise, basis, 0))
            panel, noise, basis = _beside_learning(panel, noise, basis)
            is_smooth = True
            continue
        at_once = _came_at_once(found)
        slow = found.drift or (not at_once and _may_be_slow(found, w, best, at))
        plain = slow or at_once or _beyond_noise(found) <= min(sure[at], LASTING)
        is_sure = plain and bool(found.log_p <= sure[at])
        found = replace(found, drift=slow, is_sure=is_sure)
        rows = _rows_of_basis(found)
        if any(_is_rest_of(found, other) for other in kept):
            aside += 1
            rests += list(rows)
        else:
            kept.append(found)
        basis = _beside(basis, rows)
    drifts = [
        each
        for each in kept
        if each.drift and each.located.template.stop == n and not each.located.template.start
    ]
    others = [each for each in kept if each not in drifts and _stands(each, basis, rests)]
    return drifts + [_from_its_end(each) for each in _there_and_back(others)]


def _constants(panel: Panel) -> np.ndarray:
    """float [S, 1, T]."""
    return np.ones((len(panel.values), 1, len(panel.steps)))


def _beside(basis: np.ndarray, further: np.ndarray) -> np.ndarray:
    """A basis, float [S, K, T], with the same rows, float [L, T], of each series."""
    return np.concatenate([basis, np.broadcast_to(further, (len(basis), *further.shape))], axis=1)


def _with_curve(basis: np.ndarray) -> np.ndarray:
    """A basis, float [S, K, T], with slow change."""
    return _beside(basis, polynomials(basis.shape[-1], DRIFT_DEGREE)[1:])


def _beside_learning(panel: Panel, noise: Noise, basis: np.ndarray) -> tuple[Panel, Noise, np.ndarray]:
    """The series beside what a policy learns: a curve of its own, or that of all rows where a part learns nothing of its own.

    Args:
        panel, noise: the series.
        basis: float [S, K, T], what they do without learning.
    """
    smooth = _with_curve(basis)
    follows = np.asarray([not may_be_learned(panel, part) for part in panel.parts])
    if panel.parts[0] != () or not follows.any():
        return panel, noise, smooth
    w = whitened(noise.clipped[:1], noise.at(np.asarray([0])), basis[:1])
    rows = smooth[0, basis.shape[1] :]
    white = w.apply(smooth[:1])[0]
    y = w.apply(np.where(np.isfinite(noise.clipped[:1]), noise.clipped[:1], 0.0))[0]
    size = np.linalg.lstsq(white.T, y, rcond=None)[0]
    learned = np.zeros_like(panel.values)
    learned[follows] = (1 - panel.control[follows])[:, None] * (size[basis.shape[1] :] @ rows)
    smooth[follows, basis.shape[1] :] = 0.0
    beside = replace(panel, values=panel.values - learned, learned=learned)
    return beside, replace(noise, clipped=noise.clipped - learned), smooth


def _is_of_most(found: Moved) -> bool:
    """Whether a movement is slow change over the run of all rows, or of most of them while a part does something against it."""
    panel, n = found.panel, len(found.panel.steps)
    if not found.template.is_drift(n) or panel.parts[0] != () or found.chosen.values is None:
        return False
    return bool(panel.rows[list(found.chosen.members)].sum() > MOST * panel.rows[0].sum())


MOST = 0.5
"""What more of the rows than this do slowly is learned by all."""


def _set(panel: Panel, noise: Noise, located: Located, sure: float) -> Moved:
    """A change of a setting, by how many steps show it."""
    n = len(panel.steps)
    inside = int(located.template.inside(n).sum())
    size = abs(located.z) * np.sqrt(max(min(inside, n - inside), 1))
    log_p = float(np.log(n_tests(n)) + log_chance(np.asarray(size), freedom_of(panel)[0]))
    chosen = Chosen(0, panel.parts[0], (0,))
    return Moved(panel, _constants(panel), noise, located, chosen, log_p, is_sure=log_p <= sure)


def _beyond_noise(found: Moved) -> float:
    """Log of the chance that a movement of several steps is the series' noise, of whatever spread and memory; of a spike, which this cannot tell, minus infinity.

    By the likelihood with and without it, beside a level or a slow drift, whichever is likelier (Wilks 1938).
    """
    template, n = found.template, len(found.panel.steps)
    if template.kind == "window" and template.stop - template.start <= SPIKE:
        return -np.inf
    at = np.asarray([found.chosen.at])
    own, others = template.over(n)[None], found.basis[found.chosen.at, 1:]
    smooth = polynomials(n, DRIFT_DEGREE)
    slow = [np.concatenate([smooth[:1], np.zeros_like(smooth[1:])])]
    if may_be_learned(found.panel, found.panel.parts[found.chosen.at]):
        slow.append(smooth)
    bases = [np.concatenate([drift, moved, others]) for moved in (np.zeros_like(own), own) for drift in slow]
    values, errors = (
        np.repeat(each[at], len(bases), axis=0) for each in (found.panel.values, found.panel.errors)
    )
    prior = np.repeat(found.noise.prior[at], len(bases), axis=0)
    fits = replace(fits_of(values, errors, np.stack(bases)), prior=prior)
    likely = noise_of(values, errors, np.stack(bases), fits)[1].reshape(2, len(slow))
    likely[:, 1:] -= DRIFT_DEGREE * np.log(n) / 2
    without, beside = likely.max(axis=1)
    gained = max(beside - without, 0.0)
    return float(np.log(n_tests(n)) + log_chance(np.sqrt(2 * gained), np.asarray(np.inf)))


def _from_its_end(found: Moved) -> Moved:
    """A window that begins with the run is how the run was before a level: nobody knows what was before it."""
    window, n = found.template, len(found.panel.steps)
    end = found.located.end
    if (
        window.kind != "window"
        or end is None
        or window.start > WARM_UP
        or window.stop - window.start <= SPIKE
    ):
        return found
    level = Template("level", window.stop, n)
    onset = min(end[0] + 1, n - 1), min(end[1] + 1, n - 1)
    return replace(found, located=Located(level, onset, None, -found.located.z))


WARM_UP = 5
"""First steps of a run, in which a warm-up may be: what begins in them has no before."""


def _there_and_back(found: list[Moved]) -> list[Moved]:
    """One window in place of a level and the level that takes it back."""
    lasting = sorted(
        (each for each in found if each.template.kind != "window"), key=lambda each: each.template.start
    )
    for one, two in pairwise(lasting):
        n = len(one.panel.steps)
        if one.located.z * two.located.z >= 0 or one.chosen.values != two.chosen.values:
            continue
        window = Template("window", one.template.start, two.template.start)
        t = np.arange(n)
        values = one.panel.values[one.chosen.at]
        stretches = (t < window.start, (t >= window.start) & (t < window.stop), t >= window.stop)
        known = [values[steps & np.isfinite(values)] for steps in stretches]
        if not all(map(len, known)):
            continue
        before, inside, after = (float(each.mean()) for each in known)
        if abs(after - before) < RESIDUE * abs(inside - before):
            last = two.located.onset[0] - 1, two.located.onset[1] - 1
            located = Located(window, one.located.onset, last, one.located.z)
            surer = min(one, two, key=lambda each: each.log_p)
            merged = replace(one, located=located, drift=False, log_p=surer.log_p, is_sure=surer.is_sure)
            return _there_and_back([merged, *(each for each in found if each is not one and each is not two)])
    return found


def _drift(panel: Panel, noise: Noise, basis: np.ndarray, at: int) -> Moved:
    """Slow change over the run, of the part that shows it most or of all rows."""
    plain, smooth = (whitened(noise.clipped, noise, each) for each in (basis, _with_curve(basis)))
    whole = [i for i, part in enumerate(panel.parts) if part == ()]
    gained = plain.loss - smooth.loss
    place = whole[0] if whole else at
    z = float(np.sqrt(max(gained[place], 0.0)))
    n = len(panel.steps)
    located = Located(Template("ramp", 0, n), (0, 0), None, z)
    chance = float(log_chance(np.asarray(z), np.asarray(np.inf)))
    return Moved(
        panel, basis, noise, located, Chosen(place, panel.parts[place], (place,)), chance, drift=True
    )


def _set_aside(noise: Noise, best: Scanned, at: int) -> None:
    """Takes away the weight of steps that look like a movement and are none."""
    start, length = int(best.start[at]), int(best.length[at])
    noise.variance[at, start : start + min(length, SPIKE)] = np.inf


def _found(
    panel: Panel, noise: Noise, basis: np.ndarray, best: Scanned, w: Whitened, at: int
) -> Moved | None:
    own = noise.at(np.asarray([at]))
    is_spike = best.kind[at] == "window" and best.length[at] <= few_values(panel.values[at : at + 1])[0]
    one = whitened(panel.values[at : at + 1] if is_spike else own.clipped, own, basis[at : at + 1])
    if is_spike:
        w = whitened(panel.values, noise, basis)
    located = locate(one, best.kind[at], int(best.start[at]), int(best.length[at]))
    chosen = smallest_part(panel, w, located.template, at)
    if chosen.values is None:
        chosen = smallest_part(panel, _beside_drift(panel, noise, basis, is_spike), located.template, at)
    if panel.is_centred and chosen.values is None:  # what one part gains others lose
        return None
    if panel.source is not None and not _is_of_several(panel, chosen, located.template):
        return None
    log_p = float(best.log_p[at])
    if panel.is_share:
        exact = share_sizes(panel, at, located.template, basis[at])
        log_p = max(
            log_p,
            min(
                np.log(n_tests(len(panel.steps))) + float(log_chance(np.asarray(exact), np.asarray(np.inf))),
                0.0,
            ),
        )
    if chosen.values is not None and chosen.members != (at,):
        joined = joined_series(panel, noise, chosen.members)
        pooled = whitened(joined[0] if is_spike else joined[1].clipped, joined[1], basis[chosen.at][None])
        located = locate(
            pooled,
            located.template.kind,
            located.template.start,
            located.template.stop - located.template.start,
        )
    drift = located.template.is_drift(len(panel.steps)) and may_be_learned(panel, chosen.values)
    return Moved(panel, basis, noise, located, chosen, log_p, drift)


FEWEST_ROWS = 5
"""Rows that a movement rests on, at least ..."""
FEWEST_GROUPS = 3
"""... and groups of a part: what fewer do is no habit of it."""


def _is_of_several(panel: Panel, chosen: Chosen, template: Template) -> bool:
    """Whether several rows are behind a movement and behind what is not of it; of a part, of several groups."""
    members = list(chosen.members)
    inside = template.inside(len(panel.steps))
    for counted, least in ((panel.rows, FEWEST_ROWS), (panel.groups, FEWEST_GROUPS if chosen.values else 0)):
        n_T = counted[members].sum(axis=0)
        if min(n_T[inside].sum(), n_T[~inside].sum()) < least:
            return False
    return True


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


def _template(best: Scanned, at: int, n: int) -> Template:
    start = int(best.start[at])
    return Template(best.kind[at], start, n if best.kind[at] == "level" else start + int(best.length[at]))


def _beside_drift(panel: Panel, noise: Noise, basis: np.ndarray, is_spike: bool) -> Whitened:
    """The series beside slow change too: where all learn, those outside of a part moved as well."""
    values = panel.values if is_spike else noise.clipped
    return whitened(values, noise, _with_curve(basis))


def joined_series(panel: Panel, noise: Noise, members: Sequence[int]) -> tuple[np.ndarray, Noise]:
    """Several parts' series as one, float [1, T], weighted by their rows."""
    at = np.asarray(members)
    rows = np.where(np.isfinite(panel.values[at]), panel.rows[at], 0.0)
    total = rows.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        values = (np.nan_to_num(panel.values[at]) * rows).sum(axis=0) / total
        variance = (np.where(rows > 0, noise.variance[at], 0.0) * rows**2).sum(axis=0) / total**2
    variance = np.where(total > 0, variance, np.inf)
    memory, freedom = noise.memory[at].max(keepdims=True), noise.freedom[at].min(keepdims=True)
    return values[None], Noise(
        variance[None], memory, freedom, clipped(values[None], variance[None]), noise.prior[at[:1]]
    )


def _rows_of_basis(found: Moved) -> np.ndarray:
    """float [1 or 2, T]: what a movement explains of any series: its template, and that by how much of each step its part is.

    Where sources take turns, a source's window is in every third step of all rows.
    """
    panel = found.panel
    own = found.template.over(len(panel.steps))
    if not found.chosen.values or panel.parts[0] != ():
        return own[None]
    share_T = panel.rows[list(found.chosen.members)].sum(axis=0) / np.maximum(panel.rows[0], 1.0)
    if np.ptp(share_T[own != 0]) < UNEVEN:
        return own[None]
    return np.stack([own, own * share_T])


UNEVEN = 0.5
"""A part whose share of the steps of a movement differs by more than this is not in each of them alike."""


def _stands(found: Moved, basis: np.ndarray, rests: Sequence[np.ndarray]) -> bool:
    """Whether a movement is still there beside all others of its measure, but for what is left of it or of them."""
    own = [*_rows_of_basis(found), *rests]
    at = np.asarray([found.chosen.at])
    others = np.stack([row for row in basis[at[0]] if not any(np.array_equal(row, each) for each in own)])
    one = whitened(found.panel.values[at], found.noise.at(at), others[None])
    size, _ = coefficients(one, own[0])
    return bool(abs(size[0]) >= STILL)


def _may_be_slow(found: Moved, w: Whitened, best: Scanned, at: int) -> bool:
    """Whether a change of all rows that lasts is hardly better described by a step than as slow change over a part of the run."""
    panel, template = found.panel, found.template
    n = len(panel.steps)
    lasts = template.kind != "window" or template.stop - template.start > LARGE_PART * n
    if not lasts or is_given(panel) or not may_be_learned(panel, found.chosen.values):
        return False
    ramp = max(
        np.abs(w.ramps(length)[at]).max()
        for length in lengths(n).tolist()
        if length >= max(SLOW * n, SHORTEST_RAMP)
    )
    explained = [(float(ramp**2), float(np.log(n * len(lengths(n)))))]
    if (w.basis[at] ** 2).sum() < CURVE_DEGREE:
        wide = whitened(
            found.noise.clipped[at : at + 1], found.noise.at(np.asarray([at])),
            np.concatenate([polynomials(n, CURVE_DEGREE), found.basis[at, 1:]])[None],
        )  # fmt: skip
        explained.append((float(w.loss[at] - wide.loss[0]), CURVE_DEGREE * np.log(n) / 2 + np.log(n)))
    own = float(best.z[at] ** 2), np.log(n * (len(lengths(n)) if best.kind[at] != "level" else 1))
    tails = freedom_of(panel)[at]
    return any(_gain(own[0] - slow[0], tails) + slow[1] - own[1] < AMBIGUOUS for slow in explained)


def _came_at_once(found: Moved) -> bool:
    """Whether a share that was hardly there is there from one step on, or is gone: slow change would be less at first."""
    panel, start = found.panel, found.template.start
    if not panel.is_share or found.template.kind != "level":
        return False
    members = list(found.chosen.members)
    there = np.isfinite(panel.levels[members]) & (panel.rows[members] > 0)
    rows_T = np.where(there, panel.rows[members], 0.0).sum(axis=0)
    held_T = np.where(there, panel.levels[members] * panel.rows[members], 0.0).sum(axis=0)
    if held_T.sum() > HALF * rows_T.sum():
        held_T = rows_T - held_T
    edge = (slice(max(start - NEAR_EDGE, 0), start), slice(start, start + NEAR_EDGE))
    sides = (slice(start), slice(start, None))
    n_rows = [rows_T[steps].sum() for steps in (*sides, *edge)]
    if min(n_rows) <= 0:
        return False
    before, after, near_before, near_after = (
        held_T[steps].sum() / n for steps, n in zip((*sides, *edge), n_rows, strict=True)
    )
    few, many, near = (before, after, near_after) if before < after else (after, before, near_before)
    return bool(few < SCARCE * many and near >= RESIDUE * many)


HALF = 0.5
"""Of a share of more than this the rest is looked at."""
SCARCE = 0.05
"""A share that is less than this part of what it is on the other side of a step is hardly there."""


def _gain(squares: float, freedom: float) -> float:
    """Log likelihood that one account of a series has over another that leaves so many more squares."""
    return float(np.sign(squares) * freedom * np.log1p(np.abs(squares) / freedom) / 2)


SLOW = 0.2
"""A ramp over this part of the run or more is slow change."""
CURVE_DEGREE = 3
"""A policy that learns late and then has learned is a cubic."""
AMBIGUOUS = 8.0
"""Log likelihood by which one account of a series has to be better than another, for it to be said without the other."""
RESIDUE = 0.5
"""A second movement at the edge of a first, of less than this much of its size, is what the first one's shape left."""
NEAR_EDGE = 5
"""Steps from an edge that are at it."""


def _is_rest_of(found: Moved, other: Moved) -> bool:
    """Whether a movement is what is left of another at its edges."""
    one, two = found.template, other.template
    if found.chosen.values and not other.chosen.values:
        return False
    if _are_apart(found, other):
        return False
    both_last = one.kind != "window" and two.kind != "window" and found.located.z * other.located.z > 0
    of_all = both_last and not other.chosen.values
    if not of_all and abs(found.located.z) >= RESIDUE * abs(other.located.z):
        return False
    n = len(found.panel.steps)
    if two.start == 0 and two.stop == n:  # slow change over the run has no edge
        return False
    reach = max(NEAR_EDGE, (two.stop - two.start) // NEAR_EDGE)
    own = [edge for edge in (one.start, one.stop) if edge < n]
    return any(abs(edge - each) <= reach for edge in (two.start, two.stop) for each in own)


def _are_apart(found: Moved, other: Moved) -> bool:
    """Whether two movements are of parts without a common row, of which none shows what the other does."""
    one, two = found.chosen.values or (), other.chosen.values or ()
    columns = {column for column, _ in (*one, *two)}
    apart = bool(one) and bool(two) and len(columns) == 1 and not set(one) & set(two)
    panel = found.panel
    return apart and not panel.is_centred and not panel.control[list(found.chosen.members)].any()


def spikes_of_rows(panel: Panel, noise: Noise, limit: np.ndarray) -> list[Moved]:
    """The steps that a handful of rows carry away from the step's other rows and from the other steps, against the noise and the tail of the rows."""
    if not panel.carried or panel.parts[0] != ():
        return []
    n = len(panel.steps)
    found = []
    for at, carried in panel.carried.items():
        whole = carried.level
        error = np.sqrt(noise.variance[0, at])
        others = np.delete(panel.levels[0], at)
        usual = np.median(others[np.isfinite(others)]) if np.isfinite(others).any() else whole
        apart = min(whole - panel.levels[0, at], whole - usual, key=abs)
        z = float(apart / error) if np.isfinite(error) and error > 0 else 0.0
        by_noise = float(np.log(n_tests(n)) + log_chance(np.asarray(z), freedom_of(panel)[0]))
        log_p = max(by_noise, carried.log_p)
        if np.isfinite(z) and log_p <= limit[0]:
            located = Located(Template("window", at, at + 1), (at, at), (at, at), float(z))
            levels = panel.levels.copy()
            levels[0, at] = whole
            chosen = Chosen(0, (), (0,))
            found.append(
                Moved(
                    replace(panel, levels=levels),
                    _constants(panel),
                    noise,
                    located,
                    chosen,
                    log_p,
                    n_carriers=carried.n_rows,
                )
            )
    return found
