"""The scan: every level, window and ramp, of any length at any step, against the noise of each of many series at once.

A template h has onset a and end b: a window is 1 from a to b - 1, a level a window to the last step, a ramp rises from
a to b - 1 and stays. The size of a template is its generalised least squares coefficient over its error, where noise
is autoregressive of first order: z = <Lh, Lr> / |Lh - its projection on the basis|, with L the whitening of `Whitened`.
Sums over a template are differences of cumulative sums, so that all places cost one pass a length.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from rollout_traces.analysis.noise import Noise

GROWTH = 1.35
"""From one length to the next: a template that is a sixth too long or short keeps 0.96 of its size."""
WARM_UP = 5
"""First steps of a run, in which a warm-up may be: what begins in them has no before ..."""
OF_RUN = 4
"""... and one in so many of them, at most, that are how it starts."""
SHORTEST_RAMP = 4
"""Steps of a ramp; a shorter one is a level."""
LEAST_OWN = 0.03
"""Part of a template that its basis may leave: what is nearly a drift cannot be told from one."""
TESTS = 8.0
"""Independent tests a step, from the largest size in 3,000 white series: 4 to 12 for 12 to 640 steps."""


def lengths(n_steps: int) -> np.ndarray:
    """int [K]: the lengths that are looked at."""
    found, length = [], 1.0
    while length < n_steps:
        found.append(int(length))
        length = max(length + 1, length * GROWTH)
    return np.asarray(found, np.int64)


@dataclass(frozen=True, eq=False)
class Whitened:
    """S series with noise that is white and of size 1.

    Attributes:
        weight: float [S, T], 1 / variance of each innovation, 0 where there is no value.
        memory: float [S, T], how much of the value before is taken off, 0 where there is none.
        basis: float [S, K, T], orthonormal: what a series may do without a movement.
        residual: float [S, T], what the basis leaves.
    """

    weight: np.ndarray
    memory: np.ndarray
    basis: np.ndarray
    residual: np.ndarray

    def apply(self, values: np.ndarray) -> np.ndarray:
        """float [S, ..., T] of values of such a shape, whitened."""
        return _whiten(values, self.weight, self.memory)

    @cached_property
    def loss(self) -> np.ndarray:
        """float [S]: the sum of squares that the basis leaves."""
        return (self.residual**2).sum(axis=1)

    def sizes(self, curves: np.ndarray) -> np.ndarray:
        """float [C]: the size of each of some curves, float [C, T], in a series, S = 1; its square is the sum of squares that it explains."""
        weight, memory = (np.broadcast_to(each, curves.shape) for each in (self.weight, self.memory))
        h, basis = _whiten(curves, weight, memory), self.basis[0]
        own = h - (h @ basis.T) @ basis
        norm, least = (own**2).sum(axis=1), np.sqrt(np.finfo(float).eps) * (h**2).sum(axis=1)
        return np.where(
            norm > least, own @ self.residual[0] / np.sqrt(np.where(norm > least, norm, 1.0)), 0.0
        )

    def of(self, values: np.ndarray) -> Whitened:
        """Other values, float [S, T], with the same noise and basis."""
        y = self.apply(np.where(self.weight > 0, values, 0.0))
        return replace(self, residual=_left(y, self.basis))

    @cached_property
    def sums(self) -> np.ndarray:
        """Cumulative sums F [S, 1 + K, T + 1]: a window's product is F[b] - F[a], with the residual and each of the basis."""
        root = np.sqrt(self.weight)
        weighted = root[:, None] * np.concatenate([self.residual[:, None], self.basis], axis=1)
        taken = weighted * self.memory[:, None]
        total = _cumulated(weighted - taken)
        total[..., :-1] -= taken
        return total

    @cached_property
    def sums_of_levels(self) -> np.ndarray:
        """Cumulative sums of what `sums` says of the level from each step on, of which ramps are made."""
        return _cumulated(self.sums[..., -1:] - self.sums[..., :-1])

    @cached_property
    def squares(self) -> np.ndarray:
        """Cumulative sums [S, T + 1] of the squares of a template of ones."""
        return _cumulated(self.weight * (1 - self.memory) ** 2)

    @cached_property
    def squares_of_ramps(self) -> tuple[np.ndarray, np.ndarray]:
        """Cumulative sums [S, T + 1] of the squares of a ramp from step 0 on, and of their slope there."""
        w, m = self.weight, self.memory
        t = np.arange(w.shape[1], dtype=float)
        by_t = w * (1 - m) * ((1 - m) * t + m)
        return _cumulated(w * ((1 - m) * t + m) ** 2), _cumulated(by_t)

    @cached_property
    def after(self) -> np.ndarray:
        """float [S, T + 1]: what the value before each step takes of its square; none is behind the last."""
        return np.pad(self.weight * self.memory**2, ((0, 0), (0, 1)))

    def windows(self, length: int) -> np.ndarray:
        """float [S, T - length + 1]: the size of each window of a length; the last is a level, by its other name."""
        total, own, n = self.sums, self.squares, self.weight.shape[1]
        product = total[..., length:] - total[..., :-length]
        norm = (
            own[:, length:]
            - own[:, 1 : n - length + 2]
            + self.weight[:, : n - length + 1]
            + self.after[:, length:]
        )
        return _sizes(product, norm)

    def levels(self) -> np.ndarray:
        """float [S, T]: the size of a level from each step on."""
        total, own = self.sums, self.squares
        product = total[..., -1:] - total[..., :-1]
        return _sizes(product, own[:, -1:] - own[:, 1:] + self.weight)

    def ramps(self, length: int) -> np.ndarray:
        """float [S, T - length + 1]: the size of a ramp over a length from each step on."""
        levels = self.sums_of_levels
        product = levels[..., length:] - levels[..., :-length]  # of a ramp that rises by 1 a step
        own, (from_0, by_t) = self.squares, self.squares_of_ramps
        first = np.arange(self.weight.shape[1] - length + 1, dtype=float) - 1

        def over(part: np.ndarray) -> np.ndarray:
            return part[:, length:] - part[:, :-length]

        rise = over(from_0) - 2 * first * over(by_t) + first**2 * over(own)
        # at its first step, the value before is 0, so that nothing is taken off: the step's own weight is whole
        return _sizes(product, rise + length**2 * (own[:, -1:] - own[:, length:]))


