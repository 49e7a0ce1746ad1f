"""Ties, spreads, pass@k, correlations, Ginis."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rollout_traces.metrics.groups import gini
from rollout_traces.settings.run_settings import Range, RunSettings
from tests.builders import make_packed_batch
from tests.metrics.builders import make_ledger, of_batch, of_ledger, sampled_rows

PAIRS = [0, 0, 1, 1]


class TestTies:
    def test_a_group_of_equal_rewards_is_tied_and_its_tokens_are_wasted(self):
        found = of_ledger(make_ledger(reward=[1, 1, 0, 1], group=PAIRS, n_sampled=[10, 20, 30, 40]))
        assert found["group/tie_share"] == 0.5 and found["group/wasted_tokens"] == 30.0

    def test_tolerance_grows_with_the_reward(self):
        ledger = make_ledger(reward=[1000.0, 1000.0005, 0.0, 0.0005], group=PAIRS)
        assert of_ledger(ledger)["group/tie_share"] == 0.5

    def test_groups_of_one_are_counted_apart(self):
        found = of_ledger(make_ledger(reward=[1, 1, 0], group=[0, 0, 1]))
        assert found["group/tie_share"] == 1.0
        assert found["group/single_share"] == 0.5 and found["group/size_mean"] == 1.5

    def test_without_a_finite_reward_nothing_is_said_of_groups(self):
        """Seen once: a step whose one reward was infinite had a mean size of groups, which takes rewards."""
        for group in ([0, 1], [0, 0]):
            found = of_ledger(make_ledger(reward=[math.inf, math.nan], group=group))
            assert not any(key.startswith("group/") for key in found)

    @pytest.mark.parametrize(
        ("cause", "columns"),
        [
            ("all_best", {"reward": [1, 1, 0, 1]}),
            ("all_worst", {"reward": [0, 0, 0, 1]}),
            ("other", {"reward": [0.5, 0.5, 0, 1]}),
            (
                "all_truncated",
                {"reward": [0, 0, 0, 1], "stop_reason": ["length", "length", "stop", "length"]},
            ),
            ("all_unparsed", {"reward": [0, 0, 0, 1], "answered": [0, 0, 1, 0]}),
            (
                "all_failed_reward",
                {"reward": [0, 0, 0, 1], "reward_status": ["error", "timeout", "ok", "ok"]},
            ),
            (
                "all_failed_reward",
                {"reward": [-1, 0.5, 0, 1], "reward_status": ["error", "timeout", "ok", "ok"]},
            ),
        ],
    )
    def test_what_a_tied_group_has_in_common(self, cause, columns):
        found = of_ledger(make_ledger(group=PAIRS, **columns))
        causes = {key: value for key, value in found.items() if key.startswith("group/tie_cause/")}
        assert causes.pop(f"group/tie_cause/{cause}_share") == 0.5
        assert set(causes.values()) == {0.0} and found["group/tie_share"] == 0.5

    def test_a_declared_range_says_what_best_is_where_the_step_cannot(self):
        """Seen once: a tied group's cause was "other" where its rewards are all 0.7."""
        ledger = make_ledger(reward=[1, 1, 1, 1], group=PAIRS)
        assert of_ledger(ledger)["group/tie_cause/other_share"] == 1.0
        settings = RunSettings(reward_range=Range(0, 1))
        assert of_ledger(ledger, settings=settings)["group/tie_cause/all_best_share"] == 1.0

    def test_identical_completions_are_found_in_the_tokens(self):
        batch = make_packed_batch(
            [[1, 5, 6], [2, 5, 6], [1, 5, 6], [2, 5, 7]],
            [[0, 1, 1]] * 4,
            group_ids=np.asarray(PAIRS),
            row_floats={"rewards": np.ones(4)},
        )
        found = of_batch(batch)
        assert found["group/tie_cause/identical_completions_share"] == 0.5
        assert found["group/tie_share"] == 1.0

    def test_a_part_of_a_group_is_identical_though_its_first_rollout_lies_elsewhere(self):
        ledger = make_ledger(
            reward=[1] * 4,
            group=[0] * 4,
            sample=[0, 1, 2, 3],
            equal_to=[0, 0, 0, 0],
            source=["a", "b", "b", "b"],
        )
        found = of_ledger(ledger)
        assert found["source/b/group/tie_cause/identical_completions_share"] == 1.0
        other = of_ledger(ledger.with_columns(equal_to=np.asarray([0, 1, 1, 3])))
        assert other["source/b/group/tie_cause/identical_completions_share"] == 0.0

    def test_nor_does_it_matter_at_which_row_the_group_begins(self):
        ledger = make_ledger(
            reward=[0, 1, *[1] * 4],
            group=[0, 0, *[1] * 4],
            sample=[0, 1, 0, 1, 2, 3],
            equal_to=[0, 1, 2, 2, 2, 2],
            source=["a", "a", "a", "b", "b", "b"],
        )
        found = of_ledger(ledger)
        assert found["source/b/group/tie_cause/identical_completions_share"] == 1.0

    def test_a_group_with_an_unknown_reward_is_not_tied(self):
        found = of_ledger(make_ledger(reward=[1, 1, None, 1, 0, 1], group=[0, 0, 0, 1, 1, 1]))
        assert found["group/tie_share"] == 0.0

    def test_zero_advantage_is_another_fact_than_a_tie(self):
        found = of_ledger(make_ledger(reward=[1, 1, 0, 1], advantage=[0.5, 0.5, 0, 1e-9], group=PAIRS))
        assert found["group/tie_share"] == 0.5 and found["group/zero_advantage_share"] == 0.5

    @pytest.mark.parametrize(("largest", "share"), [(1e-8, 1.0), (1.1e-8, 0.0)])
    def test_an_advantage_of_rounding_is_none(self, largest, share):
        ledger = make_ledger(reward=[1, 0], advantage=[-largest, 0.0], group=[0, 0])
        assert of_ledger(ledger)["group/zero_advantage_share"] == share

    def test_token_advantages_that_cancel_are_not_zero(self):
        batch = sampled_rows([1, 2], [3, 4], tracks={"advantages": [1, -1, 0, 0]})
        assert of_batch(batch)["group/zero_advantage_share"] == 0.0


