"""A movement that was found, or that a handful of rows make, what it explains of the series of its measure, and what it leaves of others at its edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from rollout_traces.analysis.learning import may_be_learned
from rollout_traces.analysis.noise import Noise, clipped
from rollout_traces.analysis.panel import Panel, rows_of
from rollout_traces.analysis.parts import PLAINLY, Chosen
from rollout_traces.analysis.scan import (
    MOST_LENGTHS,
    OF_RUN,
    SPIKE,
    WARM_UP,
    Located,
    Template,
    coefficients,
    n_tests,
    whitened,
)
from rollout_traces.analysis.screen import freedom_of, log_chance

STILL = 3.5
"""Size that a movement keeps when all others of its series are known; else it was their shadow."""
MOST_OF_RUN = 3
"""A window of more than one in so many steps is how the run is, and what is around it moved."""
UNEVEN = 1 / 2
"""A part whose share of the steps of a movement differs by more than this is not in each of them alike."""


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
        is_set: whether somebody set it, as a learning rate: a number without noise.
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
    is_set: bool = False

    @property
    def template(self) -> Template:
        """Its template."""
        return self.located.template


def constant_basis(panel: Panel) -> np.ndarray:
    """float [S, 1, T]."""
    return np.ones((len(panel.values), 1, len(panel.steps)))


def beside(basis: np.ndarray, further: np.ndarray) -> np.ndarray:
    """A basis, float [S, K, T], with the same rows, float [L, T], of each series."""
    return np.concatenate([basis, np.broadcast_to(further, (len(basis), *further.shape))], axis=1)


def rows_of_basis(found: Moved) -> np.ndarray:
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


def of_chosen(panel: Panel, noise: Noise, chosen: Chosen) -> tuple[np.ndarray, Noise]:
    """The series of a part, float [1, T]: those of its values weighted by their rows."""
    at = np.asarray(chosen.members)
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


def stands(found: Moved, basis: np.ndarray, rests: Sequence[np.ndarray]) -> bool:
    """Tells whether a movement is still there beside all others of its measure, but for what is left of it or of them."""
    own = [*rows_of_basis(found), *rests]
    at = np.asarray([found.chosen.at])
    others = np.stack([row for row in basis[at[0]] if not any(np.array_equal(row, each) for each in own)])
    one = whitened(found.panel.values[at], found.noise.at(at), others[None])
    size, _ = coefficients(one, own[0])
    return bool(abs(size[0]) >= STILL)


RESIDUE = 0.5
"""A second movement at the edge of a first, of less than this much of its size, is what the first one's shape left."""
NEAR_EDGE = 5
"""Steps from an edge that are at it."""
NEAR = 20
"""Steps before and after a movement whose level stands for before."""


