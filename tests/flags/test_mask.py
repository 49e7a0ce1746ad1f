from __future__ import annotations

import numpy as np
import pytest

from rollout_traces.flags import mask
from tests.flags.conftest import check_found, decoder_of, faults_of, tiny_steps
from tests.flags.steps import find_flags


@faults_of(mask)
@pytest.mark.parametrize("origin", ["made up", "desk"])
def test_a_planted_fault_is_found_where_it_is_and_on_no_other_row(fault, origin):
    check_found(fault, tiny_steps()[origin], decoder_of("tiny"))


class TestMaskLeak:
    def test_parts_without_versions_are_unknown_and_not_leaks(self, step, decoder, tokenizer):
        for row in step.rows[:4]:
            row.tracks["versions"][:] = -1
        found = find_flags(step.batch(), decoder, tokenizer, only=["mask_leak"])
        assert not any(found.flags.values())

    def test_tokens_that_the_policy_wrote_in_another_role_are_no_leak(self, step, decoder, tokenizer):
        row = step.rows[5]
        stop = row.runs()[-1][1]
        row.splice(stop, stop, step.encode("\n<|im_start|>user\nAnd now?<|im_end|>\n"), sampled=True)
        found = find_flags(step.batch(), decoder, tokenizer, only=["mask_leak"])
        assert found.transcripts[5].turns[-1].role == "user"
        assert not found.flags[5]

    def test_the_same_without_versions_is_known_from_the_logprobs(self, step, decoder, tokenizer):
        row = step.rows[5]
        stop = row.runs()[-1][1]
        row.splice(stop, stop, step.encode("\n<|im_start|>user\nAnd now?<|im_end|>\n"), sampled=True)
        found = find_flags(
            step.batch(without=("versions", "turn_ids")), decoder, tokenizer, only=["mask_leak"]
        )
        assert not found.flags[5]

    def test_a_role_written_without_an_end_marker_is_the_policys_when_nothing_else_is_known(
        self, step, decoder, tokenizer
    ):
        row = step.rows[5]
        stop = row.runs()[-1][1]
        row.splice(stop - 1, stop, step.encode(" <|im_start|>user\nAnd now?"), sampled=True)
        without = ("versions", "turn_ids", "logprobs", "prox_logprobs")
        found = find_flags(step.batch(without=without), decoder, tokenizer, only=["mask_leak"])
        assert found.transcripts[5].turns[-1].role == "user"
        assert not found.flags[5]

    def test_a_forgotten_environment_mask_is_a_leak_in_every_such_turn(self, step, decoder, tokenizer):
        row = step.rows[5]
        row.tracks["loss_mask"][row.runs()[0][0] :] = 1
        without = ("versions", "turn_ids", "logprobs", "prox_logprobs")
        found = find_flags(step.batch(without=without), decoder, tokenizer, only=["mask_leak"])
        roles = [found.transcripts[5].turns[flag.turn].role for flag in found.flags[5]]
        assert roles and set(roles) <= {"user", "tool"}

    def test_logprobs_of_every_token_do_not_tell_what_was_sampled(self, step, decoder, tokenizer):
        names = ["mask_leak", "sampled_foreign_turn"]
        for row in step.rows:
            row.tracks["logprobs"][:] = -0.5
        batch = step.batch(without=("versions", "turn_ids", "response_mask"))
        assert not any(find_flags(batch, decoder, tokenizer, only=names).flags.values())
        step.rows[5].tracks["loss_mask"][:] = 1
        batch = step.batch(without=("versions", "turn_ids", "response_mask"))
        found = find_flags(batch, decoder, tokenizer, only=names)
        assert {flag.name for flag in found.flags[5]} == {"mask_leak"}

    def test_counts_and_places_are_in_the_sentence(self, step, decoder, tokenizer):
        row = step.rows[5]
        first, second = row.runs()[0], row.runs()[1]
        row.tracks["loss_mask"][[first[1], second[1] if second[1] < len(row) else first[1]]] = 1
        row.tracks["loss_mask"][second[0] - 1] = 1
        found = find_flags(step.batch(), decoder, tokenizer, only=["mask_leak"])
        assert any("in 2 places" in f.message or "in 3 places" in f.message for f in found.flags[5])


