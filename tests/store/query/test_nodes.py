"""How a query is cut into tokens."""

from __future__ import annotations

import pytest

from rollout_traces.errors import QueryError
from rollout_traces.store.query.nodes import LONGEST, SHOWN, QuerySpan, Token, literal, tokenize


def said(text: str) -> list[tuple[str, object]]:
    return [(token.kind, token.value) for token in tokenize(text)[:-1]]


class TestTokens:
    def test_know_where_they_stand(self):
        assert tokenize(" a  >= 12") == [
            Token("name", "a", QuerySpan(1, 2)),
            Token("symbol", ">=", QuerySpan(4, 6)),
            Token("number", 12, QuerySpan(7, 9)),
            Token("end", "", QuerySpan(9, 9)),
        ]
        assert tokenize("") == [Token("end", "", QuerySpan(0, 0))]

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("0", 0),
            ("9223372036854775807", 9223372036854775807),
            ("9223372036854775808", 9223372036854775808.0),
            ("1.5", 1.5),
            (".5", 0.5),
            ("2.", 2.0),
            ("1e3", 1000.0),
            ("1E-2", 0.01),
        ],
    )
    def test_of_numbers_are_whole_where_the_store_has_such(self, text, value):
        [(kind, found)] = said(text)
        assert kind == "number" and found == value and type(found) is type(value)

    @pytest.mark.parametrize("text", ["1a", "1.2.3", "1_000", "#", "a ;"])
    def test_are_not_made_of_anything(self, text):
        with pytest.raises(QueryError):
            tokenize(text)

    @pytest.mark.parametrize(("written", "value"), [("==", "="), ("<>", "!="), ("~", "~"), ("!~", "!~")])
    def test_of_symbols_are_written_one_way(self, written, value):
        assert said(f"a {written} b")[1] == ("symbol", value)

    @pytest.mark.parametrize(
        ("text", "value"), [("&&", "and"), ("||", "or"), ("!", "not"), ("And", "and"), ("NULL", "null")]
    )
    def test_of_words_are_in_lower_case_however_they_are_written(self, text, value):
        assert said(text) == [("word", value)]

    def test_of_names_keep_their_case_and_a_backquote(self):
        assert said("Loss/a-b:c.d `in` `a``b` ä_1") == [
            ("name", "Loss/a-b:c.d"),
            ("quoted", "in"),
            ("quoted", "a`b"),
            ("name", "ä_1"),
        ]

    def test_of_names_and_texts_are_read_as_sentences_quote_them(self):
        assert said("component/“two words” = “a\\n's”") == [
            ("quoted", "component/two words"),
            ("symbol", "="),
            ("string", "a\\n's"),
        ]

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("'a'", "a"),
            ('"a\'b"', "a'b"),
            (r"'a\'b'", "a'b"),
            (r"'\n\t\r'", "\n\t\r"),
            (r"'\\n'", r"\n"),
            (r"'\d'", r"\d"),
            ("'\\\n'", "\\\n"),
        ],
    )
    def test_of_texts_hold_what_was_meant(self, text, value):
        assert said(text) == [("string", value)]
        assert said(literal(value)) == [("string", value)]


class TestTooLong:
    def test_a_query_has_a_longest_length(self):
        assert tokenize("a" * LONGEST)[0].span == QuerySpan(0, LONGEST)
        with pytest.raises(QueryError) as refused:
            tokenize("a" * (LONGEST + 1))
        assert f"{LONGEST + 1} characters; a query has at most {LONGEST}" in str(refused.value)
        assert "a" * SHOWN in str(refused.value) and "a" * (SHOWN + 1) not in str(refused.value)

    @pytest.mark.parametrize(("text", "opener"), [("a = 'b", "'"), ('"', '"'), ("a `b", "`")])
    def test_a_text_ends(self, text, opener):
        with pytest.raises(QueryError, match=f"this {opener} opens a text that never ends"):
            tokenize(text)