def from_its_end(found: Moved) -> Moved:
    """A window that begins with the run is how the run was before a level: nobody knows what was before it. So is one in which who sampled is like the others, and behind it no more."""
    window, n = found.template, len(found.panel.steps)
    over_most = (window.stop - window.start) * MOST_OF_RUN > n and 2 * window.start * MOST_OF_RUN <= n
    starts = window.start <= min(WARM_UP, n // OF_RUN) or over_most
    is_short = min(window.stop - window.start, n - window.stop) <= SPIKE
    if window.kind != "window" or is_short or not (starts or _is_like_others(found)):
        return found
    return replace(found, located=_level_behind(found, abs(found.located.z)))


def _is_like_others(window: Moved) -> bool:
    """Tells whether a part by who sampled lies less than half as far from the others in a window as behind it."""
    panel, chosen, t = window.panel, window.chosen, np.arange(len(window.panel.steps))
    if not chosen.values or may_be_learned(panel, chosen.values):
        return False

    def apart(steps: np.ndarray) -> float:
        own, others = (level_of(panel, each, steps) for each in (chosen.members, chosen.outside))
        return np.nan if own is None or others is None else abs(own - others)

    start, stop = window.template.start, window.template.stop
    return apart((t >= start) & (t < stop)) < RESIDUE * apart(t >= stop)


def level_of(panel: Panel, members: Sequence[int], steps: np.ndarray) -> float | None:
    """The level of some series of a panel, weighted by their rows, at some steps, bool [T]; None without any."""
    values, n = (each[list(members)][:, steps] for each in (panel.levels, panel.rows))
    there = np.isfinite(values) & (n > 0)
    return float(np.average(values[there], weights=n[there])) if there.any() else None


def since_it_was_lost(found: Moved) -> Moved:
    """What is learned for a while, or comes by and by and goes at once, since it is no longer there: what a policy has learned it keeps."""
    template = found.template
    if (
        not (found.drift or _comes_by_and_by(found))
        or template.kind != "window"
        or template.stop == len(found.panel.steps)
    ):
        return found
    return replace(found, located=_level_behind(found, abs(found.located.z)), drift=False)


def _comes_by_and_by(window: Moved) -> bool:
    """Tells whether a window begins with less than half of the step with which it ends, or a rise by a line over a quarter of the run that ends there explains more of its series than the best of so many lines does by chance."""
    if is_spike(window):
        return False
    t, template, at = np.arange(len(window.panel.steps)), window.template, np.asarray([window.chosen.at])
    levels, start, stop = window.panel.levels[window.chosen.at], template.start, template.stop
    edges = start - NEAR_EDGE, start, stop - NEAR_EDGE, stop
    near = [levels[max(edge, 0) : edge + NEAR_EDGE] for edge in edges]
    if stop - start >= 2 * NEAR_EDGE and all(np.isfinite(each).any() for each in near):
        before, first, last, after = map(np.nanmean, near)
        if abs(first - before) < RESIDUE * abs(last - after):
            return True
    w = whitened(window.noise.clipped[at], window.noise.at(at), window.basis[at])
    latest = max(min(start, stop - len(t) // OF_RUN), 0)
    begins = np.linspace(0, latest, min(latest + 1, MOST_LENGTHS))[:, None]
    rises = np.where(t < stop, np.maximum((t - begins + 1) / (stop - begins), 0.0), 0.0)
    own = w.sizes(template.over(len(t))[None])[0]
    risen = max(float((w.sizes(rises) * np.sign(own)).max()), 0.0)
    return bool((risen**2 - own**2) / 2 > np.log(len(rises)))


def _level_behind(window: Moved, size: float) -> Located:
    """The level that begins where a window ends, the other way than the window went."""
    n, end = len(window.panel.steps), window.located.end or (window.template.stop - 1,) * 2
    onset = min(end[0] + 1, n - 1), min(end[1] + 1, n - 1)
    z = -np.sign(window.located.z) * size
    return Located(Template("level", window.template.stop, n), onset, None, float(z))


def from_its_first(found: Moved, others: Sequence[Moved], slow: np.ndarray) -> Moved:
    """A level or a window since the first of the steps before it that are plainly off its way too, as where it is reached by and by.

    Args:
        found: the movement.
        others: all movements of its measure.
        slow: float [K, T], curves by which their series drift beside them; none where they do not.
    """
    template, located, at = found.template, found.located, found.chosen.at
    if found.drift or template.kind == "ramp" or is_spike(found) or not template.start:
        return found
    values = _less_drift(found, others, slow)
    earlier = values[max(template.start - NEAR, 0) : template.start]
    away = (values - np.nanmedian(earlier)) * np.sign(located.z) if np.isfinite(earlier).any() else values * 0
    is_off = away > PLAINLY * np.sqrt(found.noise.variance[at])
    start = template.start
    while start > 1 and is_off[start - 1]:
        start -= 1
    if start == template.start:
        return found
    begun = Template(template.kind, start, template.stop)
    return replace(found, located=replace(located, template=begun, onset=(start, start)))


def there_and_back(found: list[Moved], slow: np.ndarray) -> list[Moved]:
    """One window in place of a level and the level, or the last steps, that take it back.

    Args:
        found: movements of a measure.
        slow: float [K, T], curves by which their series drift beside them; none where they do not.
    """
    to_the_end = [
        each
        for each in found
        if each.template.kind != "window" or each.template.stop == len(each.panel.steps)
    ]
    lasting = sorted(to_the_end, key=lambda each: each.template.start)
    for one, two in pairwise(lasting):
        n = len(one.panel.steps)
        if one.located.z * two.located.z >= 0 or one.chosen.values != two.chosen.values:
            continue
        if two.template.start - one.template.start > n // MOST_OF_RUN:
            continue
        window = Template("window", one.template.start, two.template.start)
        t = np.arange(n)
        values = _less_drift(one, found, slow)
        near = max(window.stop - window.start, NEAR_EDGE)
        inside = (t >= window.start) & (t < window.stop)
        around = (t >= window.start - near) & (t < window.stop + near) & ~inside
        stretches = (around & (t < window.start), inside, around & (t >= window.stop))
        known = [values[steps & np.isfinite(values)] for steps in stretches]
        if not all(map(len, known)):
            continue
        before, between, after = (float(each.mean()) for each in known)
        if abs(after - before) < RESIDUE * abs(between - before):
            last = two.located.onset[0] - 1, two.located.onset[1] - 1
            located = Located(window, one.located.onset, last, one.located.z)
            log_p, is_sure = min(one.log_p, two.log_p), one.is_sure or two.is_sure
            merged = replace(one, located=located, drift=False, log_p=log_p, is_sure=is_sure)
            return there_and_back([merged, *(each for each in found if each not in (one, two))], slow)
    return found


def _less_drift(one: Moved, found: Sequence[Moved], slow: np.ndarray) -> np.ndarray:
    """float [T]: the series of a movement without what it drifts by beside all that was found, by least squares."""
    values = one.panel.values[one.chosen.at]
    known = np.isfinite(values)
    rows = np.concatenate([slow, constant_basis(one.panel)[0], *map(rows_of_basis, found)])
    size = np.linalg.lstsq(rows[:, known].T, values[known], rcond=None)[0]
    return values - size[: len(slow)] @ slow


def is_rest_of(found: Moved, other: Moved) -> bool:
    """Tells whether a movement is what is left of another at its edges."""
    one, two = found.template, other.template
    if found.chosen.values and not other.chosen.values:
        return False
    both_last = one.kind != "window" and two.kind != "window" and found.located.z * other.located.z > 0
    of_all = both_last and not other.chosen.values
    n = len(found.panel.steps)
    # how a run starts is no ramp, and what that leaves may be nearly as large
    least = 1.0 if two.kind == "ramp" and two.start <= min(WARM_UP, n // OF_RUN) else RESIDUE
    if not of_all and abs(found.located.z) >= least * abs(other.located.z):
        return False
    if two.start == 0 and two.stop == n:  # slow change over the run has no edge
        return False
    reach = max(NEAR_EDGE, (two.stop - two.start) // NEAR_EDGE)
    own, others = ([edge for edge in (each.start, each.stop) if edge < n] for each in (one, two))
    return any(abs(edge - each) <= reach for edge in others for each in own)


def log_chance_of_groups(found: Moved) -> float:
    """Log of the chance that all groups with a value, or all that lack it where it is lost, lie at a movement's steps (Fisher's exact test); 0 where others do too.

    How far a mean of few such groups may lie, its tails hardly say: they are those of the groups themselves.
    """
    from scipy.stats import hypergeom

    panel, rows, measure = found.panel, found.panel.source, found.panel.measure
    if (
        rows is None
        or measure is None
        or not {column for column, _ in found.chosen.values or ()} <= set(rows.parts)
    ):
        return 0.0
    values = measure.read() if found.located.z > 0 else 1 - measure.read()
    held = np.isfinite(values)
    if found.chosen.values:
        held &= rows_of(rows, found.chosen.values)
    unit, at, n = rows.unit[held], rows.at[held], int(rows.unit.max()) + 1
    inside = np.bincount(unit, found.template.inside(len(panel.steps))[at], n) > 0
    there, having = np.bincount(unit, minlength=n) > 0, np.bincount(unit, values[held], n) > 0
    if (having & ~inside).any():
        return 0.0
    chance = hypergeom.logpmf(having.sum(), there.sum(), inside.sum(), having.sum())
    return min(float(np.log(2 * n_tests(len(panel.steps))) + chance), 0.0)


def is_spike(found: Moved) -> bool:
    """Tells whether a movement is one of a few steps."""
    return found.template.kind == "window" and found.template.stop - found.template.start <= SPIKE


IN_THE_MEAN = np.log(0.05)
"""Log of the chance up to which a few rows, which lie beyond the tail of all others, show in the mean of their step."""


def spikes_of_rows(panel: Panel, noise: Noise, limit: np.ndarray) -> list[Moved]:
    """The steps that a handful of rows carry away from the step's other rows and from the other steps, against the noise and the tail of the rows."""
    if not panel.carried or panel.parts[0] != ():
        return []
    found = []
    for at, carried in panel.carried.items():
        whole = carried.level
        error = np.sqrt(noise.variance[0, at])
        others = np.delete(panel.levels[0], at)
        usual = np.median(others[np.isfinite(others)]) if np.isfinite(others).any() else whole
        apart = carried.apart or min(whole - panel.levels[0, at], whole - usual, key=abs)
        z = float(apart / error) if np.isfinite(error) and error > 0 else 0.0
        shows = (
            log_chance(np.asarray(z), freedom_of(panel)[0]) <= IN_THE_MEAN
        )  # the rows say which step it is
        if np.isfinite(z) and shows and carried.log_p <= limit[0]:
            located = Located(Template("window", at, at + 1), (at, at), (at, at), float(z))
            levels = panel.levels.copy()
            levels[0, at] = whole
            chosen = Chosen(0, (), (0,))
            found.append(
                Moved(
                    replace(panel, levels=levels),
                    constant_basis(panel),
                    noise,
                    located,
                    chosen,
                    carried.log_p,
                    n_carriers=carried.n_rows,
                )
            )
    return found
