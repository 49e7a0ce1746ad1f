"""Noise: what lasts of it beside dense covariances, and how heavy its tails are: a run's logged numbers tell of each other."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_traces.analysis.noise import _innovations, tails_of

N = 40


def tails(values_S_T: np.ndarray) -> np.ndarray:
    n_series, n = values_S_T.shape
    flat = np.ones((n_series, 1, n))
    return tails_of(values_S_T, np.ones((n_series, n)), flat, np.zeros(n_series, bool))


@pytest.mark.parametrize("seed", range(4))
def test_the_numbers_of_a_run_tell_of_each_others_tails(seed):
    rng = np.random.default_rng(seed)
    light, heavy = rng.normal(size=(6, 120)), rng.standard_t(3, size=(6, 120))
    assert tails(light).min() > 9 and np.median(tails(heavy)) < 7
    together, alone = tails(light[:, :40]), [tails(light[i : i + 1, :40])[0] for i in range(6)]
    assert np.ptp(together) < np.ptp(alone), "one of 40 steps alone hardly knows"


def test_one_with_heavy_tails_among_light_ones_keeps_them():
    rng = np.random.default_rng(6)
    values = np.concatenate([rng.normal(size=(5, 300)), rng.standard_t(2.5, size=(1, 300))])
    assert tails(values)[5] < 5 < 10 < tails(values)[:5].min()


def test_what_is_counted_tells_nothing_of_the_others_tails():
    rng = np.random.default_rng(8)
    light, samples = rng.normal(size=(6, 60)), np.cumsum(rng.integers(30, 50, size=(3, 60)), axis=1)
    steps = np.log(np.arange(1.0, 61.0))
    with_counters = np.concatenate([light, np.log(samples), [steps, -steps]])
    assert np.array_equal(tails(with_counters)[:6], tails(light))


def test_a_setting_that_was_changed_once_has_no_tails():
    values = np.where(np.arange(N) < 20, 1.0, 2.0)[None]
    assert tails(values) == [60]


def test_a_spike_is_not_a_tail():
    values = np.random.default_rng(7).normal(size=(6, N))
    values[2, 11] = 40.0
    assert tails(values)[2] > 6


@pytest.mark.parametrize("seed", range(4))
def test_innovations_are_what_the_dense_covariance_says(seed):
    """Each step less what those before it tell, over its error: their products are those under the inverse of the covariance."""
    rng = np.random.default_rng(seed)
    n, k = 14, 2
    values, there = rng.normal(0, 1, (1, k, n)), (rng.random((1, n)) > 0.2)
    values = values * there[:, None]
    error, alone = rng.uniform(0.1, 1, (1, n)), np.asarray([[0.0], [0.5]])
    between, memory = np.asarray([[0.7], [1.3]]), np.asarray([[0.0], [0.8]])
    products, logs = _innovations(values, there, error, alone, between, memory)
    apart = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    known = np.flatnonzero(there[0])
    for g in range(2):
        whole = between[g, 0] * memory[g, 0] ** apart + np.diag(error[0] + alone[g, 0])
        whole = whole[np.ix_(known, known)]
        y = values[0][:, known]
        assert products[g, 0] == pytest.approx(y @ np.linalg.inv(whole) @ y.T)
        assert logs[g, 0] == pytest.approx(-np.linalg.slogdet(whole)[1] / 2)
