"""Rewards, components, successes, advantages."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rollout_traces.capture.host_copy import capture
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.settings.run_settings import RunSettings
from tests.builders import make_packed_batch
from tests.metrics.builders import make_ledger, of_batch, of_ledger


def rewarded(rewards: list[float | None]) -> PackedBatch:
    ones = np.ones((len(rewards), 2), int)
    batch = RolloutBatch(input_ids=ones, attention_mask=ones, loss_mask=ones, rewards=rewards)
    return capture([batch], step=1, split="rollout")


class TestReward:
    def test_mean_population_std_and_quantiles(self):
        found = of_ledger(make_ledger(reward=[0.0, 1.0, 2.0, 5.0]))
        assert found["reward/mean"] == 2.0
        assert found["reward/std"] == pytest.approx(math.sqrt(14 / 4))
        assert (found["reward/min"], found["reward/max"]) == (0.0, 5.0)
        assert found["reward/p00"] == 0.0 and found["reward/p100"] == 5.0
        assert found["reward/p50"] == 1.5
        assert found["reward/p95"] == pytest.approx(2 + 0.85 * 3)  # at 0.95 * 3 = 2.85

    def test_failed_reward_functions_are_counted_and_left_out(self):
        found = of_ledger(
            make_ledger(reward=[1.0, 0.0, 0.0, 3.0], reward_status=["ok", "timeout", "error", None])
        )
        assert found["reward/failed_share"] == 0.5
        assert found["reward/mean"] == 2.0

    def test_rewards_that_are_not_finite_are_counted_and_left_out(self):
        found = of_ledger(make_ledger(reward=[1.0, math.inf, math.nan, 3.0]))
        assert found["reward/mean"] == 2.0
        assert found["reward_nonfinite"] == 1.0  # NaN of a ledger is what nobody gave

    def test_none_is_not_given_and_nan_is_not_finite(self):
        found = of_batch(rewarded([1.0, None, math.nan, 3.0]))
        assert found["reward/mean"] == 2.0 and found["reward_nonfinite"] == 1.0

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_those_of_a_step_without_a_finite_one_are_counted(self, bad):
        found = of_batch(rewarded([bad, None, bad, bad]))
        assert found["reward_nonfinite"] == 3.0
        assert "reward/mean" not in found

    def test_infinite_ones_alone_are_counted_of_a_ledger_too(self):
        assert of_ledger(make_ledger(reward=[math.inf, math.nan]))["reward_nonfinite"] == 1.0

    def test_those_of_a_component_without_a_finite_one_are_counted(self):
        found = of_ledger(make_ledger(reward=[0.0, 1.0], component__a=[math.inf, math.inf]))
        assert found["reward/a_nonfinite"] == 2.0

    @pytest.mark.parametrize(
        "unknown", [[None, None], np.ma.masked_array([1.0, 2.0], mask=True)], ids=["None", "masked"]
    )
    def test_a_step_of_unknown_ones_alone_gives_no_key(self, unknown):
        assert not [key for key in of_batch(rewarded(unknown)) if "reward" in key]

    def test_no_reward_gives_no_key(self):
        assert not [key for key in of_ledger(make_ledger(n_turns=[1, 2])) if "reward" in key]


class TestComponents:
    def test_shares_of_an_additive_reward_add_up_to_one(self):
        rng = np.random.default_rng(0)
        a, b = rng.random(12), rng.random(12)
        ledger = make_ledger(reward=a + 2 * b, component__a=a, component__b=b, group=np.repeat([0, 1, 2], 4))
        found = of_ledger(ledger, settings=RunSettings(component_weights={"a": 1.0, "b": 2.0}))
        assert found["reward/a/share"] + found["reward/b/share"] == pytest.approx(1.0)
        assert found["reward/a/mean"] == pytest.approx(a.mean())

    def test_weights_that_reproduce_the_reward_need_not_be_declared(self):
        rng = np.random.default_rng(0)
        a, b = rng.random(12), rng.random(12)
        reward = (0.7 * a - 0.3 * b + 0.1).astype(np.float32)
        found = of_ledger(make_ledger(reward=reward, component__a=a, component__b=b))
        declared = RunSettings(component_weights={"a": 0.7, "b": -0.3})
        same = of_ledger(make_ledger(reward=reward, component__a=a, component__b=b), settings=declared)
        assert found["reward/a/share"] + found["reward/b/share"] == pytest.approx(1.0, abs=1e-5)
        assert found["reward/a/share"] == pytest.approx(same["reward/a/share"], abs=1e-5)

    def test_a_reward_that_is_no_sum_of_its_components_has_no_shares(self):
        ledger = make_ledger(reward=[0, 0, 0, 1, 1, 0], component__c=[0, 1, 2, 3, 4, 5])
        assert "reward/c/share" not in of_ledger(ledger)

    @pytest.mark.parametrize("rows", [2, 3, 8])
    def test_weights_that_the_rows_do_not_determine_are_none(self, rows):
        a = np.arange(rows) % 3.0
        ledger = make_ledger(reward=2 * a, component__a=a, component__twice=2 * a)
        assert not [key for key in of_ledger(ledger) if key.startswith("reward/") and key.endswith("/share")]

    def test_a_component_without_a_declared_weight_has_no_share(self):
        ledger = make_ledger(reward=[0, 1, 2], component__a=[0, 1, 2], component__b=[0, 0, 1])
        found = of_ledger(ledger, settings=RunSettings(component_weights={"a": 1.0}))
        assert found["reward/a/share"] == 1.0 and "reward/b/share" not in found

    def test_a_declared_weight_counts_for_a_reward_that_is_no_sum(self):
        ledger = make_ledger(reward=[0, 0, 0, 1, 1, 0], component__c=[0, 1, 2, 3, 4, 5])
        settings = RunSettings(component_weights={"c": 1.0})
        # cov of 0..5 with the reward: mean of c * R - mean c * mean R = 7/6 - 2.5/3; var R = 2/9
        assert of_ledger(ledger, settings=settings)["reward/c/share"] == pytest.approx(
            (7 / 6 - 2.5 / 3) / (2 / 9)
        )

    def test_a_share_is_covariance_over_variance_within_groups(self):
        # group 0: c = 0, 1 and R = 0, 3; group 1: c equal, R = 1, 3. var = 2.25 + 1, cov = 0.75 + 0
        ledger = make_ledger(reward=[0, 3, 1, 3], component__c=[0, 1, 5, 5], group=[0, 0, 1, 1])
        settings = RunSettings(component_weights={"c": 1.0})
        assert of_ledger(ledger, settings=settings)["reward/c/share"] == pytest.approx(0.75 / 3.25)

    def test_a_component_that_is_the_whole_reward_has_share_one(self):
        ledger = make_ledger(reward=[0, 1, 0], component__c=[0, 1, 0])
        assert of_ledger(ledger)["reward/c/share"] == pytest.approx(1.0)

    def test_constant_rewards_have_no_shares(self):
        assert "reward/c/share" not in of_ledger(make_ledger(reward=[1, 1], component__c=[0, 1]))


class TestOutcomes:
    def test_success_is_a_mean_over_rows_where_it_is_known(self):
        assert of_ledger(make_ledger(success=[1, 0, None, 1]))["success/mean"] == pytest.approx(2 / 3)

    def test_format_share_is_rows_with_an_answer(self):
        assert of_ledger(make_ledger(answered=[1, 0, 0, 0]))["format_share"] == 0.25


class TestAdvantage:
    def test_tokens_weigh_long_rows_more_and_rows_weigh_the_same(self):
        batch = make_packed_batch(
            [[1, 2, 3], [4]], [[1, 1, 1], [1]], row_floats={"advantages": np.asarray([1.0, -3.0])}
        )
        found = of_batch(batch)
        assert found["advantage/mean"] == 0.0
        assert found["advantage/std"] == pytest.approx(math.sqrt(3))
        assert found["advantage/row_mean"] == -1.0
        assert found["advantage/row_std"] == 2.0

    def test_only_loss_tokens_count(self):
        batch = make_packed_batch(
            [[1, 2, 3]], [[0, 1, 1]], tracks={"advantages": np.asarray([9, 1, 3], np.float32)}
        )
        assert of_batch(batch)["advantage/mean"] == 2.0


class TestStandardError:
    def test_it_is_that_of_the_mean_with_groups_as_units(self):
        """Cluster-robust, K / (K - 1) sum over groups of (sum of what their rewards lie from the mean)^2, over n."""
        rewards, group = [1.0, 3.0, 2.0, 6.0, 0.0, 0.0], [0, 0, 1, 1, 2, 2]
        off = [sum(r - 2.0 for r, g in zip(rewards, group, strict=True) if g == k) for k in range(3)]
        expected = math.sqrt(3 / 2 * sum(each**2 for each in off)) / 6
        found = of_ledger(make_ledger(reward=rewards, group=group))
        assert found["reward/standard_error"] == pytest.approx(expected) == pytest.approx(math.sqrt(48) / 6)

    def test_two_groups_are_enough_and_one_is_not(self):
        assert "reward/standard_error" in of_ledger(make_ledger(reward=[0.0, 1.0], group=[0, 1]))
        assert "reward/standard_error" not in of_ledger(make_ledger(reward=[0.0, 1.0], group=[0, 0]))

    def test_groups_of_which_nothing_is_known_are_no_clusters(self):
        known = of_ledger(make_ledger(success=[1, 0, 1, 1], group=[0, 0, 1, 1]))["success/standard_error"]
        more = make_ledger(success=[1, 0, 1, 1, None, None], group=[0, 0, 1, 1, 2, 2])
        assert of_ledger(more)["success/standard_error"] == pytest.approx(known)
        lone = make_ledger(success=[1, 0, None], group=[0, 0, 1])
        assert "success/standard_error" not in of_ledger(lone)


class TestSolvedGroups:
    def test_none_all_and_some_are_shares_of_groups_whose_successes_are_known(self):
        success = [0, 0, 1, 1, 1, 0, 0, 1, 1, None, 1]
        group = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
        found = of_ledger(make_ledger(success=success, group=group))
        shares = {name: found[f"group/solve_{name}_share"] for name in ("none", "all", "partial")}
        assert shares == {"none": 0.25, "all": 0.25, "partial": 0.5}


class TestMajorityVote:
    def test_the_commonest_answer_is_right_in_the_share_of_its_rollouts_that_succeeded(self):
        ledger = make_ledger(
            answer=["4", "4", "5", "7", "8", None, "9"],
            success=[1, 0, 1, 1, 0, 1, 1],
            group=[0, 0, 0, 1, 1, 1, 2],
        )
        # group 0: "4" with 1 of 2; group 1: "7" and "8" as likely, 1 and 0; group 2 has one answer
        assert of_ledger(ledger)["group/maj@all"] == 0.5
        right = make_ledger(answer=["4", "4", "5"], success=[1, 1, 0])
        assert of_ledger(right)["group/maj@all"] == 1.0

    def test_answers_of_unknown_success_do_not_vote(self):
        ledger = make_ledger(answer=["4", "4", "5", "5"], success=[None, None, 1, 0])
        assert of_ledger(ledger)["group/maj@all"] == 0.5


class TestLengthsOfSuccess:
    def test_solved_and_unsolved_rollouts_have_lengths_of_their_own(self):
        found = of_ledger(make_ledger(success=[1, 1, 1, 0, None], n_sampled=[1, 2, 6, 8, 100]))
        assert found["tokens/completion_solved/mean"] == 3.0 and found["tokens/completion_solved/p50"] == 2.0
        assert found["tokens/completion_unsolved/mean"] == 8.0
