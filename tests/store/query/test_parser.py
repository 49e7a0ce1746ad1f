from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_traces.store.query.error import QueryError
from rollout_traces.store.query.lexer import tokenize
from rollout_traces.store.query.nodes import All, Between, Compare, Has, In, Name, Not, Substring, Text
from rollout_traces.store.query.nodes import Any as AnyOf
from rollout_traces.store.query.parser import parse_query, parse_sort
from rollout_traces.store.query.search_text import parse_search
from tests.store.query.strategies import nodes, written


def placeless(node):
    """A node without the places of its columns."""
    if isinstance(node, All | AnyOf):
        return type(node)(tuple(placeless(part) for part in node.parts))
    if isinstance(node, Not):
        return Not(placeless(node.part))
    return type(node)(**{**vars(node), "column": Name(node.column.name, 0, 0)})


class TestWhatIsUnderstood:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("reward < 0.5", Compare(Name("reward", 0, 6), "<", 0.5)),
            ("reward<.5", Compare(Name("reward", 0, 6), "<", 0.5)),
            ("reward == -1e3", Compare(Name("reward", 0, 6), "=", -1000.0)),
            ("reward <> 1", Compare(Name("reward", 0, 6), "!=", 1)),
            ("trained = true", Compare(Name("trained", 0, 7), "=", 1)),
            ("reward is null", Compare(Name("reward", 0, 6), "=", None)),
            ("reward != null", Compare(Name("reward", 0, 6), "!=", None)),
            ("reward is not null", Compare(Name("reward", 0, 6), "!=", None)),
            ("flags has 'truncated'", Has(Name("flags", 0, 5), "truncated")),
            ('flags HAS "truncated"', Has(Name("flags", 0, 5), "truncated")),
            ("flags not has 'x'", Not(Has(Name("flags", 0, 5), "x"))),
            ("step in (1, 2, null)", In(Name("step", 0, 4), (1, 2, None))),
            ("step not in (1)", Not(In(Name("step", 0, 4), (1,)))),
            ("step between 1 and 2", Between(Name("step", 0, 4), 1, 2)),
            ("component/format-v2 >= 1", Compare(Name("component/format-v2", 0, 19), ">=", 1)),
            ("`odd name!` = 1", Compare(Name("odd name!", 0, 11), "=", 1)),
            ("`text` = 1", Compare(Name("text", 0, 6), "=", 1)),
            ("text 'a b'", Text("a b", 5, 10)),
            ("text contains 'a'", Substring("a", 14, 17)),
            (r"source = 'it\'s \\ \n \d'", Compare(Name("source", 0, 6), "=", "it's \\ \n \\d")),
            ("größe > 1", Compare(Name("größe", 0, 5), ">", 1)),
        ],
    )
    def test_one_test(self, text: str, expected) -> None:
        assert parse_query(text) == expected

    def test_and_binds_tighter_than_or(self) -> None:
        a, b, c = (parse_query(f"{' ' * at}{name} = 1") for at, name in ((0, "a"), (9, "b"), (19, "c")))
        assert parse_query("a = 1 or b = 1 and c = 1") == AnyOf((a, All((b, c))))

    def test_not_binds_to_the_next_test(self) -> None:
        found = parse_query("not a = 1 and b = 1")
        assert isinstance(found, All) and isinstance(found.parts[0], Not)

    @pytest.mark.parametrize("text", ["", "  ", "\n"])
    def test_nothing_is_no_filter(self, text: str) -> None:
        assert parse_query(text) is None

    @settings(max_examples=300, deadline=None)
    @given(nodes())
    def test_what_is_written_is_what_is_read(self, node) -> None:
        assert placeless(parse_query(written(node))) == placeless(node)


