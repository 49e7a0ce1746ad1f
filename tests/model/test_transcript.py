"""Conversations as messages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rollout_traces.model.transcript import TokenTrack
from tests.builders import make_transcript


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("4 ", "<think>\nplan\n</think>\n\n4 "),
        ("", "<think>\nplan\n</think>"),
    ],
)
def test_an_answer_behind_thinking_keeps_its_last_space(answer, said):
    """Seen once: what was written behind thinking lost the white space at its end."""
    made = make_transcript([("user", "2 + 2?"), ("assistant", answer)], thinking="plan")
    assert made.messages()[1]["content"] == said


class TestMessages:
    def test_calls_are_told_with_their_arguments_as_json_and_what_was_not_understood_as_it_was_written(
        self,
    ) -> None:
        made = make_transcript([("user", "?"), ("assistant", "")], calls=[("look", {"city": "Paris"})])
        (call,) = made.messages()[1]["tool_calls"]
        assert (
            call["function"] == {"name": "look", "arguments": '{"city":"Paris"}'}
            and call["type"] == "function"
        )
        odd = replace(made.turns[1].tool_calls[0], name="", arguments=None, raw="look(")
        broken = replace(made, turns=(replace(made.turns[1], tool_calls=(odd,)),))
        assert not odd.parsed and not replace(odd, name="look").parsed
        assert broken.messages()[0]["tool_calls"][0]["function"] == {"name": "unparsed", "arguments": "look("}

    def test_a_turn_of_nobody_is_a_users_named_context(self) -> None:
        made = make_transcript([("context", "tail"), ("user", "?")])
        assert made.messages() == [
            {"role": "user", "name": "context", "content": "tail"},
            {"role": "user", "content": "?"},
        ]

    def test_a_tools_turn_tells_its_call_its_name_and_that_it_failed(self) -> None:
        made = make_transcript([("tool", "17")])
        unpaired = replace(made, turns=(replace(made.turns[0], tool_call_id=None),))
        assert unpaired.messages() == [{"role": "tool", "content": "17"}]
        turn = replace(made.turns[0], tool_call_id="c1", name="look", failed=True)
        assert replace(made, turns=(turn,)).messages() == [
            {"role": "tool", "content": "17", "tool_call_id": "c1", "name": "look", "is_error": True}
        ]


class TestTokens:
    def test_have_texts_that_join_to_the_raw_text(self) -> None:
        made = make_transcript([("user", "What is it?"), ("assistant", "four")])
        assert "".join(made.token_texts()) == made.raw == "".join(turn.raw for turn in made.turns)
        assert len(list(made.token_texts())) == len(made.tokens) == sum(map(len, made.turns))

    def test_of_a_rollout_that_came_without_are_none(self) -> None:
        empty = TokenTrack.empty()
        assert len(empty) == 0 and empty.loss_mask.dtype == bool and empty.char_stops.dtype.kind == "i"


class TestANotebook:
    def test_colours_what_is_in_the_loss_what_was_sampled_and_nothing_else(self) -> None:
        made = make_transcript([("user", "two words"), ("assistant", "three words <here>")])
        mask = made.tokens.response_mask
        assert mask.any() and not mask.all()
        at = int(mask.nonzero()[0][0])
        loss = mask.copy()
        loss[at] = False
        shown = replace(made, tokens=replace(made.tokens, loss_mask=loss))._repr_html_()
        texts = list(made.token_texts())
        assert f'background:#fbf0bf;color:#111">{texts[at]}</span>' in shown.replace("&lt;", "<")
        assert shown.count("background:#cfead0") == 1 and shown.count("background:#fbf0bf") == 1
        assert (
            f"{len(made.tokens)} tokens, {int(loss.sum())} in the loss" in shown and "&lt;here&gt;" in shown
        )
        assert f"{len(made.turns[1])} tokens, {made.turns[1].n_sampled} sampled" in shown

    def test_is_told_in_one_line_otherwise(self) -> None:
        made = make_transcript([("user", "a"), ("assistant", "b")])
        assert (
            repr(made)
            == f"<Transcript: {len(made.tokens)} tokens in 2 turns (user, assistant), from {made.source}>"
        )
