from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_traces.errors import QueryError
from rollout_traces.store.query.nodes import All, Condition, Name, Not, literal, tokenize
from rollout_traces.store.query.nodes import Any as AnyOf
from rollout_traces.store.query.parser import parse_query, parse_search, parse_sort
from tests.store.query.strategies import nodes, written


def said(node) -> str:
    """A node without the places of its parts, as brackets."""
    if node is None or isinstance(node, str | int | float):
        return repr(node)
    if isinstance(node, tuple):
        return " ".join(map(said, node))
    if isinstance(node, Name):
        return node.name
    if isinstance(node, Condition):
        return f"({' '.join(filter(None, (said(node.term), node.how, said(node.values))))})"
    fields = [said(value) for key, value in vars(node).items() if key not in ("span", "quoted")]
    return f"({type(node).__name__} {' '.join(fields)})"


@given(st.text() | st.text("\\'\"n\x01\n"))
def test_a_text_as_a_query_holds_it_is_read_as_that_text(text):
    assert [token.value for token in tokenize(literal(text))][:-1] == [text]


class TestWhatIsUnderstood:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("reward < 0.5", "(reward < (Constant 0.5))"),
            ("reward<.5", "(reward < (Constant 0.5))"),
            ("reward == -1e3", "(reward = (Constant -1000.0))"),
            ("reward <> 1", "(reward != (Constant 1))"),
            ("trained = true", "(trained = (Constant 1))"),
            ("reward is null", "(reward is null)"),
            ("reward != null", "(Not (reward is null))"),
            ("reward is not null", "(Not (reward is null))"),
            ("flags is empty", "(flags is empty)"),
            ("flags is not empty", "(Not (flags is empty))"),
            ("flags has 'truncated'", "(flags has (Constant 'truncated'))"),
            ('flags HAS "truncated"', "(flags has (Constant 'truncated'))"),
            ("flags has truncated", "(flags has (Constant 'truncated'))"),
            ("'truncated' in flags", "(flags has (Constant 'truncated'))"),
            ("flags not has 'x'", "(Not (flags has (Constant 'x')))"),
            ("step in (1, 2, null)", "(step in (Constant 1) (Constant 2) (Constant None))"),
            ("step not in (1)", "(Not (step in (Constant 1)))"),
            ("step in [40, 60]", "(step between (Constant 40) (Constant 60))"),
            ("step in [1, 2, 3]", "(step in (Constant 1) (Constant 2) (Constant 3))"),
            ("source in ['a', 'b']", "(source in (Constant 'a') (Constant 'b'))"),
            ("step between 1 and 2", "(step between (Constant 1) (Constant 2))"),
            ("step between [1, 2]", "(step between (Constant 1) (Constant 2))"),
            ("component/format-v2 >= 1", "(component/format-v2 >= (Constant 1))"),
            ("`odd name!` = 1", "(odd name! = (Constant 1))"),
            ("`text` = 1", "(text = (Constant 1))"),
            ("text 'a b'", "(Text 'a b' 'words' 'text')"),
            ("text contains 'a'", "(Text 'a' 'contains' 'text')"),
            ("text ~ 'a+'", "(Text 'a+' '~' 'text')"),
            ("reply like '%a'", "(reply like (Constant '%a'))"),
            ("source !~ 'a'", "(Not (source ~ (Constant 'a')))"),
            (r"source = 'it\'s \\ \n \d'", '(source = (Constant "it\'s \\\\ \\n \\\\d"))'),
            ("größe > 1", "(größe > (Constant 1))"),
            ("success", "(success)"),
            ("!success && truncated", "(All (Not (success)) (truncated))"),
            ("a = 1 || b = 2", "(Any (a = (Constant 1)) (b = (Constant 2)))"),
            (
                "a + b * 2 > 1",
                "((Call '+' a (Call '*' b (Constant 2))) > (Constant 1))",
            ),
            (
                "(a + b) * 2 > 1",
                "((Call '*' (Call '+' a b) (Constant 2)) > (Constant 1))",
            ),
            ("step-1 = 4", "((Call '-' step (Constant 1)) = (Constant 4))"),
            ("abs(x) < max(y, 2)", "((Call 'abs' x) < (Call 'max' y (Constant 2)))"),
            ("0 < reward", "((Constant 0) < reward)"),
        ],
    )
    def test_one_test(self, text: str, expected: str) -> None:
        assert said(parse_query(text).node) == expected

    def test_and_binds_tighter_than_or(self) -> None:
        found = parse_query("a = 1 or b = 1 and c = 1").node
        assert isinstance(found, AnyOf) and isinstance(found.parts[1], All)

    def test_not_binds_to_the_next_test(self) -> None:
        found = parse_query("not a = 1 and b = 1").node
        assert isinstance(found, All) and isinstance(found.parts[0], Not)

    @pytest.mark.parametrize("text", ["", "  ", "\n"])
    def test_nothing_is_no_filter(self, text: str) -> None:
        assert parse_query(text).node is None

    @settings(max_examples=300, deadline=None)
    @given(nodes())
    def test_what_is_written_is_what_is_read(self, node) -> None:
        assert said(parse_query(written(node)).node) == said(node)

    def test_an_order_follows_the_filter(self) -> None:
        found = parse_query("reward > 0 order by step desc, -abs(advantage), uid")
        assert isinstance(found.node, Condition)
        assert [(said(key.term), key.descending) for key in found.order] == [
            ("step", True),
            ("(Call 'abs' advantage)", True),
            ("uid", False),
        ]

    def test_an_order_may_stand_alone(self) -> None:
        assert parse_query("order by -reward").node is None

    def test_places_reach_from_the_first_to_the_last_character(self) -> None:
        node = parse_query("  reward is null").node
        assert isinstance(node, Condition) and (node.term.span.start, node.term.span.stop) == (2, 8)