class TestSpread:
    def test_seven_ones_and_a_near_one_are_amplified_noise(self):
        rewards = [1.0] * 7 + [0.999] + [0.0, 1.0] * 4
        found = of_ledger(make_ledger(reward=rewards, group=[0] * 8 + [1] * 8))
        assert found["group/noise_amplified_share"] == 0.5
        assert found["group/reward_std_mean"] == pytest.approx((np.std(rewards[:8]) + 0.5) / 2)

    def test_a_tie_is_not_noise(self):
        found = of_ledger(make_ledger(reward=[1, 1 + 1e-7, 0, 1], group=PAIRS))
        assert found["group/noise_amplified_share"] == 0.0


class TestPassAtK:
    def test_chances_from_binomials(self):
        found = of_ledger(make_ledger(success=[1, 0, 0, 0, 1, 1, 0, 0], group=[0] * 4 + [1] * 4))
        assert found["group/pass@1"] == pytest.approx((1 / 4 + 2 / 4) / 2)
        assert found["group/pass@2"] == pytest.approx((1 - 3 / 6 + 1 - 1 / 6) / 2)
        assert found["group/pass^2"] == pytest.approx((0 + 1 / 6) / 2)
        assert found["group/pass@4"] == 1.0 and found["group/pass^4"] == 0.0
        assert "group/pass@8" not in found

    def test_small_groups_are_left_out_of_large_k_and_the_largest_size_is_included(self):
        found = of_ledger(make_ledger(success=[1, 1, 1, 0, 0], group=[0, 0, 0, 1, 1]))
        assert found["group/pass@2"] == 0.5 and found["group/pass@3"] == 1.0
        assert found["group/pass_3_n"] == 1.0 and "group/pass_2_n" not in found

    def test_groups_of_which_nothing_is_known_are_not_missed(self):
        found = of_ledger(make_ledger(success=[1, 0, None, None], group=PAIRS))
        assert found["group/pass@1"] == 0.5 and found["group/pass@2"] == 1.0
        assert not [key for key in found if key.endswith("_n")]


class TestGini:
    def test_one_that_has_everything_reaches_one(self):
        assert gini(np.asarray([0.0, 0.0, 0.0, 8.0])) == pytest.approx(1.0)
        assert gini(np.asarray([3.0, 3.0])) == pytest.approx(0.0)

    def test_by_hand(self):
        # ranks 1, 2, 3: 2 * (1 + 4 + 15) / (3 * 8) - 4/3 = 1/3, times 3/2
        assert gini(np.asarray([5.0, 1.0, 2.0])) == pytest.approx(0.5)

    @pytest.mark.parametrize("values", [[], [1.0], [0.0, 0.0], [-1.0, 2.0]])
    def test_it_is_unknown_for_one_value_a_negative_one_or_a_sum_of_zero(self, values):
        assert np.isnan(gini(np.asarray(values)))


class TestLengthsInGroups:
    def test_ratio_variation_and_gini(self):
        found = of_ledger(
            make_ledger(n_sampled=[1, 2, 6, 0, 0, 0, 0, 0, 9], group=[0] * 3 + [1] * 3 + [2] * 3)
        )
        # group 0: 6 / 2; group 1: all 0, so 1; group 2: median 0 with a maximum of 9, left out
        assert found["group/length_max_median_ratio_mean"] == 2.0
        cv = [np.std([1, 2, 6]) / 3, np.std([0, 0, 9]) / 3]
        assert found["group/length_cv_mean"] == pytest.approx(np.mean(cv))
        assert found["group/length_gini_mean"] == pytest.approx((gini(np.asarray([1.0, 2, 6])) + 1) / 2)

    def test_two_known_lengths_are_enough_and_one_is_not(self):
        found = of_ledger(make_ledger(n_sampled=[1, 3, None, 9, None, None], group=[0] * 3 + [1] * 3))
        assert found["group/length_max_median_ratio_mean"] == 1.5
        assert found["group/length_cv_mean"] == 0.5


