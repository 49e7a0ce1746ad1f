"""The scan over all series: their noise, each one's largest movement, and the limit of chance over all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from rollout_traces.analysis.compare import DISCOVERY
from rollout_traces.analysis.curves import SeriesName
from rollout_traces.analysis.learning import may_be_learned
from rollout_traces.analysis.noise import (
    FEWEST_OF_MEMORY,
    MEMORIES,
    NEIGHBOURS,
    Fits,
    Noise,
    crude,
    fits_of,
    median,
    noise_of,
    of_neighbours,
    tails_of,
)
from rollout_traces.analysis.panel import Panel, one_of, stacked
from rollout_traces.analysis.scan import (
    SHORTEST_RAMP,
    SPIKE,
    WARM_UP,
    Kind,
    Template,
    Whitened,
    evidence,
    lengths,
    n_tests,
    polynomials,
    whitened,
)
from rollout_traces.analysis.student import log_tail

PERHAPS = 0.5
"""Part of the movements that are chance among those that are said to be perhaps (Benjamini and Hochberg 1995)."""
FEWEST_EVALUATIONS = 6
"""Steps of an evaluation, of which groups say how sure each is."""
FEWEST_STEPS = 12
"""Steps of a series; with fewer, nothing is known of what steps differ by."""
DRIFT_DEGREE = 2
"""A policy that learns is a parabola over the run: it may saturate or begin late, and has no edge."""
AT_ONCE = 1 << 15
"""Values [S, T] that are scanned at once, so that what is in between stays in the processor's cache."""


@dataclass(frozen=True, eq=False)
class Scanned:
    """The best template of each of S series.

    Attributes:
        kind: S kinds.
        start: int [S].
        length: int [S].
        z: float [S].
        log_p: float [S], chance of it anywhere in the series.
        evidence: float [S].
    """

    kind: np.ndarray
    start: np.ndarray
    length: np.ndarray
    z: np.ndarray
    log_p: np.ndarray
    evidence: np.ndarray

    def template(self, at: int, n_steps: int) -> Template:
        """That of a series."""
        start = int(self.start[at])
        stop = n_steps if self.kind[at] == "level" else start + int(self.length[at])
        return Template(self.kind[at], start, stop)


def noise_of_panel(panel: Panel) -> Noise:
    """The noise of each series around a slow drift, of a part beside the rest around a level, and around those of its movements that make it likelier than any noise does."""
    n_series, n = panel.values.shape
    if n < FEWEST_EVALUATIONS:
        return crude(panel.values, panel.errors)
    degree = DRIFT_DEGREE if n >= FEWEST_OF_MEMORY else 1  # in a few steps a parabola is any movement
    basis = np.tile(polynomials(n, degree), (n_series, 1, 1))
    basis[panel.beside_rest, 1:] = 0.0
    fits = fits_of(panel.values, panel.errors, basis)
    likely = noise_of(panel.values, panel.errors, fits)[1]
    fits, likely, basis = _beside_largest(panel, fits.first, fits, likely, basis, np.arange(n_series))
    lasting = np.flatnonzero(fits.remembers > 1 / 2)
    fits, _, basis = _beside_largest(panel, _that_lasts(fits.first), fits, likely, basis, lasting)
    noise = noise_of(panel.values, panel.errors, with_shared_prior(fits, _of_one_measure(panel)))[0]
    return with_tails(panel, noise, basis)


