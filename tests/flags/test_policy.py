from __future__ import annotations

import numpy as np
import pytest

from rollout_traces.capture.host_copy import capture
from rollout_traces.flags import policy
from rollout_traces.flags.detect import flag_population
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.packed_batch import concatenate
from tests.flags.conftest import check_found, decoder_of, faults_of, tiny_steps
from tests.flags.steps import STEP, find_flags, population_of


@faults_of(policy)
@pytest.mark.parametrize("origin", ["made up", "desk"])
def test_a_planted_fault_is_found_where_it_is_and_on_no_other_row(fault, origin):
    check_found(fault, tiny_steps()[origin], decoder_of("tiny"))


def found(step, name: str, *, without=(), parameters=None):
    return flagged(step.batch(without=without), name, parameters)


def flagged(batch, name: str, parameters=None):
    return flag_population(population_of(batch, parameters), only=[name])


class TestStale:
    def test_the_limit_itself_is_fine(self, step):
        start, stop = step.rows[5].runs()[0]
        step.rows[5].tracks["versions"][start:stop] = STEP - 3
        assert not found(step, "stale", parameters={"stale.limit": 3})
        (flag,) = found(step, "stale", parameters={"stale.limit": 2})[5]
        assert "the oldest 3" in flag.message
        assert f"{stop - start} sampled tokens" in flag.message

    def test_a_limit_of_zero_allows_no_lag(self, step):
        step.rows[5].tracks["versions"][step.rows[5].sampled] = STEP - 1
        assert set(found(step, "stale", parameters={"stale.limit": 0})) == {5}

    def test_it_is_off_without_a_limit(self, step):
        step.rows[5].tracks["versions"][step.rows[5].sampled] = 0
        assert not found(step, "stale")


class TestMixedVersions:
    def test_turns_of_different_versions_are_not_mixed(self, step):
        for row in step.rows:
            for number, (start, stop) in enumerate(row.runs()):
                row.tracks["versions"][start:stop] = STEP - number
        assert not found(step, "mixed_versions")

    def test_neighbouring_turns_with_their_own_ids_are_not_mixed(self, step):
        row = step.rows[5]
        start, stop = row.runs()[0]
        row.tracks["versions"][start + 3 : stop] = STEP - 1
        row.tracks["turn_ids"][start + 3 : stop] = 77
        assert not found(step, "mixed_versions")
        assert set(found(step, "mixed_versions", without=("turn_ids",))) == {5}

    def test_the_first_version_is_a_version(self, step):
        row = step.rows[5]
        start, stop = row.runs()[0]
        row.tracks["versions"][row.sampled] = 1
        row.tracks["versions"][start:stop] = 0
        row.tracks["versions"][start + 2] = 1
        (flag,) = found(step, "mixed_versions")[5]
        assert flag.message == (
            f"The policy version changes from 0 to 1 inside a turn, at token {start + 2} (2 such changes in the row)."
        )

    def test_tokens_of_unknown_version_are_no_change(self, step):
        row = step.rows[5]
        start, _ = row.runs()[0]
        row.tracks["versions"][start + 2 : start + 4] = -1
        assert not found(step, "mixed_versions")

    def test_changes_are_counted(self, step):
        start, stop = step.rows[5].runs()[0]
        step.rows[5].tracks["versions"][start + 3 : start + 6] = STEP - 1
        (flag,) = found(step, "mixed_versions")[5]
        assert "2 such changes" in flag.message
        assert (flag.start, flag.stop) == (start + 3, start + 6)
        assert stop > flag.stop


