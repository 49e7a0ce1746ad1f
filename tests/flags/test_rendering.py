from __future__ import annotations

import copy

import numpy as np
import pytest

from rollout_traces.flags import rendering
from rollout_traces.flags.rendering import _meeting, _Rendering
from tests.flags.conftest import check_found, decoder_of, faults_of, tiny_steps
from tests.flags.planted import FAULTS
from tests.flags.steps import find_flags


@faults_of(rendering)
@pytest.mark.parametrize("origin", ["made up", "desk"])
def test_a_planted_fault_is_found_where_it_is_and_on_no_other_row(fault, origin):
    check_found(fault, tiny_steps()[origin], decoder_of("tiny"))


ROW = 5


def plant(step, what: str) -> None:
    """Plants the fault of that description in row 5, which `planted` describes."""
    next(fault for fault in FAULTS if fault.what == what).plant(step)


@pytest.fixture
def flagged(step, decoder, tokenizer):
    """The flags of a name on row 5, of a tokenizer that may be another than the decoder's."""

    def find(name: str, using=None, without=(), **parameters):
        parameters = {f"{name}.{key}": value for key, value in parameters.items()}
        batch = step.batch(without=without)
        found = find_flags(batch, decoder, using or tokenizer, only=[name], rows=[ROW], parameters=parameters)
        assert not found.errors.total
        return found.flags[ROW]

    return find


class TestTemplateDrift:
    def test_is_measured_against_the_template_that_the_tokenizer_has_now(self, step, decoder, tokenizer):
        def scaffolding():
            found = find_flags(step.batch(), decoder, changing, only=["template_drift"], rows=[5])
            return [flag.message for flag in found.flags[5] if flag.message.startswith("Between")]

        changing = copy.deepcopy(tokenizer)
        assert not scaffolding()
        written = changing.chat_template
        changing.chat_template = written.replace("<|im_end|>", "<|im_end|>!")
        assert changing.chat_template != written
        assert scaffolding()

    def test_a_template_that_refuses_says_nothing_and_one_that_breaks_is_counted(
        self, step, decoder, tokenizer
    ):
        def errors(template: str | None) -> int:
            changing = copy.deepcopy(tokenizer)
            changing.chat_template = template
            found = find_flags(step.batch(), decoder, changing, only=["template_drift"], rows=[5])
            assert not found.flags[5]
            return found.errors.total

        assert errors(None) == 0
        assert errors("{{ raise_exception('no such role') }}") == 0
        assert errors("{{ 'text' + 1 }}") == 1

    def test_thinking_that_the_template_would_have_left_out_is_told_of_once(self, flagged):
        (flag,) = flagged("template_drift")
        thinking = "Lin starts with 47; 31 bags of 33 come on top."
        assert flag.message == (
            f"Turn 2 keeps {len(thinking)} characters of thinking, which the template leaves out."
        )
        assert (flag.turn, flag.start, flag.stop) == (2, 44, 93)

    def test_only_the_first_turns_are_rendered(self, flagged):
        assert not flagged("template_drift", n_turns=3)
        assert not flagged("template_drift", n_turns=2)

    def test_a_newline_that_is_missing_behind_a_turn_is_shown_beside_what_the_template_writes(
        self, step, flagged
    ):
        plant(step, "the newline after an end marker dropped")
        _, flag = flagged("template_drift")
        assert flag.message == (
            r"Between turns 2 and 3 stands “<|im_end|><|im_start|>user\n<tool_response>”, where the template writes "
            r"“l_call><|im_end|>\n<|im_start|>user\n<tool_response>”."
        )
        assert (flag.turn, flag.start, flag.stop) == (2, 93, 99)

    def test_newlines_before_a_turn_that_the_template_does_not_write_are_shown_too(self, step, flagged):
        plant(step, "three newlines before an assistant header")
        _, flag = flagged("template_drift")
        assert flag.message == (
            r"Between turns 3 and 4 stands “</tool_response><|im_end|>\n\n\n\n<|im_start|>”, where the template "
            r"writes “</tool_response><|im_end|>\n<|im_start|>assistant”."
        )
        assert (flag.turn, flag.start, flag.stop) == (3, 101, 110)

    def test_what_differs_in_the_prompt_or_between_others_turns_is_passed_over(self, step, flagged):
        row = step.rows[ROW]
        row.splice(41, 41, step.encode("\n\n\n"), sampled=False)
        row.splice(20, 20, step.encode("\n\n"), sampled=False)
        assert [flag.message.split()[0] for flag in flagged("template_drift")] == ["Turn"]

    def test_two_assistant_turns_in_a_row_are_passed_over(self, step, flagged):
        row = step.rows[ROW]
        row.splice(95, 95, step.encode("<|im_start|>assistant\nAnd so.<|im_end|>\n"), sampled=False)
        assert not flagged("template_drift")


