"""Random queries, as text and as what they mean."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from rollout_traces.store.query.nodes import (
    COMPARISONS,
    All,
    Condition,
    Constant,
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


def name(text: str) -> Name:
    """A column that stands nowhere in particular."""
    return Name(text, QuerySpan(0, 0))


def constant(value: Any) -> Constant:
    """A value that stands nowhere in particular."""
    return Constant(value, QuerySpan(0, 0))


def tests() -> st.SearchStrategy[Node]:
    """One test of one column."""
    number_columns, text_columns = st.sampled_from(NUMBERS).map(name), st.sampled_from(TEXTS).map(name)
    either = st.one_of(number_columns, text_columns)
    number, text, nothing = numbers.map(constant), texts.map(constant), st.just(())
    flag = st.sampled_from(["truncated", "repetition", "tied_group"]).map(constant)
    piece = st.sampled_from(["a", "IT", "x", "%", "_"]).map(constant)
    listed = st.lists(st.one_of(numbers, st.none()).map(constant), min_size=1, max_size=3).map(tuple)
    return st.one_of(
        st.builds(Condition, number_columns, st.sampled_from(COMPARISONS), st.tuples(number)),
        st.builds(Condition, text_columns, st.sampled_from(["=", "!=", "<"]), st.tuples(text)),
        st.builds(Condition, either, st.just("is null"), nothing),
        st.builds(Condition, number_columns, st.just("between"), st.tuples(number, number)),
        st.builds(Condition, number_columns, st.just("in"), listed),
        st.builds(Condition, st.just(name(TAGS)), st.just("has"), st.tuples(flag)),
        st.builds(Condition, text_columns, st.just("contains"), st.tuples(piece)),
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
    assert isinstance(node, Condition)
    column, values = node.term.name, [value(each.value) for each in node.values]  # type: ignore[union-attr]
    if node.how == "is null":
        return f"{column} is null"
    if node.how == "in":
        return f"{column} in ({', '.join(values)})"
    return f"{column} {node.how} {' and '.join(values)}"


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
    assert isinstance(node, Condition)
    seen = row.get(node.term.name)  # type: ignore[union-attr]
    values = [each.value for each in node.values]  # type: ignore[union-attr]
    if node.how == "is null":
        return seen is None
    if node.how == "in":
        return seen in values
    if seen is None:
        return False
    if node.how == "between":
        return values[0] <= seen <= values[1]
    if node.how == "has":
        return values[0] in seen
    if node.how == "contains":
        return values[0].lower() in seen.lower()
    right = values[0]
    return {
        "=": seen == right,
        "!=": seen != right,
        "<": seen < right,
        "<=": seen <= right,
        ">": seen > right,
        ">=": seen >= right,
    }[node.how]
