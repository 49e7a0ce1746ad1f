from __future__ import annotations

import numpy as np
import pytest

from rollout_traces.flags import group
from rollout_traces.flags.detect import flag_population, off_flags
from rollout_traces.flags.group import _tie_text
from rollout_traces.settings.run_settings import Range, RunSettings
from tests.flags.conftest import check_found, decoder_of, faults_of, tiny_steps
from tests.flags.steps import population_of

GROUP = (4, 5, 6, 7)


@faults_of(group)
@pytest.mark.parametrize("origin", ["made up", "desk"])
def test_a_planted_fault_is_found_where_it_is_and_on_no_other_row(fault, origin):
    check_found(fault, tiny_steps()[origin], decoder_of("tiny"))


def found(step, name: str, *, without=(), parameters=None, settings=None):
    population = population_of(step.batch(without=without), parameters, settings)
    return flag_population(population, only=[name])


def reward(step, *rewards: float) -> None:
    for row, value in zip(GROUP, rewards, strict=True):
        step.rows[row].values["rewards"] = value


class TestTiedGroup:
    def test_the_sentence_says_what_the_group_has_in_common(self, step):
        reward(step, 0.0, 0.0, 0.0, 0.0)
        assert "all worst" in found(step, "tied_group")[5][0].message
        for row in GROUP:
            step.rows[row].values["stop_reasons"] = "length"
        assert "all truncated" in found(step, "tied_group")[5][0].message

    def test_rounding_is_no_difference_and_a_thousandth_is_one(self, step):
        reward(step, 0.5, 0.5, 0.5 + 5e-7, 0.5)
        assert set(found(step, "tied_group")) == set(GROUP)
        reward(step, 0.5, 0.5, 0.501, 0.5)
        assert not found(step, "tied_group")

    def test_an_unknown_reward_is_no_tie_and_a_group_of_one_none_either(self, step):
        reward(step, 0.5, 0.5, np.nan, 0.5)
        assert not found(step, "tied_group")
        step.group_size = 1
        assert not found(step, "tied_group")

    def test_failed_rewards_are_counted(self):
        rows, failed = np.arange(3), float("nan")
        said = _tie_text(rows, np.asarray([0.5, failed, 0.5]), "other")
        assert said == ("The 2 of 3 rollouts of the group whose reward did not fail all have reward 0.5.")
        assert _tie_text(rows, np.full(3, 0.25), "all_worst") == (
            "All 3 rollouts of the group have reward 0.25, all worst."
        )
        assert _tie_text(rows, np.full(3, failed), "other") == (
            "The reward of all 3 rollouts of the group failed."
        )


class TestGroupPromptMismatch:
    """Row 5 of a group of four begins with another prompt."""

    @pytest.fixture
    def other(self, step):
        step.rows[5].ids[4] += 1
        for row in step.rows:
            row.values.pop("prompt_keys")
        return step

    def test_the_rows_of_the_group_have_it(self, other):
        assert set(found(other, "group_prompt_mismatch")) == set(GROUP)

    def test_a_later_row_of_an_episode_or_one_that_left_another_does_not_count(self, other):
        for row, episode in zip(GROUP, ("a", "a", "b", None), strict=True):
            other.rows[row].values["episode_ids"] = episode
        assert not found(other, "group_prompt_mismatch")
        other.rows[5].values["episode_ids"] = "c"
        assert found(other, "group_prompt_mismatch")
        other.rows[5].values["parents"] = "0"
        assert not found(other, "group_prompt_mismatch")

    def test_the_same_name_in_another_group_is_another_episode(self, other):
        for row, episode in ((0, "a"), (5, "a")):
            other.rows[row].values["episode_ids"] = episode
        assert found(other, "group_prompt_mismatch")