class TestLogprobMismatch:
    def test_the_mean_is_of_exp_of_the_absolute_difference(self, step):
        row = step.rows[5]
        row.tracks["prox_logprobs"] = row.tracks["logprobs"] + np.float32(0.2) * row.sampled
        (flag,) = found(step, "logprob_mismatch")[5]
        assert f"{np.exp(0.2):.3f} over {row.sampled.sum()} tokens" in flag.message

    def test_without_two_logprobs_there_is_none_to_compare(self, step, decoder, tokenizer):
        batch = step.batch(without=("prox_logprobs",))
        seen = find_flags(batch, decoder, tokenizer, only=["logprob_mismatch"], rows=[5])
        assert not seen.flags[5] and not seen.errors.total

    def test_old_tokens_do_not_count(self, step):
        row = step.rows[5]
        row.tracks["prox_logprobs"][row.sampled] -= 0.5
        row.tracks["versions"][row.sampled] = STEP - 1
        assert not found(step, "logprob_mismatch")

    def test_without_versions_all_tokens_count(self, step):
        step.rows[5].tracks["prox_logprobs"][step.rows[5].sampled] -= 0.5
        assert set(found(step, "logprob_mismatch", without=("versions",))) == {5}

    def test_few_tokens_are_no_evidence(self, step):
        row = step.rows[5]
        row.tracks["prox_logprobs"][row.sampled] -= 0.5
        row.tracks["versions"][row.sampled] = STEP - 1
        start, _ = row.runs()[0]
        row.tracks["versions"][start : start + 15] = STEP
        assert not found(step, "logprob_mismatch")
        assert found(step, "logprob_mismatch", parameters={"logprob_mismatch.min_tokens": 15})

    def test_a_wild_token_is_clamped_and_said_to_be(self, step, decoder, tokenizer):
        at = step.rows[5].runs()[0][0] + 1
        step.rows[5].tracks["prox_logprobs"][at] = -500
        for without in ((), ("versions",)):
            seen = find_flags(
                step.batch(without=without), decoder, tokenizer, only=["logprob_mismatch"], rows=[5]
            )
            (flag,) = seen.flags[5]
            assert "at least -20.00" in flag.message
            assert flag.start == at


class TestNonfinite:
    def test_what_is_unknown_outside_the_sampled_tokens_is_fine(self, step):
        for row in step.rows:
            for key in ("logprobs", "prox_logprobs", "advantages", "entropies"):
                row.tracks[key][~row.sampled] = np.nan
        assert not found(step, "nonfinite")

    def test_what_a_part_of_the_hand_over_came_without_was_not_given(self, step):
        whole, bare = step.batch(), step.batch(without=("prox_logprobs", "rewards"))
        both = concatenate([whole, bare])
        assert np.isnan(both.row_floats["rewards"][len(step.rows) :]).all()
        assert not flagged(both, "nonfinite")

    def test_nan_over_a_whole_group_that_was_given_is_flagged(self, step):
        for row in step.rows[4:8]:
            row.tracks["prox_logprobs"][:] = np.nan
            row.values["rewards"] = np.nan
        assert set(found(step, "nonfinite")) == {4, 5, 6, 7}

    def test_nan_of_a_rollout_that_is_a_group_of_its_own_is_flagged(self, step):
        step.group_size = 1
        step.rows[5].values["rewards"] = np.nan
        assert set(found(step, "nonfinite")) == {5}

    def test_none_and_masked_values_are_unknown(self):
        batch = capture(
            [
                RolloutBatch(
                    input_ids=[[1, 2], [1, 2], [1, 2]],
                    attention_mask=[[1, 1], [1, 1], [1, 1]],
                    loss_mask=[[0, 1], [0, 1], [0, 1]],
                    rewards=[1.0, None, float("nan")],
                    logprobs=np.ma.masked_invalid([[0, -1], [np.nan, np.nan], [0, np.nan]]),
                )
            ],
            step=0,
            split="rollout",
        )
        (flags,) = flagged(batch, "nonfinite").items()
        assert flags[0] == 2
        assert "logprobs at 1 token" in flags[1][0].message and "rewards of the row" in flags[1][0].message

    def test_what_is_joined_later_is_given(self, step):
        whole, bare = step.batch(), step.batch(without=("prox_logprobs",))
        both = concatenate([whole, bare])
        joined = both.joined({"prox_logprobs": np.full(len(both.input_ids), np.nan, np.float32)}, {})
        assert len(flagged(joined, "nonfinite")) == 2 * len(step.rows)

    def test_one_row_of_a_group_that_lacks_it_is_flagged(self, step):
        step.rows[5].tracks["prox_logprobs"][:] = np.nan
        step.rows[6].values["rewards"] = np.nan
        assert set(found(step, "nonfinite")) == {5, 6}

    def test_a_track_that_is_nan_everywhere_is_flagged_everywhere(self, step):
        for row in step.rows:
            row.tracks["advantages"][:] = np.nan
        assert len(found(step, "nonfinite")) == 16

    def test_failed_rewards_and_discarded_rows_may_have_none(self, step):
        step.rows[5].values |= {"rewards": np.nan, "reward_statuses": "timeout"}
        step.rows[6].values |= {"rewards": np.nan, "discard_reasons": "too_long"}
        assert not found(step, "nonfinite")

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_every_kind_is_counted_by_track(self, step, value):
        start, _ = step.rows[5].runs()[0]
        step.rows[5].tracks["logprobs"][start + 1 : start + 4] = value
        step.rows[5].tracks["entropies"][start] = value
        (flag,) = found(step, "nonfinite")[5]
        assert f"logprobs at 3 tokens, the first {value} at token {start + 1}" in flag.message
        assert f"entropies at 1 token, the first {value} at token {start}" in flag.message
        assert (flag.start, flag.stop) == (start, start + 1)