class TestErrorsPointAtTheToken:
    @pytest.mark.parametrize(
        ("text", "token", "said"),
        [
            ("reward <", "", "the query ends where a number"),
            ("reward < abc", "abc", "texts stand in quotes: 'abc'"),
            ("reward < 1 reward > 2", "reward", "'and', 'or' or the end"),
            ("< 1", "<", "a column"),
            ("reward 5", "5", "one of =, !=, <"),
            ("reward ~ 5", "~", "cannot be read"),
            ("reward < 1; drop table x", ";", "cannot be read"),
            ("source = 'abc", "'abc", "never ends"),
            ("(reward < 1", "", "')'"),
            ("reward < 1)", ")", "the end of the query"),
            ("flags has truncated", "truncated", "a name in quotes"),
            ("step in 1, 2", "1", "'('"),
            ("step in (1 2)", "2", "',' or ')'"),
            ("step between 1 or 2", "or", "'and'"),
            ("reward < null", "null", "use 'is null'"),
            ("text foo", "foo", "a text in quotes"),
            ("reward is 5", "5", "'null' or 'not null'"),
            ("a.b/c d", "d", "one of"),
            ("reward < 1.2.3", "1.2.3", "cannot be read"),
            ("x not = 1", "=", "one of in, between, has, contains"),
        ],
    )
    def test_place_and_words(self, text: str, token: str, said: str) -> None:
        with pytest.raises(QueryError) as caught:
            parse_query(text)
        error = caught.value
        assert said in error.what
        assert text[error.start : error.stop].startswith(token) if token else error.start == len(text)
        marker = str(error).splitlines()[-1]
        assert marker.index("^") == error.start + 2

    def test_depth_and_length_have_bounds(self) -> None:
        with pytest.raises(QueryError, match="levels deep"):
            parse_query("(" * 5000 + "a = 1" + ")" * 5000)
        with pytest.raises(QueryError, match="levels deep"):
            parse_query("not " * 5000 + "a = 1")
        with pytest.raises(QueryError, match="more than 200 tests"):
            parse_query(" and ".join(["a = 1"] * 500))
        with pytest.raises(QueryError, match="at most 1000 values"):
            parse_query(f"a in ({', '.join(['1'] * 2000)})")

    @settings(max_examples=500, deadline=None)
    @given(
        st.one_of(
            st.text(max_size=40),
            st.lists(
                st.sampled_from(
                    [
                        "(",
                        ")",
                        "and",
                        "or",
                        "not",
                        "in",
                        ",",
                        "<",
                        "=",
                        "reward",
                        "'x'",
                        "1",
                        "null",
                        "has",
                        "is",
                        "text",
                        "between",
                    ]
                ),
                max_size=12,
            ).map(" ".join),
        )
    )
    def test_any_text_is_read_or_refused_with_a_place(self, text: str) -> None:
        try:
            parse_query(text)
        except QueryError as error:
            assert 0 <= error.start < error.stop <= len(text) + 1

    @given(st.text(max_size=40))
    def test_tokens_cover_the_text_in_order(self, text: str) -> None:
        try:
            tokens = tokenize(text)
        except QueryError:
            return
        edges = [edge for token in tokens for edge in (token.start, token.stop)]
        assert edges == sorted(edges) and tokens[-1].kind == "end"


class TestSort:
    def test_keys_in_order(self) -> None:
        assert [(k.column.name, k.descending) for k in parse_sort("-reward, step,+component/x , -`odd`")] == [
            ("reward", True),
            ("step", False),
            ("component/x", False),
            ("odd", True),
        ]

    @pytest.mark.parametrize("text", ["", ",", "reward,", "-", "reward,,step"])
    def test_an_empty_key_is_pointed_at(self, text: str) -> None:
        with pytest.raises(QueryError, match="expected a column"):
            parse_sort(text)


class TestSearchBox:
    @pytest.mark.parametrize(
        ("text", "phrases"),
        [
            ("one two", ["one", "two"]),
            ('"one two" three', ["one two", "three"]),
            ('a"b c"d', ['a"b', 'c"d']),
            ('"open end', ["open end"]),
            ('"" " "', []),
        ],
    )
    def test_words_and_phrases(self, text: str, phrases: list[str]) -> None:
        assert [node.phrase for node in parse_search(text)] == phrases

    def test_a_word_counts_once_and_a_hundred_are_the_most(self) -> None:
        assert len(parse_search("again " * 300)) == 1
        with pytest.raises(QueryError, match="more than 100 different words") as error:
            parse_search(" ".join(f"w{i}" for i in range(101)))
        assert error.value.text[error.value.start : error.value.stop] == "w100"
