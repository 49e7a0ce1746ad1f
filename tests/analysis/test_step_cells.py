"""Series of parts beside the rest of the rows."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_traces.analysis.noise import OF_GROUPS, Fits, crude
from rollout_traces.analysis.run_rows import RunRows
from rollout_traces.analysis.screen import with_shared_prior
from rollout_traces.analysis.step_cells import StepCells, crowded, goes_with

N, GROUPS, SIZE = 40, 6, 4


def rows_of(rng: np.random.Generator, wander: float) -> tuple[RunRows, np.ndarray]:
    """Rows of which each group has one of each of four engines, and a number that all of a step share a part of."""
    at = np.repeat(np.arange(N), GROUPS * SIZE)
    unit = np.repeat(np.arange(N * GROUPS), SIZE)
    engine = np.tile(np.arange(SIZE), N * GROUPS)
    own = rng.normal(0, 1, len(at)) + rng.normal(0, 2, N * GROUPS)[unit] + rng.normal(0, wander, N)[at]
    return RunRows(np.arange(N), at, unit, {"engine": (engine, list("abcd"))}), own


class TestHowFarSeriesGoTogether:
    @pytest.mark.parametrize("share", [0.5, 0.8, 1.0])
    def test_is_what_they_share(self, share):
        rng = np.random.default_rng(3)
        rest = rng.normal(0, 1, (1, 4000))
        own = share * rest + rng.normal(0, 0.3, (1, 4000))
        assert goes_with(own, rest)[0] == pytest.approx(share, abs=0.03)

    def test_is_nothing_where_they_do_not(self):
        rng = np.random.default_rng(4)
        assert goes_with(rng.normal(0, 1, (8, 200)), rng.normal(0, 1, (8, 200))).max() < 0.35

    def test_is_hardly_moved_by_a_level_in_one_of_them(self):
        rng = np.random.default_rng(5)
        rest = rng.normal(0, 1, (1, 400))
        own = rest + np.where(np.arange(400) > 250, 9.0, 0.0)
        assert goes_with(own, rest)[0] == pytest.approx(1.0, abs=0.05)

    def test_is_nothing_where_the_rest_is_seldom_there(self):
        own = np.random.default_rng(6).normal(0, 1, (1, 40))
        rest = np.where(np.arange(40) % 2, own, np.nan)
        assert goes_with(own, rest)[0] == 0


class TestAPartBesideTheRest:
    def test_has_the_variance_that_its_means_have(self):
        spread, told = [], []
        for seed in range(60):
            rows, own = rows_of(np.random.default_rng([7, seed]), wander=3.0)
            cells = StepCells(rows, "engine")
            values, variance, control = cells.beside_the_rest(cells.sums(own, None))
            assert control.min() > 0.8
            spread.append(values.var(axis=1).mean())
            told.append(variance.mean())
        assert np.mean(told) == pytest.approx(np.mean(spread), rel=0.25)

    def test_is_itself_where_nothing_is_shared(self):
        rng = np.random.default_rng(8)
        rows, _ = rows_of(rng, wander=0.0)
        own = rng.normal(0, 1, len(rows.at))
        cells = StepCells(rows, "engine")
        sums = cells.sums(own, None)
        values, variance, control = cells.beside_the_rest(sums)
        alone = control == 0
        assert alone.any()
        assert np.array_equal(values[alone], sums.mean[alone])
        assert np.array_equal(variance[alone], sums.variance[alone])

    def test_is_not_moved_by_a_value_that_comes_for_a_step(self):
        """Seen once: sources took turns, an engine came for one step of one, and the source was said to have risen there."""
        rows, _ = rows_of(np.random.default_rng(8), wander=0.0)
        engine, values = rows.parts["engine"]
        came = (rows.at == 21) & (rows.unit % 2 == 0) & (engine == 0)
        rows.parts["engine"] = np.where(came, 4, engine), [*values, "e"]
        turns = (rows.at % 3 == 0).astype(float)
        cells = StepCells(rows, "engine")
        values_V_T, _, control = cells.beside_the_rest(cells.sums(turns, None))
        assert control[1:4].min() > 0.9 and np.ptp(values_V_T[1:4], axis=1).max() < 0.01


class TestNoiseOfSeriesThatAreAlike:
    def test_a_noise_that_no_other_has_is_thought_less_likely_and_all_others_alike_are_not(self):
        grid = len(OF_GROUPS)
        left = np.full((4, grid), -50.0)
        left[:, 0] = 0.0
        left[3, 0], left[3, 5] = -2.0, 0.0
        flat = np.full((4, grid), -np.log(grid))
        fits = Fits(left, left, np.zeros((4, grid)), np.zeros((4, grid)), flat, crude(left, left))
        told = with_shared_prior(fits, [[0, 1, 2, 3]])
        assert fits.weight[3].argmax() == 5 and told.weight[3].argmax() == 0
        assert told.weight[0].argmax() == 0
        assert np.allclose(np.exp(told.prior).sum(axis=1), 1)

    def test_two_series_tell_nothing(self):
        grid = len(OF_GROUPS)
        flat = np.full((2, grid), -np.log(grid))
        fits = Fits(flat, flat, flat, flat, flat, crude(flat, flat))
        assert np.array_equal(with_shared_prior(fits, [[0, 1]]).prior, flat)


class TestAShareThatComes:
    def test_differs_more_between_rows_at_its_steps_and_nowhere_else(self):
        n = np.full((1, 60), 40.0)
        share = np.where((np.arange(60) >= 20) & (np.arange(60) < 26), 0.3, 0.0)[None]
        more = crowded(share, n)
        assert more[0, 21:25].min() > 3 and more[0, 30:].max() == more[0, :17].max() == 1.0

    def test_differs_as_it_did_where_it_is_the_same_all_along(self):
        assert crowded(np.full((1, 60), 0.25), np.full((1, 60), 40.0)) == pytest.approx(1.0, abs=0.02)


class TestSums:
    @pytest.mark.parametrize("weighted", [False, True])
    @pytest.mark.parametrize("seed", range(3))
    def test_are_those_of_the_rows_one_by_one(self, seed, weighted):
        rng = np.random.default_rng(seed)
        at, unit = np.repeat(np.arange(5), 12), np.repeat(np.arange(20), 3)
        codes = rng.integers(-1, 2, 60)
        values = np.where(rng.random(60) < 0.2, np.nan, rng.normal(0, 1, 60))
        weight = rng.integers(0, 3, 60).astype(float) if weighted else None
        rows = RunRows(np.arange(5), at, unit, {"engine": (codes, ["a", "b"])})
        cells = StepCells(rows, "engine")
        found, means = cells.sums(values, weight), cells.means(values, weight)
        counts = np.ones(60) if weight is None else weight
        for code in range(2):
            for step in range(5):
                held = (codes == code) & (at == step) & np.isfinite(values) & (counts > 0)
                assert found.n[code, step] == held.sum()
                assert found.weighted[code, step] == counts[held].sum()
                groups = [held & (unit == one) for one in np.unique(unit[held])]
                assert found.n_groups.reshape(2, 5)[code, step] == len(groups)
                mass = sum(counts[one].sum() ** 2 for one in groups)
                assert found.mass.reshape(2, 5)[code, step] == pytest.approx(mass)
                if held.any():
                    mean = np.average(values[held], weights=counts[held])
                    assert found.mean[code, step] == means[code, step] == pytest.approx(mean)
                else:
                    assert np.isnan(found.mean[code, step])

    def test_variances_are_those_that_means_of_groups_have(self):
        """Over runs drawn anew, the means of a step scatter as much as is said of them."""
        said, seen = [], []
        for seed in range(60):
            rows, values = rows_of(np.random.default_rng(seed), 0.0)
            sums = StepCells(rows).sums(values, None)
            said.append(sums.variance[0].mean())
            seen.append(sums.mean[0].var(ddof=1))
        assert np.mean(said) == pytest.approx(np.mean(seen), rel=0.06)