class TestARenderingOfSentinels:
    @pytest.mark.parametrize(
        ("text", "called", "between"),
        [
            ("Zqq0qZ a Zqq1qZ", None, "a"),
            ("Zqq0qZZqq1qZ", None, None),
            ("Zqq0qZ a Zqq2qZ b Zqq1qZ", None, None),  # moved
            ("Zqq1qZ a Zqq0qZ", None, None),
            ("Zqq0qZ a Zqq1qZ b Zqq1qZ", None, None),  # repeated
            ("Zqq0qZ a", None, None),  # left out
            ("Zqq1qZ a", None, None),
            ("Zqq0qZ a f() Zqq2qZ", "f", "a"),  # left out, and a call in its place
            ("Zqq0qZ a Zqq2qZ f()", "f", None),
            ("Zqq0qZ a f()", "f", "a"),
        ],
    )
    def test_has_the_text_between_two_turns_where_they_follow_one_another(self, text, called, between):
        assert _Rendering(text).between(0, called) == between

    def test_knows_whose_thinking_was_kept(self):
        assert _Rendering("Xqq3qX Zqq3qZ Zqq4qZ Xqq12qX").thoughts == {3, 12}


class TestRetokenized:
    def test_the_tokens_of_both_sides_are_shown(self, step, flagged):
        plant(step, "a token written as two")
        (flag,) = flagged("retokenized", context=6)
        assert flag.message == "“Lin” is 2 tokens here (46, 275) and 1 when encoded again (532)."
        assert (flag.start, flag.stop, flag.turn) == (46, 48, 2)

    def test_as_many_as_are_asked_for(self, step, flagged):
        plant(step, "a token written as two")
        (flag,) = flagged("retokenized", context=1)
        assert "(46, …)" in flag.message and "(532)" in flag.message

    def test_tokens_that_are_written_again_alike_have_none(self, flagged):
        assert not flagged("retokenized", context=6)

    def test_bytes_that_are_no_text_are_passed_over(self, step, flagged):
        plant(step, "a token written as two")
        row = step.rows[ROW]
        start, _ = row.runs()[-1]
        row.splice(start + 2, start + 3, step.encode("✓")[:1], sampled=True)
        assert not flagged("retokenized", context=6)

    @pytest.mark.parametrize(
        ("ids", "again", "start", "expected"),
        [
            ([1, 2, 3, 9, 8, 7, 6], [1, 4, 9, 8, 7, 6], 1, (3, 2)),
            ([1, 4, 9, 8, 7, 6], [1, 2, 3, 9, 8, 7, 6], 1, (2, 3)),
            ([1, 9, 8, 7, 6], [1, 5, 9, 8, 7, 6], 1, (2, 2)),  # one token at least is shown
            ([1, 2, 9, 8, 7], [1, 3, 9, 8, 7], 1, (5, 5)),  # three equal ones are not enough
            ([1, 2, 9, 8, 7, 6], [1, 3, 9, 8, 7, 6], 1, (2, 2)),
            ([0, *[5] * 63, 1, 2, 3, 4], [0, 1, 2, 3, 4], 1, (64, 1)),
            ([0, *[5] * 64, 1, 2, 3, 4], [0, 1, 2, 3, 4], 1, (69, 5)),  # too far away
        ],
    )
    def test_two_sequences_meet_again_at_four_equal_tokens(self, ids, again, start, expected):
        assert _meeting(np.asarray(ids), np.asarray(again), start) == expected