class TestPrefixBroken:
    def calls(self, step, *, trajectory=lambda call: "t"):
        """Rows 4 to 6 as three calls of one trajectory, each prompt the whole call before and a question."""
        said = step.encode("some more")
        for before, row in ((4, 5), (5, 6)):
            step.rows[row] = step.copy().rows[before]
            call = step.rows[row]
            call.splice(len(call), len(call), step.encode("\nand then "), sampled=False)
            call.sampled[:] = False
            call.tracks["versions"][:] = -1
            call.splice(len(call), len(call), said, sampled=True)
            call.tracks["versions"][-len(said) :] = STEP
            call.tracks["loss_mask"] = call.sampled.astype(np.int64)
        for number in range(3):
            step.rows[4 + number].values["extras"] = {"trajectory": trajectory(number), "call": number}

    def test_calls_that_extend_each_other_are_fine(self, step):
        self.calls(step)
        assert not found(step, "prefix_broken")

    def test_rows_of_other_trajectories_are_not_compared(self, step):
        self.calls(step, trajectory=lambda call: f"t{call}")
        step.rows[5].ids[10] += 1
        assert not found(step, "prefix_broken")

    def test_equal_sample_ids_alone_make_no_trajectory(self, step):
        for row in step.rows:
            row.values["sample_ids"] = "prompt-1"
            row.values["extras"] = {"note": 1}
        assert not found(step, "prefix_broken")

    def test_the_order_of_calls_is_the_callers(self, step):
        self.calls(step)
        step.rows[4], step.rows[5] = step.rows[5], step.rows[4]
        assert not found(step, "prefix_broken")

    def test_a_changed_prompt_is_found_at_its_first_token(self, step):
        self.calls(step)
        step.rows[5].ids[10] += 1
        flags = found(step, "prefix_broken")
        (flag,) = flags[5]
        assert set(flags) == {5, 6}
        assert flag.start == 10
        assert "call 2 departs from call 1 at token 10" in flag.message