class TestCorrelation:
    def test_it_is_pooled_inside_groups(self):
        # between groups the longer have less reward; inside them the longer have more
        ledger = make_ledger(
            reward=[5, 6, 7, 0, 1, 2], n_sampled=[10, 20, 30, 110, 120, 130], group=[0, 0, 0, 1, 1, 1]
        )
        found = of_ledger(ledger)
        assert found["group/reward_corr_length"] == pytest.approx(1.0)
        assert found["group/reward_corr_length_z"] > 3

    def test_z_is_fishers_with_a_degree_of_freedom_less_a_group(self):
        rng = np.random.default_rng(0)
        reward, length = rng.random(24), rng.integers(1, 99, 24)
        groups = np.repeat(range(3), 8)
        found = of_ledger(make_ledger(reward=reward, n_sampled=length, group=groups))
        dx = reward - reward.reshape(3, 8).mean(1).repeat(8)
        dy = length - length.reshape(3, 8).mean(1).repeat(8)
        r = (dx @ dy) / math.sqrt((dx @ dx) * (dy @ dy))
        assert found["group/reward_corr_length"] == pytest.approx(r)
        assert found["group/reward_corr_length_z"] == pytest.approx(math.atanh(r) * math.sqrt(24 - 3 - 2))

    def test_rewards_that_are_tied_have_no_correlation_though_they_differ_by_rounding(self):
        rewards = [1.0, 1.0000001, 1.0, 1.0, 1.0000001, 1.0]
        found = of_ledger(make_ledger(reward=rewards, n_sampled=[5, 9, 7, 6, 8, 3]))
        assert "group/reward_corr_length" not in found

    def test_a_tied_group_of_large_rewards_hides_no_other_group(self):
        ledger = make_ledger(
            reward=[1e6, 1e6 + 0.5, 1e6, 0.0, 0.25, 0.5],
            n_sampled=[7, 8, 9, 10, 20, 30],
            group=[0, 0, 0, 1, 1, 1],
        )
        dx, dy = np.asarray([0, 0, 0, -0.25, 0, 0.25]), np.asarray([-1, 0, 1, -10, 0, 10])
        expected = (dx @ dy) / math.sqrt((dx @ dx) * (dy @ dy))
        assert of_ledger(ledger)["group/reward_corr_length"] == pytest.approx(expected)

    def test_what_the_rule_for_ties_calls_different_is_correlated(self):
        found = of_ledger(make_ledger(reward=[1.0, 1.0000016, 1.0, 1.0000016], n_sampled=[5, 9, 5, 9]))
        assert found["group/reward_corr_length"] == pytest.approx(1.0)

    def test_an_unknown_length_is_left_out_and_an_unknown_number_of_calls_leaves_all_of_them_out(self):
        reward = [1.0, 2.0, 3.0, 0.0, 1.0, 2.0]
        groups = [0, 0, 0, 1, 1, 1]
        whole = make_ledger(reward=reward, n_sampled=[3, 6, 9, 1, 2, 3], n_tool_calls=range(6), group=groups)
        unknown = make_ledger(
            reward=reward, n_sampled=[3, 6, 9, 1, 2, None], n_tool_calls=[0, 1, 2, 3, 4, None], group=groups
        )
        assert "group/reward_corr_length" in of_ledger(unknown)
        assert "group/reward_corr_tool_calls" in of_ledger(whole)
        assert "group/reward_corr_tool_calls" not in of_ledger(unknown)

    def test_equal_lengths_have_no_correlation(self):
        assert "group/reward_corr_length" not in of_ledger(make_ledger(reward=range(6), n_sampled=[5] * 6))


class TestGroupScalars:
    def test_the_callers_own_values_pass_through(self):
        found = of_ledger(make_ledger(reward=[1, 0]), group_scalars={"q_entropy": [0.5, 1.5]})
        assert found["group/q_entropy/mean"] == 1.0 and found["group/q_entropy/max"] == 1.5


class TestUpdate:
    def test_concentration(self):
        found = of_ledger(make_ledger(update_share=[0.4, 0.3, 0.1, 0.1, 0.1]))
        assert found["update/top3_share"] == pytest.approx(0.8)
        assert found["update/ess_rows"] == pytest.approx(1 / (0.16 + 0.09 + 0.03))

    def test_over_a_step_of_two_hand_overs(self):
        batch = sampled_rows(
            [1], [2], tracks={"logprobs": [-1, -1]}, row_floats={"advantages": np.asarray([1.0, 3.0])}
        )
        parts = make_ledger(update_share=[1.0, 1.0], group=[0, 1])  # each hand-over's own shares sum to 1
        assert of_batch(batch, ledger=parts)["update/ess_rows"] == pytest.approx(1 / (0.25**2 + 0.75**2))