class TestMaskShifted:
    def test_one_edge_alone_is_no_shift(self, step, decoder, tokenizer):
        for start, stop in step.rows[5].runs():
            step.rows[5].tracks["loss_mask"][start] = 0
            step.rows[6].tracks["loss_mask"][min(start - 1, len(step.rows[6]) - 1)] = 1
            step.rows[7].tracks["loss_mask"][min(stop, len(step.rows[7])) - 1] = 0
        found = find_flags(step.batch(), decoder, tokenizer, only=["mask_shifted"])
        assert not any(found.flags.values())

    def test_end_markers_left_out_everywhere_are_no_shift(self, step, decoder, tokenizer):
        for row in step.rows:
            for _, stop in row.runs():
                row.tracks["loss_mask"][stop - 1] = 0
        found = find_flags(step.batch(), decoder, tokenizer, only=["mask_shifted", "eos_untrained"])
        assert {flag.name for flags in found.flags.values() for flag in flags} == {"eos_untrained"}

    def test_a_row_cut_by_length_and_rolled_left_is_found(self, step, decoder, tokenizer):
        row = step.rows[5]
        stop = row.runs()[-1][1]
        row.splice(stop - 4, len(row), [], sampled=False)
        row.values["stop_reasons"] = "length"
        row.tracks["loss_mask"] = np.roll(row.tracks["loss_mask"], -1)
        found = find_flags(step.batch(), decoder, tokenizer, only=["mask_shifted"])
        assert len(found.flags[5]) == 1


class TestEosUntrained:
    def test_rows_cut_by_length_are_passed_over(self, step, decoder, tokenizer):
        row = step.rows[5]
        row.tracks["loss_mask"][row.runs()[0][1] - 1] = 0
        row.values["stop_reasons"] = "max_tokens"
        assert not find_flags(step.batch(), decoder, tokenizer, only=["eos_untrained"]).flags[5]

    def test_an_end_marker_that_the_trainer_wrote_into_a_cut_turn_is_passed_over(
        self, step, decoder, tokenizer
    ):
        row = step.rows[5]
        runs = row.runs()
        for number, (_, stop) in enumerate(runs):
            row.tracks["loss_mask"][stop - 1] = 0
            row.tracks["versions"][stop - 1] = -1
            seen = find_flags(step.batch(), decoder, tokenizer, only=["eos_untrained"]).flags[5]
            assert len(seen) == (2 * (number + 1) > len(runs))

    def test_history_that_is_not_trained_at_all_is_passed_over(self, step, decoder, tokenizer):
        row = step.rows[5]
        start, stop = row.runs()[0]
        row.tracks["loss_mask"][start:stop] = 0
        assert not find_flags(step.batch(), decoder, tokenizer, only=["eos_untrained"]).flags[5]

    def test_turns_are_counted(self, step, decoder, tokenizer):
        row = step.rows[5]
        for _, stop in row.runs()[:2]:
            row.tracks["loss_mask"][stop - 1] = 0
        (flag,) = find_flags(step.batch(), decoder, tokenizer, only=["eos_untrained"]).flags[5]
        assert flag.message.startswith(f"The end marker of 2 of {len(row.runs())} assistant turns")


class TestWholeRows:
    def test_a_masked_row_is_not_otherwise_trained(self, step, decoder, tokenizer):
        step.rows[5].tracks["loss_mask"][:] = 0
        found = find_flags(step.batch(), decoder, tokenizer, only=["row_masked", "untrained_sampled"])
        assert [flag.name for flag in found.flags[5]] == ["row_masked"]

    def test_a_masked_row_with_an_assumed_response_mask_has_no_unsampled_end(self, step, decoder, tokenizer):
        step.rows[5].tracks["loss_mask"][:] = 0
        found = find_flags(step.batch(without=("versions",)), decoder, tokenizer, only=["ends_unsampled"])
        assert not found.flags[5]

    def test_few_untrained_tokens_can_be_tolerated(self, step, decoder, tokenizer):
        at = step.rows[5].runs()[0][0]
        step.rows[5].tracks["loss_mask"][at : at + 2] = 0
        for min_tokens, expected in ((2, 1), (3, 0)):
            found = find_flags(
                step.batch(),
                decoder,
                tokenizer,
                only=["untrained_sampled"],
                parameters={"untrained_sampled.min_tokens": min_tokens},
            )
            assert len(found.flags[5]) == expected
