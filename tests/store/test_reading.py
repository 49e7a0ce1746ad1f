"""What the index keeps of a trace is what its plain definition says, whatever the text."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_traces.store.reading import (
    PREVIEW,
    SIGNS,
    Reading,
    answer_of,
    error_signature,
    flatten,
    read_trace,
    spaced,
)
from rollout_traces.store.rows import StoredTrace

TEXTS = st.text(
    st.sampled_from("ab 完了あ한🀄é\n\t\u3000{}\\_</think>") | st.characters(codec="utf-8"), max_size=1200
)


def reading_of(messages: Any, metadata: Any = None) -> Reading:
    """What is kept of a trace of these messages and fields."""
    texts = (orjson.dumps(messages), orjson.dumps(metadata or {}))
    return read_trace(StoredTrace(1, "t", "r", "run", 0, "chat", None, "", *texts, None))


def is_alone(character: str) -> bool:
    """Whether a character is a token of its own."""
    return character in SIGNS or re.match("[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7a3]", character) is not None


@given(st.text(st.sampled_from("ab 完了あ한é\n{}\\_"), max_size=1200))
def test_cjk_characters_and_signs_are_alone_and_nothing_is_lost(text: str) -> None:
    words = spaced(text).decode()
    assert words.replace(" ", "") == text.replace(" ", "")
    assert all(len(word) == 1 or not any(map(is_alone, word)) for word in words.split(" "))


@given(TEXTS, TEXTS)
def test_a_preview_is_the_first_words_with_single_spaces(asked: str, said: str) -> None:
    reading = reading_of([{"role": "user", "content": asked}, {"role": "assistant", "content": said}])
    assert reading.prompt == re.sub(r"\s+", " ", asked[: 4 * PREVIEW].strip()).strip()[:PREVIEW]
    assert reading.reply == re.sub(r"\s+", " ", answer_of(said)[: 4 * PREVIEW].strip()).strip()[:PREVIEW]


def test_a_preview_looks_past_blank_lines() -> None:
    reading = reading_of([{"role": "user", "content": "one" + "\n" * 400 + "two"}])
    assert reading.prompt == "one two"


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("<think>so</think>five", "five"),
        ("<think>so", " so"),
        ("so</think> ", "so"),
        ("a > b", "a > b"),
    ],
)
def test_an_answer_is_what_follows_the_thinking(said: str, answer: str) -> None:
    assert answer_of(said) == answer


def test_every_text_of_a_message_is_indexed_in_order() -> None:
    call = {"function": {"name": "look", "arguments": {"at": "sky"}}}
    message = {"role": "assistant", "content": [{"text": "one"}, {"text": ""}], "reasoning_content": "two"}
    reading = reading_of(
        [message | {"tool_calls": [call, {"name": "plain", "arguments": "raw"}]}, "no message"]
    )
    assert reading.words.decode().split() == ["one", "two", "look", "{", '"at":"sky"', "}", "plain", "raw"]
    assert reading.fields["tool_names"] == ("look", "plain") and reading.n_messages == 2


def test_metadata_is_flattened_to_scalars_and_names() -> None:
    metadata = {
        "a": {"b": {"c": 1, "d": {"e": 2}}},
        "yes": True,
        "nothing": None,
        "nan": float("nan"),
        "texts": ["x", "y"],
        "mixed": ["x", 1],
        "far": 2**63,
        "inf": "-Infinity",
        "empty": "",
        "long": "x" * 1000,
    }
    assert flatten(metadata) == {
        "a/b/c": 1, "yes": 1, "texts": ("x", "y"), "far": 2.0**63, "inf": float("-inf"), "long": "x" * 256,
    }  # fmt: skip


def test_an_error_signature_drops_what_differs_between_two_of_a_kind():
    one = error_signature("KeyError: 'user_17' in /srv/app/tools.py line 203, id 0xdeadbeef")
    other = error_signature("KeyError: 'user_9' in /srv/x/other.py line 7, id 0x12ab34cd")
    assert one == other == "KeyError: <text> in <path> line <n>, id <hash>"