class TestVersionOrder:
    def test_a_version_that_goes_back_is_counted_from_its_first_token_on(self, step):
        row = step.rows[5]
        start, stop = row.runs()[0]
        row.tracks["versions"][start + 2] = STEP - 2
        row.tracks["versions"][start + 5] = STEP - 1
        assert stop > start + 6
        found_in = found(step, "version_order")
        (flag,) = found_in[5]
        assert set(found_in) == {5}
        assert (
            flag.message
            == f"The policy version goes back 2 times, first at token {start + 2}, to {STEP - 2}."
        )
        assert (flag.start, flag.stop) == (start + 2, start + 3)

    def test_tokens_without_a_version_are_passed_over(self, step):
        for row in step.rows:
            start, _ = row.runs()[0]
            row.tracks["versions"][start + 1] = -1
        assert not found(step, "version_order")
        row = step.rows[5]
        start, _ = row.runs()[0]
        row.tracks["versions"][start + 2] = STEP - 1
        ((number, (flag,)),) = found(step, "version_order").items()
        assert number == 5 and f"first at token {start + 2}, to {STEP - 1}." in flag.message

    def test_a_row_that_begins_older_than_the_row_before_ended_is_fine(self, step):
        step.rows[5].tracks["versions"][step.rows[5].sampled] = STEP - 3
        assert not found(step, "version_order")
        step.rows[5].tracks["versions"][step.rows[5].runs()[0][0] + 1] = -1
        assert not found(step, "version_order")

    def test_versions_ahead_of_the_trainers_are_flagged_on_training_rollouts(self, step):
        row = step.rows[5]
        _, stop = row.runs()[-1]
        row.tracks["versions"][stop - 2 : stop] = STEP + 1
        ((number, (flag,)),) = found(step, "version_order").items()
        assert number == 5
        assert flag.message == (
            f"2 sampled tokens of a version ahead of the trainer's {STEP}, the first of version {STEP + 1} at token {stop - 2}."
        )
        assert not flagged(step.batch(train_version=None), "version_order")

    def test_one_row_may_have_both(self, step):
        row = step.rows[5]
        start, _ = row.runs()[0]
        row.tracks["versions"][start] = STEP + 1
        back, ahead = found(step, "version_order")[5]
        assert "goes back 1 time, first" in back.message and "ahead of the trainer's" in ahead.message


class TestPadAttended:
    def test_two_padding_tokens_at_an_edge_are_flagged_and_one_is_not(self, step):
        step.rows[2].splice(0, 0, [step.pad_id] * 2, sampled=False)
        step.rows[3].splice(0, 0, [step.pad_id], sampled=False)
        n = len(step.rows[6])
        step.rows[6].splice(n, n, [step.pad_id] * 3, sampled=False)
        seen = found(step, "pad_attended")
        assert set(seen) == {2, 6}
        assert seen[2][0].message.startswith(f"The row begins with 2 padding tokens (id {step.pad_id})")
        assert seen[6][0].message.startswith("The row ends with ")
        assert (seen[2][0].start, seen[2][0].stop, seen[6][0].stop) == (0, 2, n + 3)

    def test_padding_tokens_within_a_row_are_fine(self, step):
        step.rows[2].splice(3, 3, [step.pad_id] * 4, sampled=False)
        assert not found(step, "pad_attended")


class TestLogprobsThatAreNone:
    def test_one_above_zero_is_named_where_it_stands(self, step):
        row = step.rows[5]
        start, _ = row.runs()[0]
        row.tracks["logprobs"][start + 1] = 0.009
        row.tracks["logprobs"][start + 3 : start + 5] = 0.5
        ((number, (flag,)),) = found(step, "logprob_out_of_range").items()
        assert number == 5
        assert flag.message == (
            f"The rollout logprob is above 0 at 2 sampled tokens, first 0.5 at token {start + 3}."
        )
        assert (flag.start, flag.stop) == (start + 3, start + 4)

    def test_all_zero_is_flagged_from_some_tokens_on(self, step):
        row = step.rows[5]
        row.tracks["logprobs"][row.sampled] = 0.0
        n = int(row.sampled.sum())
        at = {"logprob_out_of_range.min_tokens": n}
        ((number, (flag,)),) = found(step, "logprob_out_of_range", parameters=at).items()
        assert (
            number == 5
            and flag.message == f"The rollout logprob is 0 at all of the row's {n} sampled tokens."
        )
        assert not found(step, "logprob_out_of_range", parameters={"logprob_out_of_range.min_tokens": n + 1})

    def test_zero_but_for_one_token_is_fine(self, step):
        row = step.rows[5]
        row.tracks["logprobs"][row.sampled] = 0.0
        row.tracks["logprobs"][row.runs()[-1][1] - 1] = -0.5
        assert not found(step, "logprob_out_of_range", parameters={"logprob_out_of_range.min_tokens": 1})