def whitened(values: np.ndarray, noise: Noise, basis: np.ndarray) -> Whitened:
    """Prepares series for the scan.

    Args:
        values: float [S, T], NaN where there is none.
        noise: of the series.
        basis: float [S, K, T], what a series may do without a movement.
    """
    there = np.isfinite(values) & np.isfinite(noise.variance)
    both = there.copy()
    both[:, 0] = False
    both[:, 1:] &= there[:, :-1]
    memory = np.where(both, noise.memory[:, None], 0.0)
    with np.errstate(divide="ignore"):
        weight = np.where(there, 1 / (noise.variance * (1 - memory**2)), 0.0)
    plain = _whiten(basis, weight, memory)
    found, triangle = np.linalg.qr(np.swapaxes(plain, 1, 2))
    size = np.abs(np.diagonal(triangle, axis1=1, axis2=2))
    usable = size > np.sqrt(np.finfo(float).eps) * np.maximum(
        size.max(axis=1, keepdims=True), np.finfo(float).tiny
    )
    orthonormal = np.swapaxes(found * usable[:, None, :], 1, 2)
    y = _whiten(np.where(there, values, 0.0), weight, memory)
    return Whitened(weight, memory, orthonormal, _left(y, orthonormal))


def _left(y: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """What an orthonormal basis, float [S, K, T], leaves of float [S, T]."""
    return np.asarray(y - np.einsum("skt,sk->st", basis, np.einsum("skt,st->sk", basis, y)))


def _whiten(values: np.ndarray, weight: np.ndarray, memory: np.ndarray) -> np.ndarray:
    if values.ndim == weight.ndim + 1:
        weight, memory = weight[:, None], memory[:, None]
    before = np.zeros_like(values)
    before[..., 1:] = values[..., :-1]
    return np.sqrt(weight) * (values - memory * before)


def _cumulated(values: np.ndarray) -> np.ndarray:
    total = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    np.cumsum(values, axis=-1, out=total[..., 1:])
    return total


def _sizes(product: np.ndarray, norm: np.ndarray) -> np.ndarray:
    left = norm - np.einsum("skt,skt->st", product[:, 1:], product[:, 1:])
    usable = left > LEAST_OWN * norm
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(usable, product[:, 0] / np.sqrt(left), 0.0)


def n_tests(n_steps: int) -> float:
    """Counts the independent tests that a scan of a series is worth."""
    return TESTS * n_steps


def polynomials(n_steps: int, degree: int) -> np.ndarray:
    """float [degree + 1, T]: orthogonal polynomials over the steps, the constant first."""
    x = np.linspace(-1, 1, max(n_steps, 2))[:n_steps]
    return np.polynomial.legendre.legvander(x, degree).T


def coefficients(w: Whitened, template: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float [S], [S]: the size of a template in each series, and the error of its coefficient (infinite: unknown)."""
    h = w.apply(np.broadcast_to(template, w.weight.shape))
    left = _left(h, w.basis)
    norm = np.sqrt((left**2).sum(axis=1))
    usable = norm > np.sqrt(np.finfo(float).eps)
    size = np.where(usable, (left * w.residual).sum(axis=1) / np.where(usable, norm, 1.0), 0.0)
    return size, np.where(usable, 1 / np.where(usable, norm, 1.0), np.inf)


Kind = Literal["window", "level", "ramp"]
MASS = 0.9
"""Part of the posterior that an interval holds."""
MOST_LENGTHS = 32
"""Lengths around the best that are tried for the exact one."""
SPIKE = 3
"""Steps that a spike has at most."""


@dataclass(frozen=True)
class Template:
    """A shape at a place.

    Attributes:
        kind: window, level or ramp.
        start: position of the first step that differs.
        stop: position behind the last step of a window or of a ramp's rise; the number of steps for a level.
    """

    kind: Kind
    start: int
    stop: int

    def over(self, n_steps: int) -> np.ndarray:
        """float [T]: the template itself."""
        t = np.arange(n_steps)
        if self.kind == "ramp":
            return np.clip((t - self.start + 1) / (self.stop - self.start), 0.0, 1.0)
        return ((t >= self.start) & (t < self.stop)).astype(float)

    def inside(self, n_steps: int) -> np.ndarray:
        """bool [T]: the steps that differ."""
        t = np.arange(n_steps)
        return (t >= self.start) & ((t < self.stop) | (self.kind != "window"))


@dataclass(frozen=True)
class Located:
    """A template with the intervals of its ends, as positions.

    Attributes:
        template: the best one.
        onset: first and last position of the interval of its first step.
        end: of its last step; None where it lasts.
        z: its size.
    """

    template: Template
    onset: tuple[int, int]
    end: tuple[int, int] | None
    z: float


def evidence(sizes: np.ndarray, n_places: int, n_lengths: int = 1) -> np.ndarray:
    """Log evidence of templates: half the square of their size, less the log of how many there are of the kind."""
    return sizes**2 / 2 - np.log(n_places * n_lengths)


def locate(series: Whitened, kind: Kind, start: int, length: int) -> Located:
    """Finds the exact place of a template and the posterior of its ends.

    Args:
        series: one series, S = 1.
        kind: what the scan found.
        start: where.
        length: its length in the scan.
    """
    n = series.weight.shape[1]
    found = lengths(n)
    around = _around(length, n)
    tables: list[tuple[Kind, int, np.ndarray]] = []
    if kind == "window":
        tables += [
            ("window", int(each), _log(series.windows(int(each))[0], n, len(found))) for each in around
        ]
    else:
        levels = _log(series.levels()[0], n)
        levels[-SPIKE:] = -np.inf  # what begins in the last steps is a spike for all that is known
        tables.append(("level", n, levels))
        ramps = around if kind == "ramp" else found
        tables += [
            ("ramp", int(each), _log(series.ramps(int(each))[0], n, len(found)))
            for each in ramps
            if each >= SHORTEST_RAMP
        ]
    same = [table for table in tables if table[0] == kind]
    near = _near(kind, start, length, n)
    best_kind, best_length, best = max(
        same, key=lambda table: np.max(table[2][near(len(table[2]))], initial=-np.inf)
    )
    places = near(len(best))
    at = int(places[np.argmax(best[places])])
    stop = n if best_kind == "level" else at + best_length
    top = max(np.max(values[near(len(values))], initial=-np.inf) for _, _, values in tables)
    onset, end = np.zeros(n), np.zeros(n + 1)
    for each, size, values in tables:
        chosen = near(len(values))
        mass = np.exp(values[chosen] - top)
        onset[chosen] += mass
        if each == "window":
            np.add.at(end, chosen + size, mass)
    begins = at
    while (
        best_kind != "ramp" and begins < stop - 1 and not series.weight[0, begins]
    ):  # nobody knows of it yet
        begins += 1
    size_of = {"window": series.windows, "ramp": series.ramps}
    z = float(series.levels()[0, at] if best_kind == "level" else size_of[best_kind](best_length)[0, at])
    last = None if best_kind != "window" else _interval(end, stop)
    template = Template(best_kind, begins, stop)
    return Located(template, _interval(onset, at), None if last is None else (last[0] - 1, last[1] - 1), z)


def _log(sizes: np.ndarray, n_places: int, n_lengths: int = 1) -> np.ndarray:
    found = evidence(sizes, n_places, n_lengths)
    found[0] = -np.inf
    return found


def _around(length: int, n_steps: int) -> np.ndarray:
    low, high = max(1, int(length / GROWTH)), min(n_steps - 1, int(np.ceil(length * GROWTH)))
    return np.unique(np.linspace(low, max(high, low), MOST_LENGTHS).astype(np.int64))


def _near(kind: Kind, start: int, length: int, n_steps: int):  # type: ignore[no-untyped-def]
    """Gives the positions that belong to the same movement: another one in the same series has its own place."""
    reach = max(SHORTEST_RAMP, length if kind != "level" else min(start, n_steps - start))
    low, high = max(1, start - reach), start + reach + 1

    def chosen(size: int) -> np.ndarray:
        return np.arange(low, min(high, size))

    return chosen


def _interval(mass: np.ndarray, at: int) -> tuple[int, int]:
    """The shortest run of positions around one that holds `MASS` of it all."""
    total = mass.sum()
    low = high = at
    held = mass[at]
    while held < MASS * total and (low > 0 or high < len(mass) - 1):
        before = mass[low - 1] if low > 0 else -1.0
        after = mass[high + 1] if high < len(mass) - 1 else -1.0
        if before >= after:
            low -= 1
            held += before
        else:
            high += 1
            held += after
    return low, high
