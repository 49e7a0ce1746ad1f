"""Conversations as messages."""

from __future__ import annotations

import pytest

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
