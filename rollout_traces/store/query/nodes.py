"""The parts of a query as plain data. Every node knows where it stands in the query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Value = str | int | float | None
Operator = Literal["=", "!=", "<", "<=", ">", ">="]
Sign = Literal["+", "-", "*", "/", "%"]


@dataclass(frozen=True)
class QuerySpan:
    """The place of something in a query.

    Attributes:
        start: its first character.
        stop: one past its last.
    """

    start: int
    stop: int


@dataclass(frozen=True)
class Name:
    """A column, a flag, or an unquoted text: which of them, only the columns say.

    Attributes:
        span: where it stands.
        quoted: it stands in backquotes, so it is a column.
    """

    name: str
    span: QuerySpan
    quoted: bool = False


@dataclass(frozen=True)
class Constant:
    """A number, a text, true, false or null."""

    value: Value
    span: QuerySpan


@dataclass(frozen=True)
class Arithmetic:
    """`left sign right`."""

    left: Term
    sign: Sign
    right: Term
    span: QuerySpan


@dataclass(frozen=True)
class Call:
    """`function(a, b, …)`."""

    function: str
    arguments: tuple[Term, ...]
    span: QuerySpan


Term = Name | Constant | Arithmetic | Call
"""A node that has a value."""


@dataclass(frozen=True)
class Bare:
    """A term alone: `success`, `truncated`."""

    term: Term
    span: QuerySpan


@dataclass(frozen=True)
class Compare:
    """`left operator right`."""

    left: Term
    operator: Operator
    right: Term
    span: QuerySpan


@dataclass(frozen=True)
class IsNull:
    """`term is null`."""

    term: Term
    span: QuerySpan


@dataclass(frozen=True)
class IsEmpty:
    """`term is empty`: unknown, a text without characters, or a list without names."""

    term: Term
    span: QuerySpan


@dataclass(frozen=True)
class Between:
    """`term between low and high`, both included."""

    term: Term
    low: Term
    high: Term
    span: QuerySpan


@dataclass(frozen=True)
class In:
    """`term in (a, b, …)`."""

    term: Term
    values: tuple[Term, ...]
    span: QuerySpan


@dataclass(frozen=True)
class Has:
    """`column has 'name'`: a list of names holds this one."""

    term: Term
    name: str
    span: QuerySpan


@dataclass(frozen=True)
class Matches:
    """`term contains 'piece'`, `term like 'pattern'` or `term ~ 'expression'`."""

    term: Term
    how: Literal["contains", "like", "~"]
    pattern: str
    span: QuerySpan


@dataclass(frozen=True)
class Text:
    """`text 'phrase'`, `text contains 'piece'` or `text ~ 'expression'`: the conversation holds this.

    Attributes:
        pattern: what is looked for.
        span: where it stands.
        how: as words, which are looked up; as a piece of text in any case, or as a regular expression, for which the
            texts themselves are read.
        part: of the whole conversation, or of its first user or last assistant message.
    """

    pattern: str
    span: QuerySpan
    how: Literal["words", "contains", "~"] = "words"
    part: Literal["text", "prompt", "reply"] = "text"


@dataclass(frozen=True)
class Not:
    """`not part`."""

    part: Node


@dataclass(frozen=True)
class All:
    """`a and b and …`."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Any:
    """`a or b or …`."""

    parts: tuple[Node, ...]


Test = Bare | Compare | IsNull | IsEmpty | Between | In | Has | Matches
Node = Test | Text | Not | All | Any


@dataclass(frozen=True)
class SortKey:
    """One key of a sort; unknown values come last either way.

    Attributes:
        term: what is sorted by.
        descending: highest first.
    """

    term: Term
    descending: bool


@dataclass(frozen=True)
class Query:
    """A filter and what follows it.

    Attributes:
        node: the filter; None for all rows.
        order: sort keys of `order by`; empty without one.
    """

    node: Node | None
    order: tuple[SortKey, ...] = ()