class TestSampledForeignTurn:
    def test_how_much_of_whose_turn_was_written_is_said(self, step, flagged):
        plant(step, "the policy goes on with a user's turn")
        (flag,) = flagged("sampled_foreign_turn")
        assert flag.message == "The policy wrote 15 of the 15 tokens of user turn 9."
        assert (flag.turn, flag.start, flag.stop) == (9, 225, 240)

    def test_more_than_a_share_of_the_turn_has_to_be_sampled(self, step, flagged):
        row = step.rows[ROW]
        row.sampled[95:100] = True
        row.tracks["versions"][95:100] = 10
        assert not flagged("sampled_foreign_turn")
        (flag,) = flagged("sampled_foreign_turn", share=0.4)
        assert flag.message == "The policy wrote 5 of the 10 tokens of tool turn 3."
        assert not flagged("sampled_foreign_turn", share=0.5)
        row.tracks["versions"][100] = 10
        assert len(flagged("sampled_foreign_turn", share=0.5)) == 1

    def test_by_the_loss_mask_alone_a_turn_counts_where_no_end_marker_closed_the_policys(self, step, flagged):
        unknown = ("versions", "turn_ids", "logprobs", "prox_logprobs")
        row = step.rows[ROW]
        stop = row.runs()[-1][1]
        row.splice(stop - 1, stop, step.encode(" <|im_start|>user\nAnd now?"), sampled=True)
        (flag,) = flagged("sampled_foreign_turn", without=unknown)
        n = flag.stop - flag.start
        assert flag.message == f"The policy wrote {n} of the {n} tokens of user turn 9."


class TestHeaderDrift:
    def test_what_stands_behind_the_header_is_shown_beside_the_templates(self, step, flagged):
        plant(step, "the white space after an assistant header dropped")
        (flag,) = flagged("header_drift")
        assert flag.message == (
            r"After the assistant's header of turn 4 stands “<think>\nL”, where the template writes “\n”."
        )
        assert (flag.turn, flag.start, flag.stop) == (4, 105, 107)

    def test_headers_that_were_not_sampled_behind_are_passed_over(self, step, flagged):
        plant(step, "the white space after an assistant header dropped")
        step.rows[ROW].sampled[100:160] = False
        step.rows[ROW].tracks["versions"][100:160] = -1
        step.rows[ROW].tracks["loss_mask"][100:160] = 0
        assert not flagged("header_drift")

    def test_a_template_without_white_space_there_has_none(self, step, flagged, tokenizer):
        plant(step, "the white space after an assistant header dropped")
        changing = copy.deepcopy(tokenizer)
        changing.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}"
        assert not flagged("header_drift", changing)
        changing.chat_template = "{{ raise_exception('no') }}"
        assert not flagged("header_drift", changing)

    def test_a_sound_row_has_none(self, flagged):
        assert not flagged("header_drift")


class TestBosAnomaly:
    @pytest.fixture
    def with_bos(self, tokenizer):
        changed = copy.deepcopy(tokenizer)
        changed.bos_token = "<|endoftext|>"
        return changed

    def test_beginning_tokens_are_counted(self, step, flagged, with_bos):
        row = step.rows[ROW]
        assert not flagged("bos_anomaly", with_bos)
        row.splice(0, 0, [with_bos.bos_token_id], sampled=False)
        assert not flagged("bos_anomaly", with_bos)
        row.splice(0, 0, [with_bos.bos_token_id], sampled=False)
        (flag,) = flagged("bos_anomaly", with_bos)
        assert flag.message == (
            f"The row begins with 2 beginning tokens (id {with_bos.bos_token_id}): prompt and tokenizer both wrote one."
        )
        assert (flag.start, flag.stop) == (0, 2)

    def test_one_that_the_template_writes_is_missed(self, step, flagged, with_bos):
        with_bos.chat_template = "{{ bos_token }}" + with_bos.chat_template
        (flag,) = flagged("bos_anomaly", with_bos)
        assert flag.message == (
            f"The row does not begin with the beginning token (id {with_bos.bos_token_id}) that the chat template writes."
        )
        assert (flag.start, flag.stop) == (0, 1)
        step.rows[ROW].splice(0, 0, [with_bos.bos_token_id], sampled=False)
        assert not flagged("bos_anomaly", with_bos)

    def test_a_row_of_nothing_else_is_counted_whole(self, step, flagged, with_bos):
        row = step.rows[ROW]
        row.splice(0, len(row), [with_bos.bos_token_id] * 3, sampled=True)
        (flag,) = flagged("bos_anomaly", with_bos)
        assert (flag.start, flag.stop) == (0, 3)

    def test_a_tokenizer_without_one_has_none(self, step, flagged, tokenizer):
        assert tokenizer.bos_token_id is None and not flagged("bos_anomaly")