class TestNoiseAmplifiedGroup:
    def test_a_tie_is_not_noise(self, step):
        reward(step, 1.0, 1.0, 1.0, 1.0)
        assert not found(step, "noise_amplified_group")

    def test_the_declared_range_decides(self, step):
        reward(step, 1.0, 1.0, 1.0, 0.95)
        assert not found(step, "noise_amplified_group")
        wide = RunSettings(reward_range=Range(0, 100))
        assert set(found(step, "noise_amplified_group", settings=wide)) >= set(GROUP)

    def test_the_advantage_that_normalising_gives_is_in_the_sentence(self, step):
        reward(step, 1.0, 1.0, 1.0, 0.999)
        assert "largest advantage is 1.7" in found(step, "noise_amplified_group")[5][0].message


class TestRewardOutlier:
    def test_binary_rewards_have_no_outliers(self, step):
        step.group_size = 8
        for index, row in enumerate(step.rows):
            row.values["rewards"] = float(index % 8 == 0)
        assert not found(step, "reward_outlier")

    def test_small_groups_are_passed_over(self, step):
        reward(step, 0.1, 0.2, 0.3, 50.0)
        assert not found(step, "reward_outlier")


class TestDuplicateCompletions:
    def test_short_answers_are_too_short_to_tell(self, step):
        for row in GROUP:
            start, _ = step.rows[row].runs()[0]
            step.rows[row].splice(start, len(step.rows[row]), step.encode("\\boxed{4}"), sampled=True)
        assert not set(found(step, "duplicate_completions")) & set(GROUP)

    def test_equal_completions_of_other_groups_are_no_duplicates(self, step):
        before = set(found(step, "duplicate_completions"))
        step.rows[0] = step.copy().rows[5]
        assert not {0} & set(found(step, "duplicate_completions")) - before

    def test_more_duplicates_than_are_named(self, step):
        step.group_size = 16
        for row in range(1, 9):
            step.rows[row] = step.copy().rows[0]
        message = found(step, "duplicate_completions")[0][0].message
        assert "equal to 8 of the 15 others of its group" in message
        assert message.endswith("(samples 1, 2, 3, 4, …).")

    def test_the_same_words_in_another_order_are_another_completion(self, step):
        a, b = step.rows[4], step.rows[5]
        ids = np.arange(300, 400)
        a.splice(a.runs()[0][0], len(a), ids, sampled=True)
        b.splice(b.runs()[0][0], len(b), np.random.default_rng(0).permutation(ids), sampled=True)
        assert not {4, 5} & set(found(step, "duplicate_completions"))

    def test_groups_beyond_the_pairwise_limit_still_find_equals(self, step):
        step.rows = [row for copy in range(5) for row in step.copy().rows]
        for index, row in enumerate(step.rows[:-1]):
            row.ids[row.runs()[0][0] + 2] = 300 + index
        step.rows[-1] = step.copy().rows[0]
        step.group_size = 80
        assert {0, 79} <= set(found(step, "duplicate_completions"))


class TestGroupsOfOne:
    def test_what_compares_the_samples_of_a_prompt_is_off_and_says_so(self, step):
        step.group_size = 1
        off = off_flags(step.batch())
        for name in ("tied_group", "noise_amplified_group", "reward_outlier", "duplicate_completions"):
            assert off[name] == ("group_ids",)
        step.group_size = 4
        assert "tied_group" not in off_flags(step.batch())


class TestDominatesUpdate:
    @pytest.mark.parametrize("without", ["logprobs", "prox_logprobs"])
    def test_the_logprobs_of_one_engine_are_enough(self, step, without):
        step.rows[5].tracks["advantages"] *= 1000
        assert set(found(step, "dominates_update", without=(without,))) == {5}
        assert "dominates_update" not in off_flags(step.batch(without=(without,)))
        neither = step.batch(without=("logprobs", "prox_logprobs"))
        assert off_flags(neither)["dominates_update"] == ("prox_logprobs or logprobs",)

    def test_a_tenth_is_no_news_among_a_few_rows(self, step):
        step.rows = step.rows[:4]
        assert not found(step, "dominates_update")

    def test_the_share_is_in_the_sentence(self, step):
        step.rows[5].tracks["advantages"] *= 1000
        population = population_of(step.batch())
        share = population.ledger.get("update_share")[5]
        assert f"{share:.1%}" in flag_population(population, only=["dominates_update"])[5][0].message