def _beside_largest(
    panel: Panel, rough: Noise, fits: Fits, likely: np.ndarray, basis: np.ndarray, left: np.ndarray
) -> tuple[Fits, np.ndarray, np.ndarray]:
    """The fits beside the largest movements of series, as long as these make them likelier; their log likelihood; and the basis with them.

    Args:
        panel: the series.
        rough: the noise against which movements are looked for.
        fits: without them.
        likely: float [S], log likelihood of each series.
        basis: float [S, K, T], what the series do beside them.
        left: int [K], which series.
    """
    n_series, n = panel.values.shape
    without_spikes = replace(panel, values=rough.clipped)
    alike, likely = _of_one_measure(panel), likely.copy()
    for _ in range(LARGEST_OF_NOISE if len(left) else 0):
        best = scan_in_parts(one_of(without_spikes, left.tolist()), rough.at(left), basis[left])
        worth = best.z**2 / 2 > np.log(n_tests(n)) + EVIDENT
        left, kept = left[worth], np.flatnonzero(worth)
        if not len(left):
            break
        further = [best.template(i, n).over(n) for i in kept.tolist()]
        wider = np.concatenate([basis[left], np.stack(further)[:, None]], axis=1)
        again = fits_of(panel.values[left], panel.errors[left], wider)
        other = noise_of(panel.values[left], panel.errors[left], again)[1]
        gained = np.zeros(n_series)
        gained[left] = other - likely[left]
        least = np.full(n_series, np.log(n_tests(n)) + EVIDENT)
        for members in alike:  # where one of a measure's parts moves, others do, by what is beside the rest
            if (gained[members] > least[members]).any():
                least[members] = EVIDENT
        sure = (gained > least)[left]
        left = left[sure]
        fits = fits.put(left, again, sure)
        likely[left] = other[sure]
        basis = np.concatenate([basis, np.zeros((n_series, 1, n))], axis=1)
        basis[left] = wider[sure]
        if not len(left):
            break
    return fits, likely, basis


def _that_lasts(noise: Noise) -> Noise:
    """The same noise with the longest memory: what a series wanders by is less in the way of what it jumps by."""
    memory = np.full(len(noise.memory), MEMORIES[-1])
    return replace(noise, memory=memory, variance=noise.variance / (1 - MEMORIES[-1]))


def with_shared_prior(fits: Fits, alike: list[list[int]]) -> Fits:
    """The same, with what series that are alike say of each other's noise: one that moved looks as if it had a memory.

    The others' noise is the likeliest of all of them together, each of which may be another's with as much chance.

    Args:
        fits: of all series.
        alike: series that are.
    """
    weight, prior = fits.weight, fits.prior.copy()
    for members in alike:
        if len(members) < FEWEST_ALIKE:
            continue
        each = np.log((np.exp(prior[members]) + weight[members]) / 2)
        of_others = each.sum(axis=0) - each
        others = np.exp(of_others - of_others.max(axis=1, keepdims=True))
        others /= others.sum(axis=1, keepdims=True)
        prior[members] += np.log(DOUBT + (1 - DOUBT) * others * np.exp(-prior[members]))
    return replace(fits, prior=prior)


FEWEST_ALIKE = 3
"""Series that tell of each other's noise."""
DOUBT = 0.05
"""Chance that a series has a noise of its own."""


def with_tails(panel: Panel, noise: Noise, basis: np.ndarray) -> Noise:
    """The noise with the tails that groups give a mean, and of other series those that their steps say beside a basis, float [S, K, T]."""
    freedom = panel.tails.copy()
    unknown = ~np.isfinite(freedom)
    if unknown.any():
        of_groups = (np.nan_to_num(panel.errors[unknown]) > 0).any(axis=1)
        freedom[unknown] = tails_of(panel.values[unknown], noise.variance[unknown], basis[unknown], of_groups)
    return replace(noise, freedom=freedom)


def _of_one_measure(panel: Panel) -> list[list[int]]:
    """The series of the parts of each measure."""
    found: dict[SeriesName, list[int]] = {}
    for i, (name, part) in enumerate(zip(panel.names, panel.parts, strict=True)):
        if part:
            found.setdefault(name, []).append(i)
    return list(found.values())


LARGEST_OF_NOISE = 3
"""Movements that are taken out of a series before its noise is looked at ..."""
EVIDENT = 3.0
"""... where its log likelihood gains this much by each, beyond what one of so many places and lengths gains by chance."""


