"""Tokens -> nodes, by recursive descent.

query     = or
or        = and { "or" and }
and       = not { "and" not }
not       = "not" not | "(" or ")" | predicate
predicate = "text" ["contains"] string
          | column ( compare value | ["not"] "in" "(" value { "," value } ")" | "is" ["not"] "null"
                   | ["not"] "between" value "and" value | ["not"] ("has" | "contains") string )
sort      = [ "-" | "+" ] column { "," [ "-" | "+" ] column }
"""

from __future__ import annotations

from rollout_traces.store.query.error import QueryError
from rollout_traces.store.query.lexer import Token, tokenize
from rollout_traces.store.query.nodes import (
    All,
    Any,
    Between,
    Compare,
    Contains,
    Has,
    In,
    Name,
    Node,
    Not,
    SortKey,
    Substring,
    Text,
    Value,
)

MAX_DEPTH = 100
"""Brackets and `not`s inside one another."""
MAX_VALUES = 1000
"""Values in one `in (…)`."""
MAX_TESTS = 200
"""Tests in one query; SQLite limits how deep a condition may be."""


def parse_query(text: str) -> Node | None:
    """Parses a filter.

    Args:
        text: the filter; empty for none.

    Returns:
        What it says, None when it is empty.

    Raises:
        QueryError: it cannot be understood.
    """
    parser = _Parser(text)
    if parser.token.kind == "end":
        return None
    node = parser.either()
    if parser.token.kind != "end":
        raise parser.unexpected("'and', 'or' or the end of the query")
    return node


def parse_sort(text: str) -> tuple[SortKey, ...]:
    """Parses sort keys, `-reward, step`.

    Args:
        text: column names with a leading `-` for highest first.

    Raises:
        QueryError: it cannot be understood.
    """
    keys = []
    at = 0
    for part in text.split(","):
        name = part.strip()
        start = at + part.find(name) if name else at
        sign = name[:1] if name[:1] in "+-" else ""
        column = name[len(sign) :].strip().strip("`")
        if not column:
            raise QueryError("expected a column to sort by, such as -reward.", text, start, start + len(name))
        keys.append(SortKey(Name(column, start, start + len(name)), sign == "-"))
        at += len(part) + 1
    return tuple(keys)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokenize(text)
        self._at = 0
        self._depth = 0
        self._tests = 0

    @property
    def token(self) -> Token:
        return self._tokens[self._at]

    def either(self) -> Node:
        parts = [self.both()]
        while self._take("or"):
            parts.append(self.both())
        return parts[0] if len(parts) == 1 else Any(tuple(parts))

    def both(self) -> Node:
        parts = [self.unary()]
        while self._take("and"):
            parts.append(self.unary())
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def unary(self) -> Node:
        opening = self.token
        if not (self._take("not") or self._take("(")):
            return self._predicate()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._wrong(opening, f"more than {MAX_DEPTH} levels deep.")
        if opening.value == "not":
            node: Node = Not(self.unary())
        else:
            node = self.either()
            self._expect(")", "')'")
        self._depth -= 1
        return node

    def unexpected(self, expected: str) -> QueryError:
        token = self.token
        seen = "the query ends" if token.kind == "end" else f"found {self._text[token.start : token.stop]!r}"
        return self._wrong(token, f"{seen} where {expected} was expected.")

    def _wrong(self, token: Token, what: str) -> QueryError:
        return QueryError(what, self._text, token.start, token.stop)

    def _predicate(self) -> Node:
        self._tests += 1
        token = self.token
        if self._tests > MAX_TESTS:
            raise self._wrong(token, f"more than {MAX_TESTS} tests.")
        if self._take("text"):
            kind = Substring if self._take("contains") else Text
            place = self.token
            return kind(self._string("a text in quotes to search for"), place.start, place.stop)
        if token.kind != "name":
            raise self.unexpected("a column, such as reward,")
        self._at += 1
        column = Name(str(token.value), token.start, token.stop)
        if self._take("is"):
            negated = self._take("not")
            self._expect("null", "'null' or 'not null'")
            return Compare(column, "!=" if negated else "=", None)
        negated = self._take("not")
        node = self._test(column, negated)
        return Not(node) if negated else node

    def _test(self, column: Name, negated: bool) -> Node:
        if self._take("in"):
            return In(column, self._values())
        if self._take("between"):
            low = self._value()
            self._expect("and", "'and'")
            return Between(column, low, self._value())
        if self._take("has"):
            return Has(column, self._string("a name in quotes, such as 'truncated',"))
        if self._take("contains"):
            return Contains(column, self._string("a text in quotes"))
        for operator in ("=", "!=", "<", "<=", ">", ">="):
            if not negated and self._take(operator):
                return self._compare(column, operator)
        comparisons = "" if negated else "=, !=, <, <=, >, >=, is, "
        raise self.unexpected(f"one of {comparisons}in, between, has, contains")

    def _compare(self, column: Name, operator: str) -> Node:
        token, value = self.token, self._value()
        if value is None and operator not in ("=", "!="):
            raise self._wrong(
                token, f"null cannot be compared with {operator}; use 'is null' or 'is not null'."
            )
        return Compare(column, operator, value)  # type: ignore[arg-type]

    def _values(self) -> tuple[Value, ...]:
        self._expect("(", "'('")
        values = [self._value()]
        while self._take(","):
            values.append(self._value())
        if len(values) > MAX_VALUES:
            raise self.unexpected(f"at most {MAX_VALUES} values")
        self._expect(")", "',' or ')'")
        return tuple(values)

    def _value(self) -> Value:
        token = self.token
        if token.kind in ("number", "string"):
            self._at += 1
            return token.value
        for word, value in (("true", 1), ("false", 0), ("null", None)):
            if self._take(word):
                return value
        hint = f" (texts stand in quotes: '{token.value}')" if token.kind == "name" else ""
        raise self.unexpected(f"a number or a text in quotes{hint}")

    def _string(self, expected: str) -> str:
        token = self.token
        if token.kind != "string":
            raise self.unexpected(expected)
        self._at += 1
        return str(token.value)

    def _take(self, value: str) -> bool:
        if self.token.kind in ("word", "symbol") and self.token.value == value:
            self._at += 1
            return True
        return False

    def _expect(self, value: str, expected: str) -> None:
        if not self._take(value):
            raise self.unexpected(expected)