class TestNested:
    def test_deep_brackets_around_values_are_read_once(self) -> None:
        text = "(" * 90 + "reward" + " + 1)" * 90 + " > 1"
        assert isinstance(parse_query(text).node, Condition)


class TestErrorsPointAtTheToken:
    @pytest.mark.parametrize(
        ("text", "token", "said"),
        [
            ("reward <", "", "the query ends where a number"),
            ("reward < 1 reward > 2", "reward", "'and', 'or', 'order by' or the end"),
            ("< 1", "<", "a column"),
            ("reward 5", "5", "one of =, !=, <"),
            ("reward ~ 5", "5", "a regular expression in quotes"),
            ("reward ^ 5", "^", "cannot be read"),
            ("reward < 1; drop table x", ";", "cannot be read"),
            ("source = 'abc", "'abc", "never ends"),
            ("(reward < 1", "", "')'"),
            ("reward < 1)", ")", "the end of the query"),
            ("flags has 5", "5", "a name, such as"),
            ("step in 1, 2", "1", "'('"),
            ("step in (1 2)", "2", "',' or ')'"),
            ("step between 1 or 2", "or", "'and'"),
            ("reward < null", "null", "use 'is null'"),
            ("text foo", "foo", "a text in quotes"),
            ("reward is 5", "5", "'null', 'empty'"),
            ("a.b/c d", "d", "one of"),
            ("reward < 1.2.3", "1.2.3", "cannot be read"),
            ("x not = 1", "=", "one of in, between, has, contains, like"),
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
                        "+",
                        "-",
                        "[",
                        "]",
                        "!",
                        "&&",
                        "~",
                        "like",
                        "order by",
                        "abs(",
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
        edges = [edge for token in tokens for edge in (token.span.start, token.span.stop)]
        assert edges == sorted(edges) and tokens[-1].kind == "end"


class TestSort:
    def test_keys_in_order(self) -> None:
        assert [(k.term.name, k.descending) for k in parse_sort("-reward, step,+component/x , -`odd`")] == [
            ("reward", True),
            ("step", False),
            ("component/x", False),
            ("odd", True),
        ]

    @pytest.mark.parametrize("text", ["", ",", "reward,", "-", "reward,,step", "1"])
    def test_an_empty_key_is_pointed_at(self, text: str) -> None:
        with pytest.raises(QueryError, match="a column to sort by"):
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
        assert [node.pattern for node in parse_search(text)] == phrases

    def test_a_word_counts_once_and_a_hundred_are_the_most(self) -> None:
        assert len(parse_search("again " * 300)) == 1
        with pytest.raises(QueryError, match="more than 100 different words") as error:
            parse_search(" ".join(f"w{i}" for i in range(101)))
        assert error.value.text[error.value.start : error.value.stop] == "w100"