def scan_in_parts(panel: Panel, noise: Noise, basis: np.ndarray) -> Scanned:
    """As `scan`, some series at a time; `basis` is [S, K, T]."""
    per = max(1, AT_ONCE // max(len(panel.steps), 1))
    parts = []
    for first in range(0, len(panel.values), per):
        here = np.arange(first, min(first + per, len(panel.values)))
        parts.append(scan(one_of(panel, here.tolist()), noise.at(here), basis[here])[0])
    names = [each.name for each in fields(Scanned)]
    return Scanned(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def few_values(values: np.ndarray) -> np.ndarray:
    """int [S]: the length of a window in which a series, which may have a value at every third step, has as many as a spike.

    Args:
        values: float [S, T], NaN where there is none.
    """
    n = np.maximum(np.isfinite(values).sum(axis=1), 1)
    return np.maximum(SPIKE * values.shape[1] // n, SPIKE)


def _sizes(w: Whitened, sharp: Whitened, few: np.ndarray) -> Iterator[tuple[Kind, int, np.ndarray, int]]:
    """Kind and length of templates, their sizes [S, ...] by where they begin, and among how many lengths they are one.

    Args:
        w: series without what lies far from its neighbours.
        sharp: with it, for windows up to ...
        few: int [S], ... this length.
    """
    n = w.weight.shape[1]
    found = lengths(n)
    # what began in the last steps is a spike for all that is known
    yield "level", n, w.levels()[:, :-SPIKE], 1
    for length in found.tolist():
        windows = (sharp if (length <= few).any() else w).windows(length)
        if (length <= few).any() and (length > few).any():
            windows = np.where((length <= few)[:, None], windows, w.windows(length))
        yield "window", length, windows, len(found)
        if length >= SHORTEST_RAMP:
            yield "ramp", length, w.ramps(length), len(found)


def scan(panel: Panel, noise: Noise, basis: np.ndarray) -> tuple[Scanned, Whitened]:
    """The best template of each series beside what it does already.

    Args:
        panel: the series.
        noise: theirs.
        basis: float [K, T] or [S, K, T], what they may do.
    """
    n_series, n = panel.values.shape
    wide = np.broadcast_to(basis, (n_series, *basis.shape[-2:]))
    w = whitened(noise.clipped, noise, wide)
    sharp = w.of(panel.values)
    rows = np.arange(n_series)
    freedom = freedom_of(panel)
    tails_of_best = freedom.copy()
    best = Scanned(
        np.full(n_series, "level", object),
        np.zeros(n_series, np.int64),
        np.full(n_series, n),
        np.zeros(n_series),
        np.zeros(n_series),
        np.full(n_series, -np.inf),
    )
    few = few_values(panel.values)
    for kind, length, sizes, n_lengths in _sizes(w, sharp, few):
        if sizes.shape[1] < 2:
            continue
        at = 1 + np.argmax(np.abs(sizes[:, 1:]), axis=1)
        z = sizes[rows, at]
        is_short = (kind == "window") & (length <= few)
        tails = np.where(is_short, np.minimum(freedom, noise.freedom * min(length, SPIKE)), freedom)
        same = np.where(is_short, np.minimum(freedom, noise.freedom * SPIKE), freedom)
        gained = evidence(_as_normal(z, same), n, n_lengths)
        better = gained > best.evidence
        best.kind[better], best.start[better], best.length[better] = kind, at[better], length
        best.z[better], best.evidence[better] = z[better], gained[better]
        tails_of_best[better] = tails[better]
    log_p = np.log(n_tests(n)) + log_chance(best.z, tails_of_best)
    return replace(best, log_p=np.minimum(log_p, 0.0)), w


def freedom_of(panel: Panel) -> np.ndarray:
    """float [S]: degrees of freedom with which the noise of a series is known: the groups', or its own steps'."""
    known = median(np.where(np.isfinite(panel.values), np.nan_to_num(panel.errors), np.nan)) > 0
    n = np.isfinite(panel.values).sum(axis=1).astype(float)
    return np.where(known, FREEDOM_OF_GROUPS * n, n)


FREEDOM_OF_GROUPS = 4.0
"""Degrees of freedom a step where the groups say how sure it is."""


def log_chance(z: np.ndarray, freedom: np.ndarray) -> np.ndarray:
    """Log of the chance of a size, to both sides, under Student's t."""
    return np.log(2.0) + log_tail(np.abs(z), freedom)


def _as_normal(z: np.ndarray, freedom: np.ndarray) -> np.ndarray:
    """The size that has the same chance under a normal distribution."""
    return np.sqrt(freedom * np.log1p(z**2 / freedom))


def screened(panel: Panel, noise: Noise, learned: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log p of each series' best movement, float [S], and whether it is better told beside a drift, or by one alone, bool [S].

    Args:
        panel: the series.
        noise: theirs.
        learned: bool [S], where a policy may drift.
    """
    n = len(panel.steps)
    chance, drifts = np.zeros(len(panel.values)), np.zeros(len(panel.values), bool)
    logged = np.flatnonzero([name.statistic == "logged" for name in panel.names])
    alone = np.asarray([lone_steps(panel, at)[1] for at in logged])
    per = max(1, AT_ONCE // max(n, 1))
    for first in range(0, len(panel.values), per):
        here = np.arange(first, min(first + per, len(panel.values)))
        part, own = one_of(panel, here.tolist()), noise.at(here)
        plain, w = scan(part, own, polynomials(n, 0))
        chance[here] = plain.log_p
        if n < FEWEST_EVALUATIONS:
            continue
        smooth = np.broadcast_to(polynomials(n, DRIFT_DEGREE), (len(here), DRIFT_DEGREE + 1, n))
        drift = drift_evidence(w, whitened(own.clipped, own, smooth), n, freedom_of(part))
        of_all = np.asarray([each == () for each in part.parts])
        may = learned[here] & (of_all | (drift > plain.evidence))
        if not may.any():
            continue
        beside, _ = scan(
            one_of(part, np.flatnonzero(may).tolist()), own.at(may), polynomials(n, DRIFT_DEGREE)
        )
        both = drift[may] + np.maximum(beside.evidence, 0.0)
        slow = both > np.maximum(plain.evidence[may], 0.0)
        drifts[here[may][slow]] = True
        chance[here[may][slow]] = np.minimum(beside.log_p[slow] + np.log(2.0), 0.0)
    chance[logged] = np.minimum(chance[logged], alone)
    return chance, drifts


def lone_steps(panel: Panel, at: int) -> tuple[slice, float]:
    """The step, or up to `SPIKE` in a row, at which a number lies furthest from its neighbours, and the log of the chance that it lies so much further than at any other.

    Under a tail of exponent n, the ratio of the k-th largest distance to the next exceeds r with a chance of r^(-n k) (Renyi 1953).

    Args:
        panel: the series, of numbers that the trainer logged.
        at: which of them.
    """
    levels_T = panel.levels[at]
    places = np.flatnonzero(np.isfinite(levels_T))
    found, log_p = slice(0, 1), 0.0
    if len(places) < FEWEST_STEPS:
        return found, log_p
    away = np.abs(levels_T[places] - of_neighbours(levels_T[places]))
    edges = np.r_[:WARM_UP, len(away) - NEIGHBOURS // 2 : len(away)]  # without neighbours to both sides
    away[edges] = np.minimum(away[edges], np.sort(np.delete(away, edges))[-2])
    order = np.argsort(-away)
    for k in range(1, SPIKE + 1):
        furthest = np.sort(order[:k])
        last, following = away[order[k - 1 : k + 1]]
        if following <= 0 or furthest[-1] - furthest[0] != k - 1:
            continue
        chance = float(-TAIL * k * np.log(last / following))
        if chance < log_p:
            found, log_p = slice(int(places[furthest[0]]), int(places[furthest[-1]]) + 1), chance
    return found, log_p


TAIL = 3.0
"""Exponent of the tail of what steps usually differ by; means over groups have a lighter one."""


def drift_evidence(plain: Whitened, smooth: Whitened, n: int, freedom: np.ndarray) -> np.ndarray:
    """float [S]: log evidence of a drift, on the scale of `evidence`."""
    size = np.sqrt(np.maximum(plain.loss - smooth.loss, 0.0))
    return evidence(_as_normal(size, freedom), 1) - DRIFT_DEGREE * np.log(n) / 2


def limits(
    screens: Sequence[np.ndarray], shares: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """For each measure the log p up to which each of its series has moved for sure, and up to which it has perhaps.

    False discoveries are held among measures, at `DISCOVERY` however they depend on each other, and at `PERHAPS`. Half of a
    measure's chance is for all rows together, half for its parts.

    Args:
        screens: for each measure the log p of each of its series.
        shares: for each measure, of each series the log of how many share its chance, see `shares_of`.
    """
    if not screens:
        return [], []
    each = np.asarray([float((log_p + own).min()) for log_p, own in zip(screens, shares, strict=True)])
    m = len(each)
    ranks = np.arange(1, m + 1)
    found = []
    for rate in (DISCOVERY / (1 / ranks).sum(), PERHAPS):
        steps = np.log(rate * ranks / m)
        passed = np.flatnonzero(np.sort(each) <= steps)
        limit = float(steps[passed[-1]] if len(passed) else steps[0])
        found.append([limit - own for own in shares])
    return found[0], found[1]


def shares_of(panel: Panel) -> np.ndarray:
    """float [S]: log of how many series of its measure share the chance with one."""
    whole = np.asarray([part == () for part in panel.parts])
    if whole.all() or not whole.any():
        return np.full(len(whole), np.log(len(whole)))
    return np.log(2.0) + np.where(whole, 0.0, np.log(max((~whole).sum(), 1)))


def side_by_side(panels: Sequence[Panel]) -> list[list[int]]:
    """The panels by the steps that they share: their series are looked at together."""
    same: dict[bytes, list[int]] = {}
    for i, panel in enumerate(panels):
        same.setdefault(panel.steps.tobytes(), []).append(i)
    return list(same.values())


def all_noise(panels: Sequence[Panel]) -> list[Noise]:
    """The noise of each panel's series."""
    found: dict[int, Noise] = {}
    for members in side_by_side(panels):
        noise = noise_of_panel(stacked([panels[i] for i in members]))
        first = 0
        for i in members:
            found[i] = _floored(
                noise.at(np.arange(first, first + len(panels[i].names))), panels[i].control > 0
            )
            first += len(panels[i].names)
    return [found[i] for i in range(len(panels))]


def _floored(noise: Noise, is_controlled: np.ndarray) -> Noise:
    """A part has no more rows than all, so it is hardly surer, unless what the rest did is taken off: one that never moved has the noise of all."""
    usual = np.where(np.isfinite(noise.variance[:1]), noise.variance[:1], 0.0)
    floor = SURER * np.median(usual[usual > 0]) if (usual > 0).any() else 0.0
    floors = np.where(is_controlled, 0.0, floor)[:, None]
    return replace(noise, variance=np.maximum(noise.variance, floors))


SURER = 0.5
"""Variance that a part of the rows has at least, of that of all."""


def all_screened(panels: Sequence[Panel], noises: Sequence[Noise]) -> list[tuple[np.ndarray, np.ndarray]]:
    """As `screened`, for each panel."""
    found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for members in side_by_side(panels):
        parts = [noises[i] for i in members]
        noise = Noise(
            *(np.concatenate([getattr(each, field.name) for each in parts]) for field in fields(Noise))
        )
        learned = np.asarray([may_be_learned(panels[i], part) for i in members for part in panels[i].parts])
        log_p, drifts = screened(stacked([panels[i] for i in members]), noise, learned)
        first = 0
        for i in members:
            last = first + len(panels[i].names)
            found[i] = log_p[first:last], drifts[first:last]
            first = last
    return [found[i] for i in range(len(panels))]
