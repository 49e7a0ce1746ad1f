"""Random queries, as text and as what they mean."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from rollout_traces.store.query.nodes import (
    All,
    Between,
    Compare,
    Constant,
    Has,
    In,
    IsNull,
    Matches,
    Name,
    Node,
    Not,
    QuerySpan,
)
from rollout_traces.store.query.nodes import Any as AnyOf

NUMBERS = ("reward", "n_sampled", "component/format")
TEXTS = ("source", "stop_reason")
TAGS = "flags"

numbers = st.one_of(st.integers(-3, 3), st.sampled_from([0.5, -0.25, 1e-3, 1.5e2]))
texts = st.one_of(
    st.sampled_from(["a", "b", "it's", 'say "x"', "back\\slash", "new\nline", ""]), st.text(max_size=5)
).filter(lambda text: not any(0xD800 <= ord(c) < 0xE000 for c in text) and "\x00" not in text)


NOWHERE = st.just(QuerySpan(0, 0))


def name(text: str) -> Name:
    """A column that stands nowhere in particular."""
    return Name(text, QuerySpan(0, 0))


def constant(value: Any) -> Constant:
    """A value that stands nowhere in particular."""
    return Constant(value, QuerySpan(0, 0))


def tests() -> st.SearchStrategy[Node]:
    """One test of one column."""
    operators = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
    number_columns, text_columns = st.sampled_from(NUMBERS).map(name), st.sampled_from(TEXTS).map(name)
    number, text = numbers.map(constant), texts.map(constant)
    return st.one_of(
        st.builds(Compare, number_columns, operators, number, NOWHERE),
        st.builds(Compare, text_columns, st.sampled_from(["=", "!=", "<"]), text, NOWHERE),
        st.builds(IsNull, st.one_of(number_columns, text_columns)),
        st.builds(Between, number_columns, number, number),
        st.builds(
            In,
            number_columns,
            st.lists(st.one_of(numbers, st.none()).map(constant), min_size=1, max_size=3).map(tuple),
        ),
        st.builds(
            Has, st.just(name(TAGS)), st.sampled_from(["truncated", "repetition", "tied_group"]), NOWHERE
        ),
        st.builds(
            Matches, text_columns, st.just("contains"), st.sampled_from(["a", "IT", "x", "%", "_"]), NOWHERE
        ),
    )


def nodes() -> st.SearchStrategy[Node]:
    """Whole filters."""
    return st.recursive(
        tests(),
        lambda inner: st.one_of(
            st.builds(Not, inner),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: All(tuple(parts))),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: AnyOf(tuple(parts))),
        ),
        max_leaves=6,
    )


def written(node: Node) -> str:
    """A filter as a person writes it, with all its brackets."""
    if isinstance(node, All | AnyOf):
        return "(" + (" AND " if isinstance(node, All) else " or ").join(map(written, node.parts)) + ")"
    if isinstance(node, Not):
        return f"not ({written(node.part)})"
    column = node.term.name if not isinstance(node, Compare) else node.left.name  # type: ignore[union-attr]
    if isinstance(node, IsNull):
        return f"{column} is null"
    if isinstance(node, Compare):
        return f"{column} {node.operator} {value(node.right.value)}"  # type: ignore[union-attr]
    if isinstance(node, Between):
        return f"{column} between {value(node.low.value)} and {value(node.high.value)}"  # type: ignore[union-attr]
    if isinstance(node, In):
        return f"{column} in ({', '.join(value(v.value) for v in node.values)})"  # type: ignore[union-attr]
    if isinstance(node, Has):
        return f"{column} has {value(node.name)}"
    assert isinstance(node, Matches)
    return f"{column} CONTAINS {value(node.pattern)}"


def value(of: Any) -> str:
    """A value as it is written."""
    if of is None:
        return "null"
    if not isinstance(of, str):
        return repr(of)
    escaped = of.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"


def satisfies(row: dict[str, Any], node: Node) -> bool:
    """What a filter means, said once more without SQL."""
    if isinstance(node, All):
        return all(satisfies(row, part) for part in node.parts)
    if isinstance(node, AnyOf):
        return any(satisfies(row, part) for part in node.parts)
    if isinstance(node, Not):
        return not satisfies(row, node.part)
    term = node.left if isinstance(node, Compare) else node.term  # type: ignore[union-attr]
    seen = row.get(term.name)  # type: ignore[union-attr]
    if isinstance(node, IsNull):
        return seen is None
    if isinstance(node, In):
        return seen in [v.value for v in node.values]  # type: ignore[union-attr]
    if seen is None:
        return False
    if isinstance(node, Compare):
        right = node.right.value  # type: ignore[union-attr]
        return {
            "=": seen == right,
            "!=": seen != right,
            "<": seen < right,
            "<=": seen <= right,
            ">": seen > right,
            ">=": seen >= right,
        }[node.operator]
    if isinstance(node, Between):
        return node.low.value <= seen <= node.high.value  # type: ignore
    if isinstance(node, Has):
        return node.name in seen
    assert isinstance(node, Matches)
    return node.pattern.lower() in seen.lower()
