"""The scan beside least squares with dense matrices, template by template."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_traces.analysis.noise import Noise
from rollout_traces.analysis.scan import (
    Template,
    Whitened,
    coefficients,
    lengths,
    locate,
    polynomials,
    whitened,
)

N = 23
SEEDS = range(4)


def series(seed: int) -> tuple[np.ndarray, Noise, np.ndarray]:
    """Two series with gaps, whose variance and memory differ, and what each does already."""
    rng = np.random.default_rng(seed)
    values, variance = rng.normal(0, 1, (2, N)), rng.uniform(0.2, 3, (2, N))
    gone = rng.random((2, N)) < 0.15
    values[gone], variance[gone] = np.nan, np.inf
    memory = rng.uniform(0, 0.8, 2)
    basis = np.tile(polynomials(N, 1), (2, 1, 1))
    basis[1, 1] = 0.0  # the second one does not drift
    return values, Noise(variance, memory, np.full(2, 60.0), values, np.zeros((2, 1))), basis


def by_least_squares(
    values_T: np.ndarray, variance_T: np.ndarray, memory: float, columns: np.ndarray
) -> float:
    """The size of the last of some columns, float [K, T], over its error: the rows of known steps, each less what the step before says of it."""
    rows, y = [], []
    for t in range(N):
        if not np.isfinite(values_T[t]):
            continue
        m = memory if t and np.isfinite(values_T[t - 1]) else 0.0
        error = np.sqrt(variance_T[t] * (1 - m**2))
        before = columns[:, t - 1] if m else 0.0
        rows.append((columns[:, t] - m * before) / error)
        y.append((values_T[t] - m * (values_T[t - 1] if m else 0.0)) / error)
    x = np.stack(rows)
    if np.linalg.matrix_rank(x) < x.shape[1]:  # nothing tells it from the others
        return 0.0
    inverse = np.linalg.pinv(x.T @ x)
    return float((inverse @ x.T @ np.asarray(y))[-1] / np.sqrt(inverse[-1, -1]))


def expected(seed: int, at: int, template: Template) -> float:
    values, noise, basis = series(seed)
    own = basis[at][np.abs(basis[at]).any(axis=1)]
    columns = np.concatenate([own, template.over(N)[None]])
    return by_least_squares(values[at], noise.variance[at], float(noise.memory[at]), columns)


def prepared(seed: int) -> Whitened:
    return whitened(*series(seed))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("at", [0, 1])
def test_every_window_and_ramp_has_the_size_that_least_squares_give_it(seed, at):
    w = prepared(seed)
    for length in (1, 2, 5, 9):
        for start in range(N - length):
            found = float(w.windows(length)[at, start])
            assert (
                found
                == pytest.approx(expected(seed, at, Template("window", start, start + length)), abs=1e-8)
                or not found
            )
            found = float(w.ramps(length)[at, start])
            assert (
                found == pytest.approx(expected(seed, at, Template("ramp", start, start + length)), abs=1e-8)
                or not found
            )


@pytest.mark.parametrize("seed", SEEDS)
def test_every_level_has_it_and_so_has_each_curve_by_itself(seed):
    w = prepared(seed)
    for start in range(1, N - 1):
        template = Template("level", start, N)
        sizes, errors = coefficients(w, template.over(N))
        for at in range(2):
            found, sure = float(w.levels()[at, start]), expected(seed, at, template)
            assert found == pytest.approx(sure, abs=1e-8) or not found
            assert sizes[at] == pytest.approx(sure, abs=1e-8) and errors[at] > 0


def test_few_are_left_out_as_nearly_what_the_basis_does():
    w = prepared(0)
    found = np.concatenate([w.windows(length).ravel() for length in (1, 2, 5, 9)])
    assert (found == 0).mean() < 0.2


@pytest.mark.parametrize(
    ("template", "by"),
    [(Template("level", 30, 60), 5.0), (Template("window", 20, 31), -6.0), (Template("ramp", 25, 41), 9.0)],
)
def test_a_plain_template_is_located_where_it_is_with_its_way(template, by):
    n = 60
    values = (np.random.default_rng(3).normal(0, 1, n) + by * template.over(n))[None]
    noise = Noise(np.ones((1, n)), np.zeros(1), np.full(1, 60.0), values, np.zeros((1, 1)))
    w = whitened(values, noise, np.ones((1, 1, n)))
    found = locate(w, template.kind, template.start, template.stop - template.start)
    assert found.template.kind == template.kind and found.z * by > 0
    assert (
        abs(found.template.start - template.start) <= 2 and found.onset[0] <= template.start <= found.onset[1]
    )
    if template.kind == "window":
        assert found.end is not None and found.end[0] <= template.stop - 1 <= found.end[1]
    else:
        assert found.end is None


def test_lengths_grow_by_a_third_from_one_and_are_shorter_than_the_run():
    found = lengths(100)
    assert found[:4].tolist() == [1, 2, 3, 4] and found[-1] < 100
    assert (np.diff(found) >= 1).all() and (found[5:] / found[4:-1] < 1.5).all()
