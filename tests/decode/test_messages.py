"""Structured messages beside tokens: they win where they agree, the tokens where they do not."""

from __future__ import annotations

from typing import Any

import pytest

from rollout_traces.decode.messages import align
from rollout_traces.model.text import text_of
from tests.decode.builders import E, S, chatml, of_template, row, said


def turns() -> tuple[Any, ...]:
    tokenizer, decoder = chatml()
    rollout = row(
        tokenizer,
        (0, f"{S}system\nBe brief.{E}\n{S}user\nHi?{E}\n{S}assistant\n"),
        (1, f"Hello.{E}"),
        (0, f"\n{S}user\nBye{E}\n"),
    )
    return decoder.decode(rollout.ids, loss_mask=rollout.mask).turns


def say(*pairs: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in pairs]


class TestAgreement:
    def test_whole_conversations_agree(self) -> None:
        messages = say(("system", "Be brief."), ("user", "Hi?"), ("assistant", "Hello."), ("user", "Bye"))
        aligned = align(turns(), messages)
        assert aligned.agrees
        assert not aligned.warnings

    def test_a_system_turn_that_the_template_added_is_skipped(self) -> None:
        assert align(turns(), say(("user", "Hi?"), ("assistant", "Hello."), ("user", "Bye"))).agrees

    def test_a_prompt_alone_covers_its_turns_and_says_so(self) -> None:
        aligned = align(turns(), say(("system", "Be brief."), ("user", "Hi?")))
        assert aligned.agrees
        assert "cover 2 of 4 turns" in aligned.warnings[0]

    def test_trimmed_whitespace_is_no_disagreement(self) -> None:
        aligned = align(turns(), say(("user", "  Hi?\n"), ("assistant", "Hello.")))
        assert aligned.agrees
        assert aligned.turns[1].content == "  Hi?\n", "the message's own text wins"

    def test_reasoning_content_becomes_thinking(self) -> None:
        messages = [
            *say(("user", "Hi?")),
            {"role": "assistant", "content": "Hello.", "reasoning_content": "Greet."},
        ]
        assert align(turns(), messages).turns[2].thinking == "Greet."

    def test_thinking_inside_the_content_is_not_shown_twice(self) -> None:
        tokenizer, decoder = of_template("qwen3")
        rollout = row(
            tokenizer, (0, f"{S}user\nHi{E}\n{S}assistant\n"), (1, f"<think>\nGreet.\n</think>\n\nHello{E}")
        )
        messages = say(("user", "Hi"), ("assistant", "<think>\nGreet.\n</think>\n\nHello"))
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask, messages=messages)
        assert (transcript.turns[1].thinking, transcript.turns[1].content) == ("Greet.", "Hello")

    def test_a_role_named_in_the_messages_is_evidence_for_a_context_turn(self) -> None:
        tokenizer, decoder = chatml()
        rollout = row(
            tokenizer,
            (0, f"{S}user\nHi{E}\n{S}assistant\n"),
            (1, "run\n"),
            (0, "output 4\n"),
            (1, f"Four{E}"),
        )
        messages = say(("user", "Hi"), ("assistant", "run"), ("tool", "output 4"), ("assistant", "Four"))
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask, messages=messages)
        assert [turn.role for turn in transcript.turns] == ["user", "assistant", "tool", "assistant"]


class TestDisagreement:
    @pytest.mark.parametrize(
        ("messages", "index"),
        [
            (say(("user", "Something else")), 0),
            (say(("user", "Hi?"), ("user", "Bye")), 1),
            (say(("user", "Hi?"), ("assistant", "Hello."), ("user", "Bye"), ("assistant", "more")), 3),
            ([{"content": "no role"}], 0),
            (["text"], 0),
        ],
    )
    def test_the_tokens_are_shown_and_the_first_wrong_message_is_named(
        self, messages: Any, index: int
    ) -> None:
        before = turns()
        aligned = align(before, messages)
        assert not aligned.agrees
        assert aligned.turns == before
        assert aligned.warnings[0].startswith(f"messages_disagree: message {index} ")


class TestContentForms:
    @pytest.mark.parametrize(
        ("content", "text"),
        [
            (None, ""),
            ("as is", "as is"),
            ([{"type": "text", "text": "a"}, {"type": "image_url"}, "b"], "a[image]b"),
            (4, "4"),
            ("\ud800", "\ufffd"),
        ],
    )
    def test_none_lists_and_odd_values_become_text(self, content: Any, text: str) -> None:
        assert text_of(content) == text

    def test_calls_with_broken_arguments_keep_what_was_decoded(self) -> None:
        tokenizer, decoder = of_template("qwen2_5")
        call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
        rollout = row(tokenizer, (0, f"{S}user\nHi{E}\n{S}assistant\n"), (1, f"{call}{E}"))
        function = {"name": "f", "arguments": "{broken"}
        messages = [
            *say(("user", "Hi")),
            {"role": "assistant", "content": None, "tool_calls": [{"function": function}]},
        ]
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask, messages=messages)
        assert transcript.turns[1].tool_calls[0].arguments == {"a": 1}
        assert said(transcript)[1] == ("assistant", "")
