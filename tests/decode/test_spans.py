"""Turns in tokens: segments on token edges; who wrote what where masks and turn ids tell and the markers do not."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_traces.decode.segment import Segment
from rollout_traces.decode.spans import Provenance, on_token_edges
from tests.decode.builders import E, S, chatml, check_invariants, of_template, row, said
from tests.decode.toy import toy_tokenizer

STARTS = np.asarray([0, 3, 6, 10, 12])
"""Bytes at which four tokens begin, and their end."""


@pytest.mark.parametrize(
    ("body_start", "token"),
    [(0, 0), (3, 1), (4, 1), (5, 1), (6, 2), (9, 2), (10, 3), (11, 3), (12, 4)],
)
def test_a_body_begins_with_the_token_that_holds_its_first_byte(body_start, token):
    [span] = on_token_edges([Segment("assistant", 0, body_start, 12, 12)], STARTS)
    assert (span.start, span.body_start, span.stop) == (0, token, 4)


def test_a_token_that_two_turns_share_belongs_to_the_one_it_begins_in():
    first, second = Segment("user", 0, 0, 4, 4), Segment("assistant", 4, 7, 12, 12)
    spans = on_token_edges([first, second], STARTS)
    assert [(span.start, span.body_start, span.stop) for span in spans] == [(0, 0, 2), (2, 2, 4)]


def test_a_segment_that_owns_no_token_is_left_out():
    spans = on_token_edges(
        [Segment("user", 0, 0, 4, 4), Segment("tool", 4, 4, 5, 5), Segment("assistant", 5, 5, 12, 12)], STARTS
    )
    assert [(span.role, span.start, span.stop) for span in spans] == [("user", 0, 2), ("assistant", 2, 4)]


class TestProvenance:
    SAMPLED = np.asarray([0, 1, 1, 1, 0, 1, 1, 0], bool)

    def test_versions_run_over_the_sampled_tokens_alone(self):
        versions = np.asarray([-1, 3, 3, 4, -1, 4, 5, -1])
        of = Provenance.of(self.SAMPLED, {"versions": versions})
        assert of.count(0, 8) == 5 and of.count(2, 6) == 3 and of.one_version is None
        assert of.version_runs(0, 8, 5) == ((3, 2), (4, 2), (5, 1))
        assert of.version_runs(2, 6, 3) == ((3, 1), (4, 2))
        assert of.version_runs(4, 5, 0) == ()

    def test_one_version_of_all_is_one_run(self):
        of = Provenance.of(self.SAMPLED, {"versions": np.where(self.SAMPLED, 7, -1)})
        assert of.one_version == 7 and of.version_runs(0, 3, 2) == ((7, 2),)
        alone = Provenance.of(np.asarray([False, True]), {"versions": np.asarray([-1, 7])})
        assert alone.one_version == 7 and alone.version_runs(0, 2, 1) == ((7, 1),)
        assert Provenance.of(self.SAMPLED, {}).version_runs(0, 3, 2) == ()
        assert Provenance.of(np.zeros(2, bool), {"versions": np.asarray([1, 1])}).one_version is None

    def test_edges_lie_where_sampling_or_the_call_changes(self):
        assert Provenance.of(self.SAMPLED, {}).edges(0, 8) == [1, 4, 5, 7]
        assert Provenance.of(self.SAMPLED, {}).edges(1, 6) == [4, 5]
        turns = np.asarray([-1, 0, 0, 1, -1, 1, -1, -1])
        assert Provenance.of(self.SAMPLED, {"turn_ids": turns}).edges(0, 8) == [1, 3, 4, 5, 7]


PROMPT = (0, f"{S}user\nhi{E}\n{S}assistant\n")


class TestTextInsideAnAssistantTurn:
    def test_unsampled_text_between_sampled_spans_is_context(self) -> None:
        tokenizer, decoder = chatml()
        rollout = row(tokenizer, PROMPT, (1, "```run\n"), (0, "\noutput: 4\n"), (1, f"It is 4.{E}"))
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask)
        assert said(transcript) == [
            ("user", "hi"),
            ("assistant", "```run\n"),
            ("context", "\noutput: 4\n"),
            ("assistant", "It is 4."),
        ]
        assert [len(turn.warnings) for turn in transcript.turns] == [0, 0, 1, 0]
        n = transcript.turns[2].stop - transcript.turns[2].start
        assert transcript.turns[2].warnings == (f"{n} tokens inside an assistant turn were not sampled",)
        check_invariants(transcript, decoder, rollout.ids)

    def test_it_is_a_tools_only_with_the_tools_marker(self) -> None:
        tokenizer, decoder = of_template("qwen2_5")
        inline = "<tool_response>\n4\n</tool_response>\n"
        rollout = row(tokenizer, PROMPT, (1, "Let me see.\n"), (0, inline), (1, f"It is 4.{E}"))
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask)
        assert [turn.role for turn in transcript.turns] == ["user", "assistant", "tool", "assistant"]
        assert transcript.turns[2].content == "4"
        check_invariants(transcript, decoder, rollout.ids)

    def test_a_row_that_ends_on_it_is_kept(self) -> None:
        tokenizer, decoder = chatml()
        rollout = row(tokenizer, PROMPT, (1, "```run\n"), (0, "\noutput: 4\n"))
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask)
        assert [turn.role for turn in transcript.turns] == ["user", "assistant", "context"]

    def test_a_prefilled_beginning_stays_with_the_answer(self) -> None:
        tokenizer, decoder = chatml()
        rollout = row(tokenizer, PROMPT, (0, "Sure, "), (1, f"it is 4.{E}"))
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask)
        assert said(transcript)[1:] == [("assistant", "Sure, it is 4.")]

    def test_an_end_marker_that_the_trainer_put_there_ends_the_turn(self) -> None:
        tokenizer, decoder = chatml()
        rollout = row(
            tokenizer, PROMPT, (1, "It is"), (0, f"{E}{S}user\ngo on{E}{S}assistant\n"), (1, f"4{E}")
        )
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask)
        assert said(transcript)[1:] == [("assistant", "It is"), ("user", "go on"), ("assistant", "4")]
        assert transcript.turns[1].raw.endswith(E)


class TestAnswersWithoutAnOpener:
    R1 = (
        "<｜User｜>What?<｜Assistant｜>",
        "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>17<｜tool▁output▁end｜>",
    )

    def test_behind_a_tool_results_end_what_was_sampled_is_the_assistants(self) -> None:
        tokenizer, decoder = of_template("deepseek_r1_distill")
        question, result = self.R1
        sampled = "It is 17.<｜end▁of▁sentence｜>"
        rollout = row(
            tokenizer,
            (0, question),
            (1, "I ask.<｜end▁of▁sentence｜>"),
            (0, f"{result}<｜tool▁outputs▁end｜>"),
            (1, sampled),
            (0, result),
            (1, "\n"),
            (1, sampled),
        )
        found = decoder.decode(rollout.ids, loss_mask=rollout.mask)
        check_invariants(found, decoder, rollout.ids)
        assert [(turn.role, turn.content.strip()) for turn in found.turns] == [
            ("user", "What?"),
            ("assistant", "I ask."),
            ("tool", "17"),
            ("assistant", "It is 17."),
            ("tool", "17"),
            ("assistant", "It is 17."),
        ]
        assert [turn.n_sampled > 0 for turn in found.turns] == [False, True, False, True, False, True]

    def test_a_mask_that_leaks_into_a_result_or_its_end_makes_no_answer(self) -> None:
        tokenizer, decoder = of_template("deepseek_r1_distill")
        question, result = self.R1
        for leak in (
            ((0, result), (1, "<｜tool▁outputs▁end｜>")),
            ((1, result), (1, "<｜tool▁outputs▁end｜>")),
        ):
            rollout = row(tokenizer, (0, question), (1, "I ask.<｜end▁of▁sentence｜>"), *leak)
            found = decoder.decode(rollout.ids, loss_mask=rollout.mask)
            assert [turn.role for turn in found.turns] == ["user", "assistant", "tool"]

    def test_nor_does_white_space_behind_a_users_end_marker(self) -> None:
        tokenizer, decoder = chatml()
        rollout = row(tokenizer, (0, f"{S}user\nQ{E}"), (1, "\n"), (0, f"{S}assistant\n"), (1, f"A{E}"))
        found = decoder.decode(rollout.ids, loss_mask=rollout.mask)
        assert [turn.role for turn in found.turns] == ["user", "assistant"]


class TestTurnIds:
    def test_they_split_answers_that_no_marker_and_no_gap_separates(self) -> None:
        tokenizer, decoder = chatml()
        rollout = row(tokenizer, PROMPT, (1, "first"), (1, f"second{E}"))
        turn_ids = np.where(rollout.mask, 0, -1)
        turn_ids[rollout.edges[2] :] = 1
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask, turn_ids=turn_ids)
        assert said(transcript)[1:] == [("assistant", "first"), ("assistant", "second")]
        check_invariants(transcript, decoder, rollout.ids)

    def test_without_them_it_is_one_turn(self) -> None:
        tokenizer, decoder = chatml()
        rollout = row(tokenizer, PROMPT, (1, "first"), (1, f"second{E}"))
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask)
        assert said(transcript)[1:] == [("assistant", "firstsecond")]

    def test_they_split_sampled_spans_of_a_base_model(self) -> None:
        tokenizer, decoder = chatml()
        rollout = row(tokenizer, (0, "Q: hi\nA:"), (1, " first"), (1, " second"))
        turn_ids = np.where(rollout.mask, 0, -1)
        turn_ids[rollout.edges[2] :] = 1
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask, turn_ids=turn_ids)
        assert said(transcript) == [("user", "Q: hi\nA:"), ("assistant", " first"), ("assistant", " second")]


class TestRowsWithoutMarkers:
    def test_mask_spans_tell_user_assistant_and_context(self) -> None:
        tokenizer, decoder = chatml()
        rollout = row(
            tokenizer, (0, "Q: 2+2?\nA:"), (1, " calc(2+2)"), (0, " => 4"), (1, " It is 4."), (0, " end")
        )
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask)
        assert [turn.role for turn in transcript.turns] == [
            "user",
            "assistant",
            "context",
            "assistant",
            "context",
        ]
        assert transcript.source == "mask"
        assert any("no marker" in warning for warning in transcript.warnings)

    def test_a_tokenizer_without_a_template_gives_mask_spans(self) -> None:
        from rollout_traces.decode import TranscriptDecoder

        tokenizer = toy_tokenizer(eos_token="</s>")
        decoder = TranscriptDecoder(tokenizer)
        rollout = row(tokenizer, (0, "Once upon"), (1, " a time</s>"))
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask)
        assert said(transcript) == [("user", "Once upon"), ("assistant", " a time")]
        assert transcript.source == "mask"
        assert decoder.dialect.notes

    def test_an_unsampled_end_marker_belongs_to_the_answer(self) -> None:
        tokenizer, decoder = chatml()
        rollout = row(tokenizer, (0, "Once upon"), (1, " a time"), (0, E))
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask)
        assert said(transcript) == [("user", "Once upon"), ("assistant", " a time")]


class TestCutRows:
    def test_a_row_cut_at_the_left_begins_with_context(self) -> None:
        tokenizer, decoder = chatml()
        rollout = row(tokenizer, (0, f"of the question{E}\n{S}assistant\n"), (1, f"yes{E}"))
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask)
        assert said(transcript) == [("context", "of the question"), ("assistant", "yes")]

    def test_a_sampled_beginning_is_the_assistants(self) -> None:
        tokenizer, decoder = chatml()
        rollout = row(tokenizer, (1, f"of the answer{E}"), (0, f"\n{S}user\nthanks{E}"))
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask)
        assert said(transcript) == [("assistant", "of the answer"), ("user", "thanks")]

    def test_an_opener_cut_at_the_right_is_context(self) -> None:
        tokenizer, decoder = chatml()
        rollout = row(tokenizer, PROMPT, (1, f"yes{E}"), (0, f"\n{S}"))
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask)
        assert [turn.role for turn in transcript.turns] == ["user", "assistant", "context"]

    def test_an_unknown_role_in_a_header_is_context_and_a_known_name_is_read(self) -> None:
        tokenizer, decoder = chatml()
        rollout = row(
            tokenizer, (0, f"{S}narrator\nIt rains.{E}\n{S}developer\nBe kind.{E}\n{S}user\nhi{E}\n")
        )
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask)
        assert said(transcript) == [("context", "It rains."), ("system", "Be kind."), ("user", "hi")]

    def test_text_after_an_end_marker_is_shown_and_named(self) -> None:
        tokenizer, decoder = chatml()
        rollout = row(tokenizer, PROMPT, (1, f"yes{E} and more"))
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask)
        assert said(transcript)[1] == ("assistant", f"yes{E} and more")
        assert transcript.turns[1].warnings[0].startswith("text_after_end")

    def test_padding_after_the_end_marker_is_no_content(self) -> None:
        tokenizer, decoder = chatml()
        rollout = row(tokenizer, PROMPT, (1, f"yes{E}"), (0, "<|endoftext|><|endoftext|>"))
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask)
        assert said(transcript)[1:] == [("assistant", "yes")]
        assert not transcript.turns[1].warnings


class TestThinkingOpenedByTheGenerationPrompt:
    def test_the_opened_block_is_part_of_the_marker_and_read_as_thinking(self) -> None:
        tokenizer, decoder = of_template("qwen3_5_think")
        prompt = f"{S}user\nhi{E}\n{S}assistant\n<think>\n"
        rollout = row(tokenizer, (0, prompt), (1, f"Greet them.\n</think>\n\nHello{E}"))
        turn = decoder.decode(rollout.ids, loss_mask=rollout.mask).turns[1]
        assert (turn.thinking, turn.content) == ("Greet them.", "Hello")
        assert turn.body_start == rollout.edges[1]

    def test_a_block_that_was_never_closed_is_thinking_and_named(self) -> None:
        tokenizer, decoder = of_template("qwen3_5_think")
        rollout = row(tokenizer, (0, f"{S}user\nhi{E}\n{S}assistant\n<think>\n"), (1, "Well, let me"))
        turn = decoder.decode(rollout.ids, loss_mask=rollout.mask).turns[1]
        assert (turn.thinking, turn.content) == ("Well, let me", "")
        assert any(warning.startswith("thinking_unclosed") for warning in turn.warnings)

    def test_a_block_that_the_policy_opened_is_in_its_body(self) -> None:
        tokenizer, decoder = of_template("qwen3")
        rollout = row(tokenizer, PROMPT, (1, f"<think>\nGreet.\n</think>\n\nHello{E}"))
        turn = decoder.decode(rollout.ids, loss_mask=rollout.mask).turns[1]
        assert (turn.thinking, turn.content) == ("Greet.", "Hello")
        assert turn.body_start == rollout.edges[1]


GLM_PROMPT = (0, "[gMASK]<sop><|user|>\nhi<|assistant|>")


class TestOpenersThatStop:
    def test_a_sampled_opener_ends_the_answer_and_the_result_is_the_tools(self) -> None:
        tokenizer, decoder = of_template("glm4moe")
        rollout = row(
            tokenizer,
            GLM_PROMPT,
            (1, "\n<think></think>\nLet me look.<|observation|>"),
            (0, "\n<tool_response>\n4\n</tool_response><|assistant|>"),
            (1, "\n<think></think>\nFour.<|user|>"),
        )
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask)
        assert said(transcript) == [
            ("user", "hi"),
            ("assistant", "Let me look."),
            ("tool", "4"),
            ("assistant", "Four."),
        ]
        assert transcript.turns[1].raw.endswith("<|observation|>")
        assert [turn.n_sampled > 0 for turn in transcript.turns] == [False, True, False, True]
        check_invariants(transcript, decoder, rollout.ids)

    def test_without_a_mask_the_opener_stays_with_the_turn_it_opens(self) -> None:
        tokenizer, decoder = of_template("glm4moe")
        ids = tokenizer.encode(
            "<|user|>\nhi<|assistant|>\nLook.<|observation|>\n<tool_response>\n4\n</tool_response>"
        )
        transcript = decoder.decode(ids)
        assert transcript.turns[2].raw.startswith("<|observation|>")

    def test_a_mask_of_ones_moves_nothing(self) -> None:
        tokenizer, decoder = of_template("glm4moe")
        ids = tokenizer.encode(
            "<|user|>\nhi<|assistant|>\nLook.<|observation|>\n<tool_response>\n4\n</tool_response>"
        )
        transcript = decoder.decode(ids, loss_mask=[1] * len(ids))
        assert transcript.turns[2].raw.startswith("<|observation|>")
