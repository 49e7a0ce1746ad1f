"""Tests of A against B, against values computed by hand or by an independent library."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rollout_traces.analysis import Selection, explain
from rollout_traces.analysis.compare import (
    DISCOVERY,
    aligned_p,
    alike,
    between_steps,
    cliffs_delta,
    contrasts,
    discovered,
    odd_p,
    paired,
    shares,
    step_p,
    tails_before,
    young_change,
)
from tests.analysis.builders import steps, table

values = st.lists(st.integers(-5, 5).map(float), min_size=2, max_size=30).map(np.asarray)


class TestCliffsDelta:
    def test_by_hand(self):
        assert cliffs_delta(np.asarray([1.0, 2.0, 3.0]), np.asarray([2.0, 0.0])).effect == pytest.approx(
            (4 - 1) / 6
        )

    @given(values, values)
    def test_effect_and_p_are_those_of_mann_whitney(self, a, b):
        found = cliffs_delta(a, b)
        u, p = stats.mannwhitneyu(a, b)
        assert found.effect == pytest.approx(2 * u / (len(a) * len(b)) - 1, abs=1e-12)
        if len(set(a) | set(b)) > 1:
            assert found.p == pytest.approx(p, rel=1e-9)
        assert -1 <= found.low <= found.effect + 1e-12 and found.effect - 1e-12 <= found.high <= 1

    def test_paired_is_wilcoxon(self):
        differences = np.random.default_rng(0).normal(0.3, 1, 60)
        expected = stats.wilcoxon(differences, method="approx").pvalue
        assert paired(differences, np.zeros(60)).p == pytest.approx(expected)
        assert paired(np.ones(10), np.zeros(10)).effect == 1.0

    @given(st.lists(st.floats(-1, 1, width=16).filter(bool), min_size=2, max_size=25, unique_by=abs))
    def test_of_few_pairs_without_ties_p_is_exact(self, differences):
        expected = stats.wilcoxon(differences, method="exact").pvalue
        assert paired(np.asarray(differences), np.zeros(len(differences))).p == pytest.approx(expected)

    @pytest.mark.parametrize("n_pairs", [2, 5, 9, 14])
    def test_of_few_pairs_with_ties_too(self, n_pairs):
        """Seen once: thirteen pairs of which some were as far apart took seconds, and more than that were guessed."""
        differences = np.random.default_rng(n_pairs).choice([-3.0, -1.0, 1.0, 2.0, 3.0], n_pairs)
        ranks, signs = stats.rankdata(np.abs(differences)), np.sign(differences)
        every = np.asarray(list(itertools.product((-1, 1), repeat=n_pairs))) @ ranks
        expected = float((np.abs(every) >= abs(ranks @ signs)).mean())
        assert paired(differences, np.zeros(n_pairs)).p == pytest.approx(expected)

    def test_differences_that_are_equal_but_for_rounding_are_tied(self):
        a, b = np.asarray([0.3, 0.2, 0.7, 0.1]), np.asarray([0.2, 0.1, 0.8, 0.1])
        assert paired(a, b).effect == pytest.approx(1 / 3 * 3 / 4)

    def test_means_that_the_order_of_adding_tells_apart_are_alike_and_others_are_not(self):
        means = np.asarray([(0.1 + 0.1 + 0.1) / 3, 0.4 / 4, 0.1 + 1e-9, np.nan, np.inf])
        assert alike(means)[0] == alike(means)[1] < alike(means)[2]
        assert np.isnan(alike(means)[3]) and np.isinf(alike(means)[4])
        assert alike(np.asarray([1e-5, 2e-5, 1e6, *np.full(97, 3e-5)]))[:2].tolist() == pytest.approx(
            [1e-5, 2e-5]
        )


class TestAlignedRanks:
    def test_blocks_of_two_are_wilcoxons_pairs(self):
        differences = np.random.default_rng(0).normal(0.3, 1, 60)
        values, block = np.r_[differences, np.zeros(60)], np.r_[np.arange(60), np.arange(60)]
        expected = stats.wilcoxon(differences, method="approx").pvalue
        assert aligned_p(values, block, np.arange(120) < 60) == pytest.approx(expected, rel=0.02)

    def test_p_is_uniform_by_chance_and_small_where_each_block_rose(self):
        rng = np.random.default_rng(1)
        block, in_a = np.repeat(np.arange(8), 12), np.tile(np.arange(12) < 6, 8)
        level = rng.normal(0, 5, 8)[block]
        p = np.asarray([aligned_p(level + rng.normal(size=96), block, in_a) for _ in range(600)])
        assert 0.03 <= (p < 0.05).mean() <= 0.08
        assert aligned_p(level + rng.normal(size=96) + in_a, block, in_a) < 1e-4

    def test_two_groups_of_many_that_alone_have_something_prove_little(self):
        block, in_a = np.repeat(np.arange(8), 11), np.tile(np.arange(11) < 1, 8)
        values = np.zeros(88)
        values[[0, 11]] = 0.25
        assert aligned_p(values, block, in_a) == pytest.approx((1 / 11) ** 2)


class TestShares:
    def test_without_clusters_the_interval_is_that_of_two_shares(self):
        a, b = np.r_[np.ones(30), np.zeros(70)], np.r_[np.ones(10), np.zeros(90)]
        found = shares(a, np.ones(100), b, np.ones(100))
        error = np.sqrt(0.3 * 0.7 / 99 + 0.1 * 0.9 / 99)
        assert found.effect == pytest.approx(0.2)
        assert (found.high - found.low) / 2 == pytest.approx(1.96 * error, rel=1e-4)

    def test_rows_of_one_group_are_no_further_evidence(self):
        hits, n = np.repeat([1.0, 0.0], [5, 15]), np.ones(20)
        other = np.repeat([1.0, 0.0], [10, 10])
        once = shares(hits, n, other, n)
        eightfold = shares(8 * hits, 8 * n, 8 * other, 8 * n)
        assert eightfold.p == pytest.approx(once.p)

    def test_the_spread_between_steps_bounds_what_a_step_can_show(self):
        rng = np.random.default_rng(1)
        p = []
        for _ in range(400):
            level = np.r_[rng.normal(0, 1), rng.normal(0, 1, 10)]
            p.append(between_steps(level, np.full(11, 1000.0), np.r_[0, np.ones(10, int)], 0.01))
        assert 0.02 <= np.mean(np.asarray(p) < 0.05) <= 0.09

    def test_few_groups_that_hold_it_are_told_by_counting_groups(self):
        hits, n = np.r_[np.full(8, 8.0), np.zeros(15)], np.full(23, 8.0)
        others = np.r_[1.0, np.zeros(174)]
        assert shares(hits, n, others, np.full(175, 8.0)).p < 1e-6


class TestAStepAgainstThoseBefore:
    def test_contrasts_are_the_value_less_the_mean_of_ten(self):
        x = np.random.default_rng(0).normal(size=40)
        assert contrasts(x)[-1] == pytest.approx(x[-1] - x[-11:-1].mean())

    def test_p_is_uniform_where_steps_differ_by_chance(self):
        rng = np.random.default_rng(2)
        p = np.asarray([step_p(rng.normal(size=60)) for _ in range(600)])
        assert 0.03 <= (p < 0.05).mean() <= 0.08
        assert (p < 0.001).mean() <= 0.01

    def test_a_loss_of_eight_among_a_tenth_is_no_chance(self):
        rng = np.random.default_rng(3)
        assert step_p(np.log(np.r_[0.07 * np.exp(rng.normal(0, 0.3, 50)), 8.37])) < 1e-6

    def test_a_counter_and_a_slope_are_no_news(self):
        assert step_p(np.arange(40.0)) == 1.0
        assert step_p(0.3 * np.arange(40.0) + np.random.default_rng(0).normal(0, 1, 40)) > 0.01

    def test_a_setting_that_never_changed_and_a_count_that_was_never_there(self):
        assert step_p(np.r_[np.full(30, 0.05), 0.01]) == 0.0
        assert step_p(np.r_[np.zeros(30), 1.0]) == pytest.approx(1 / 32)

    def test_an_earlier_spike_hides_no_later_one(self):
        x = np.random.default_rng(1).normal(0, 0.1, 60)
        x[20] += 30
        x[-1] += 5
        assert step_p(x) < 1e-4

    def test_the_numbers_of_a_run_tell_of_each_others_tails(self):
        rng = np.random.default_rng(5)
        light, heavy = rng.normal(size=(8, 40)), rng.standard_t(2.5, size=(8, 40))
        assert tails_before(list(light)).min() > 12 and tails_before(list(heavy)).max() < 6
        p = []
        for _ in range(100):
            values = list(rng.standard_t(2.5, size=(10, 40)))
            p += [step_p(x, tails=tails) for x, tails in zip(values, tails_before(values), strict=True)]
        assert (np.asarray(p) < 0.001).mean() <= 0.004
        assert np.isnan(tails_before([np.arange(5.0), np.zeros(40)])).all() and not len(tails_before([]))

    def test_too_few_steps_are_unknown(self):
        assert step_p(np.arange(5.0)) is None and odd_p(np.arange(3.0)) is None

    def test_what_a_series_always_drifts_by_is_no_change(self):
        """Seen once: the nine steps before a step were left out of what it is compared with in every run whose entropy decays."""
        noise = np.random.default_rng(1).normal(0, 0.004, 60)
        p, _ = young_change(1.0 - 0.01 * np.arange(60) + noise, np.ones(60), 0.0)
        assert p > 0.05

    def test_a_number_that_goes_on_by_the_same_but_for_rounding_is_no_news(self):
        assert step_p(np.arange(46) / 90) == 1.0

    def test_a_change_five_steps_ago_is_found_with_its_place(self):
        rng = np.random.default_rng(4)
        x = rng.normal(0, 1, 60)
        x[-6:] += 8
        p, k = young_change(x, np.ones(60), 0.0)
        assert k == 5 and p < 1e-4
        assert young_change(rng.normal(0, 1, 60), np.ones(60), 0.0)[0] > 0.001

    def test_after_an_outage_that_was_over_before_all_of_them_nothing_changed_among_them(self):
        """Seen once: "changed at step 30" of what had recovered at 26, so that step 39 was compared with the outage."""
        x = np.random.default_rng(2).normal(0, 1, 60)
        x[38:46] += 8
        assert young_change(x, np.ones(60), 0.0) == (1.0, 0)

    @pytest.mark.parametrize("n_since", [6, 8, 9])
    def test_the_end_of_an_outage_is_no_change(self, n_since):
        """Seen once: nine steps after tools had recovered, a step was compared with the outage and with none of the nine."""
        x = np.random.default_rng(n_since).normal(0, 1, 60)
        x[-n_since - 9 : -n_since - 1] += 8
        assert young_change(x, np.ones(60), 0.0) == (1.0, 0)

    @pytest.mark.parametrize("n_steps", [16, 18, 21])
    def test_of_few_steps_the_last_two_before_the_one_in_question_are_looked_through(self, n_steps):
        """Seen once: a hang since the step before, which filled a tenth of what the step was compared with, in a run of twenty."""
        x = np.random.default_rng(n_steps).normal(0, 1, n_steps)
        assert young_change(x, np.ones(n_steps), 0.0)[0] > 0.001
        x[-2:] += 12
        p, k = young_change(x, np.ones(n_steps), 0.0)
        assert p < 1e-4 and k == 1


class TestDiscovery:
    def test_equal_weights_are_benjamini_and_hochberg(self):
        p = np.random.default_rng(0).random(50) ** 3
        found = discovered(p, np.ones(50))
        assert found.tolist() == (stats.false_discovery_control(p) <= DISCOVERY).tolist()

    def test_weight_moves_the_bound(self):
        assert discovered([0.004, 0.5, 0.5, 0.5], [3, 1, 1, 1]).tolist() == [True, False, False, False]
        assert not discovered([0.004, 0.5, 0.5, 0.5], [1, 1, 1, 1]).any()


class TestInsideParts:
    def test_a_source_that_is_dead_is_told_though_all_together_hardly_fell(self):
        """Seen once: “nothing beyond what groups and steps differ by chance” above a table with 1.1 to 0.2 on one source of many."""

        def source(s: int, g: int, i: int) -> str:
            return "olympiad" if g == 0 else "math"

        def reward(s: int, g: int, i: int) -> float:
            dead = s >= 20 and g == 0
            return 0.0 if dead else float(np.random.default_rng([s, g, i]).random() < 0.6)

        rows = steps(40, groups=9, source=source, reward=reward)
        found = explain(
            table(rows), Selection("run", "rollout", (20, 39)), Selection("run", "rollout", (0, 19))
        )
        [finding] = [each for each in found.findings if each.column == "reward"]
        assert (
            str(finding.part) == "source “olympiad”"
            and finding.a == 0
            and finding.b == pytest.approx(0.6, abs=0.15)
        )
        assert "on source “olympiad”" in finding.sentence

    def test_where_all_fell_no_part_is_told_beside(self):
        def reward(s: int, g: int, i: int) -> float:
            return (0.2 if s >= 20 else 0.8) + 0.1 * float(np.random.default_rng([s, g, i]).normal())

        rows = steps(40, source=lambda s, g, i: "ab"[g % 2], reward=reward)
        found = explain(
            table(rows), Selection("run", "rollout", (20, 39)), Selection("run", "rollout", (0, 19))
        )
        assert [each.part for each in found.findings if each.column == "reward"] == [None]
