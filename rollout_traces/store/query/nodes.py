"""The parts of a query as plain data, tokens and nodes. Each knows where it stands in the query."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from rollout_traces.errors import QueryError
from rollout_traces.model.plain_values import INT64_MAX

Value = str | int | float | None
COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")
SIGNS = ("+", "-", "*", "/", "%")


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
class Call:
    """`function(a, b, …)`, or `a sign b`."""

    function: str
    arguments: tuple[Term, ...]
    span: QuerySpan


Term = Name | Constant | Call
"""A node that has a value."""


@dataclass(frozen=True)
class Condition:
    """A test of a term: `success`, `reward < 0.5`, `step between 1 and 2`, `flags has 'truncated'`.

    Attributes:
        term: what is tested.
        how: a comparison, `is null`, `is empty`, `between`, `in`, `has`, `contains`, `like` or `~`; nothing where the
            term stands alone.
        values: what it is tested with.
    """

    term: Term
    how: str = ""
    values: tuple[Term, ...] = ()


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


Node = Condition | Text | Not | All | Any


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


TokenKind = Literal["name", "quoted", "word", "number", "string", "symbol", "end"]

KEYWORDS = ("and", "or", "not", "in", "between", "is", "null", "has", "contains", "text", "true", "false")
"""Words of the language, any case; as a column's name they need backquotes."""
LONGEST = 1 << 16
"""Characters of a query."""
SHOWN = 80
"""Characters of what is too long that a message repeats."""

_PATTERNS = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
  | (?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|“[^“”]*”)
  | (?P<quoted>`(?:[^`]|``)+`)
  | (?P<pasted>[a-z]+/“[^“”]+”)
  | (?P<name>[^\W\d][\w.]*(?:/[\w.\-:@+]*[\w:@])*)
  | (?P<symbol><=|>=|==|!=|<>|&&|\|\||!~|[!~<>=(),\[\]+\-*/%])
    """,
    re.VERBOSE | re.DOTALL,
)
_WITHOUT_QUOTES = str.maketrans("", "", "“”")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_SAME = {"==": "=", "<>": "!=", "&&": "and", "||": "or", "!": "not"}


@dataclass(frozen=True)
class Token:
    """One token.

    Attributes:
        kind: `name`, `quoted` (a name in backquotes), `word` (of the language), `number`, `string`,
            `symbol` or `end`.
        value: the name, the word in lower case, the number, the string's text, the symbol.
        span: where it stands in the query.
    """

    kind: TokenKind
    value: str | int | float
    span: QuerySpan


def tokenize(text: str) -> list[Token]:
    """Cuts a query into tokens, the last of kind `end`.

    Raises:
        QueryError: a character that begins no token, a string without its end, or a query that is too long.
    """
    if len(text) > LONGEST:
        raise QueryError(f"{len(text)} characters; a query has at most {LONGEST}.", text[:SHOWN], 0, SHOWN)
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        match = _PATTERNS.match(text, at)
        if match is None:
            raise _unreadable(text, at)
        if match.lastgroup != "space":
            tokens.append(_token(match))
        at = match.end()
    return [*tokens, Token("end", "", QuerySpan(len(text), len(text)))]


def _token(match: re.Match[str]) -> Token:
    found, span = match.group(), QuerySpan(*match.span())
    if match.lastgroup == "number":
        return Token("number", _number(found), span)
    if match.lastgroup == "string":
        return Token("string", found[1:-1] if found[0] == "“" else _unescape(found[1:-1]), span)
    if match.lastgroup == "quoted":
        return Token("quoted", found[1:-1].replace("``", "`"), span)
    if match.lastgroup == "pasted":  # as sentences name a column: component/“judge”
        return Token("quoted", found.translate(_WITHOUT_QUOTES), span)
    if match.lastgroup == "symbol":
        same = _SAME.get(found, found)
        return Token("word" if same.isalpha() else "symbol", same, span)
    if found.lower() in KEYWORDS:
        return Token("word", found.lower(), span)
    return Token("name", found, span)


def _number(text: str) -> int | float:
    try:
        value = int(text)
    except ValueError:
        return float(text)
    return value if value <= INT64_MAX else float(text)


def literal(text: str) -> str:
    """A text as a query holds it, in quotes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _unescape(text: str) -> str:
    """A backslash keeps a quote or a backslash, makes \\n, \\t and \\r, and stays before anything else."""
    return re.sub(
        r"\\(.)",
        lambda m: _ESCAPES.get(m[1], m[1] if m[1] in "'\"\\" else m[0]),
        text,
        flags=re.DOTALL,
    )


def _unreadable(text: str, at: int) -> QueryError:
    if text[at] in "'\"`":
        return QueryError(f"this {text[at]} opens a text that never ends.", text, at, len(text))
    stop = at + 1
    while stop < len(text) and not text[stop].isspace() and text[stop] not in "()":
        stop += 1
    return QueryError(f"{text[at:stop]!r} cannot be read.", text, at, stop)
