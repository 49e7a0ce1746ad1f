"""One line of the file of labels: what can be written, what is read back, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from rollout_traces.errors import StoreError
from rollout_traces.store.labels import (
    LARGEST,
    MOST_LABEL,
    MOST_NOTE,
    Entry,
    check_entry,
    checked_place,
    new_entry,
    read_entry,
)
from tests.builders import make_transcript


class TestWriting:
    def test_a_line_comes_back_as_it_was(self) -> None:
        for entry in (
            new_entry("label", "r", "good", "ann"),
            new_entry("note", "r", "two\nlines", "ann", turn=0),
            new_entry("note", "r", "here", "ann", tokens=(0, 1)),
        ):
            assert read_entry(entry.line()) == entry
            check_entry(entry)

    def test_blanks_are_taken_off_and_lines_stay_in_notes_alone(self) -> None:
        assert new_entry("label", "r", "  a \n b ", " ann  b ").text == "a b"
        assert new_entry("label", "r", "a", " ann  b ").author == "ann b"
        assert new_entry("note", "r", "  a \n\tb ", "ann").text == "a \n\tb"

    @pytest.mark.parametrize(
        ("kind", "text", "author", "said"),
        [
            ("label", " ", "ann", "label: empty"),
            ("note", "x", "\n", "author: empty"),
            ("label", "x" * (MOST_LABEL + 1), "ann", "label: 65 characters; at most 64"),
            ("note", "x" * (MOST_NOTE + 1), "ann", "note: 4,001 characters; at most 4,000"),
            ("note", "x", "a" * (MOST_LABEL + 1), "author: 65 characters"),
            ("label", "a\u202eb", "ann", r"label: holds U\+202E"),
            ("note", "a\x00b", "ann", r"note: holds U\+0000"),
        ],
    )
    def test_what_cannot_be_kept_is_refused(self, kind, text, author, said) -> None:
        with pytest.raises(StoreError, match=said):
            new_entry(kind, "r", text, author)

    def test_the_longest_texts_are_kept(self) -> None:
        new_entry("label", "r", "x" * MOST_LABEL, "a" * MOST_LABEL)
        new_entry("note", "r", "x" * MOST_NOTE, "ann")

    @pytest.mark.parametrize("tokens", [(1, 1), (2, 1), (-1, 1)])
    def test_a_range_that_is_none_is_refused(self, tokens) -> None:
        with pytest.raises(StoreError, match=f"tokens: seen {tokens[0]}:{tokens[1]}"):
            new_entry("label", "r", "good", "ann", tokens=tokens)
        with pytest.raises(StoreError, match="turn: seen -1"):
            new_entry("label", "r", "good", "ann", turn=-1)


class TestReading:
    GOOD = b'{"id":"0123456789abcdef","kind":"label","rollout":"r","text":"t","author":"a","time":"2026-01-01T00:00:00+00:00"%s}'

    @pytest.mark.parametrize("more", [b"", b',"turn":0', b',"start":3,"stop":9', b',"other":[1]'])
    def test_a_line_with_all_that_it_needs_is_an_entry(self, more) -> None:
        found = read_entry(self.GOOD % more)
        assert found is not None and (found.kind, found.text) == ("label", "t")

    @pytest.mark.parametrize(
        "more",
        [
            b',"turn":-1',
            b',"turn":1.0',
            b',"turn":true',
            b',"stop":1099511627776',
            b',"kind":"rm"',
            b',"text":3',
        ],
    )
    def test_a_line_with_a_value_that_is_none_is_not(self, more) -> None:
        assert read_entry(self.GOOD % more) is None

    def test_a_line_that_is_too_long_is_not(self) -> None:
        line = self.GOOD % b""
        assert read_entry(line + b" " * (LARGEST - len(line))) is not None
        assert read_entry(line + b" " * (LARGEST - len(line) + 1)) is None


class TestOfOthers:
    MADE = Entry("0123456789abcdef", "label", "r", "good", "ann", "2026-01-01T00:00:00+00:00")

    def test_one_that_this_package_would_have_made_is_taken(self) -> None:
        check_entry(self.MADE)
        check_entry(replace(self.MADE, start=1, stop=2))

    @pytest.mark.parametrize(
        "odd",
        [
            {"id": "0123"},
            {"id": "0123456789ABCDEF"},
            {"time": "2026-01-01T00:00:00"},
            {"time": "yesterday"},
            {"time": "2026-01-01T00:00:00." + "0" * 60 + "+00:00"},
            {"text": " good"},
            {"rollout": ""},
            {"rollout": "r" * 257},
            {"start": 1},
            {"start": 2, "stop": 1},
            {"turn": -1},
        ],
    )
    def test_others_are_refused(self, odd) -> None:
        with pytest.raises(StoreError):
            check_entry(replace(self.MADE, **odd))


class TestPlaces:
    made = make_transcript([("user", "a"), ("assistant", "b")])

    @pytest.mark.parametrize(
        ("turn", "tokens"), [(0, None), (1, None), (None, (0, 1)), (1, (0, 2)), (None, None)]
    )
    def test_that_a_rollout_has_are_taken(self, turn, tokens) -> None:
        checked_place(self.made, turn, tokens)
        checked_place(self.made, turn, (0, len(self.made.tokens)))

    @pytest.mark.parametrize("turn", [-1, 2])
    def test_turns_that_it_has_not_are_refused(self, turn) -> None:
        with pytest.raises(StoreError, match=f"turn {turn}: this rollout has 2 turns"):
            checked_place(self.made, turn, None)

    def test_tokens_that_it_has_not_are_refused(self) -> None:
        n = len(self.made.tokens)
        for tokens in ((0, n + 1), (-1, 1), (1, 1)):
            with pytest.raises(StoreError, match=rf"tokens {tokens[0]}:{tokens[1]}: this rollout has {n}"):
                checked_place(self.made, None, tokens)

    def test_tokens_of_a_rollout_of_text_are_refused_with_the_reason(self) -> None:
        """Seen once: “this rollout has 0, from 0.”"""
        with pytest.raises(StoreError, match="was logged as text, without tokens"):
            checked_place(SimpleNamespace(turns=(), tokens=()), None, (0, 1))

    def test_a_rollout_of_another_tool_has_none(self) -> None:
        with pytest.raises(StoreError, match="only the whole of it can be named"):
            checked_place(None, 0, None)
