"""Tokens -> nodes, by recursive descent.

query     = [ or ] [ "order" "by" sort ]
or        = and { ( "or" | "||" ) and }
and       = not { ( "and" | "&&" ) not }
not       = ( "not" | "!" ) not | test
test      = "text" ( string | "contains" string | "~" string )
          | sum [ compare sum | [ "not" ] "in" ( list | column ) | "is" [ "not" ] ( "null" | "empty" )
                | [ "not" ] "between" sum "and" sum | [ "not" ] "has" ( string | name )
                | [ "not" ] ( "contains" | "like" ) string | ( "~" | "!~" ) string ]
          | "(" or ")"
list      = "(" sum { "," sum } ")" | "[" sum { "," sum } "]"
sum       = product { ( "+" | "-" ) product }
product   = signed { ( "*" | "/" | "%" ) signed }
signed    = [ "-" ] ( number | string | "true" | "false" | "null" | name [ "(" sum { "," sum } ")" ] | "(" sum ")" )
sort      = [ "-" | "+" ] sum [ "asc" | "desc" ] { "," … }
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, NoReturn

from rollout_traces.errors import QueryError
from rollout_traces.store.query.nodes import (
    COMPARISONS,
    SHOWN,
    All,
    Any,
    Call,
    Condition,
    Constant,
    Name,
    Node,
    Not,
    Query,
    QuerySpan,
    SortKey,
    Term,
    Text,
    Token,
    tokenize,
)

MAX_DEPTH = 100
"""Brackets and `not`s inside one another."""
MAX_VALUES = 1000
"""Values in one list."""
MAX_TESTS = 200
"""Tests in one query."""
MAX_KEYS = 32
"""Keys of one sort."""

MOST_WORDS = 100
"""Words and phrases in one search; each of them is looked up."""
MOST_CHARACTERS = 2_000
"""Characters of one search."""

_CHUNKS = re.compile(r'"([^"]*)"?|(\S+)')


@lru_cache
def parse_query(text: str) -> Query:
    """Parses a filter, with or without an `order by`.

    Args:
        text: the filter; empty for none.

    Raises:
        QueryError: it cannot be understood.
    """
    parser = _Parser(text)
    node = None if parser.token.kind == "end" or parser.at_order() else parser.either()
    order: tuple[SortKey, ...] = ()
    if parser.at_order():
        parser.skip_order()
        order = parser.sort()
    if parser.token.kind != "end":
        parser.refuse("'and', 'or', 'order by' or the end of the query")
    return Query(node, order)


@lru_cache
def parse_sort(text: str) -> tuple[SortKey, ...]:
    """Parses sort keys, `-reward, step` or `reward desc, step`.

    Args:
        text: the keys; a leading `-` means highest first.

    Raises:
        QueryError: it cannot be understood.
    """
    parser = _Parser(text)
    keys = parser.sort()
    if parser.token.kind != "end":
        parser.refuse("',' or the end of the sort")
    return keys


def parse_search(text: str) -> list[Text]:
    """The searches that must all hit: one for every different word or quoted phrase.

    Args:
        text: as typed; a quote that is not closed reaches to the end.

    Raises:
        QueryError: it is longer than MOST_CHARACTERS, or has more than MOST_WORDS.
    """
    if len(text) > MOST_CHARACTERS:
        what = f"a search of {len(text):,} characters; at most {MOST_CHARACTERS:,}. Look for a part of it."
        raise QueryError(what, text[:SHOWN], 0, SHOWN)
    found: dict[str, Text] = {}
    for match in _CHUNKS.finditer(text):
        chunk = (match[1] if match[1] is not None else match[2]).strip()
        if chunk and chunk not in found:
            if len(found) == MOST_WORDS:
                raise QueryError(
                    f"more than {MOST_WORDS} different words; put what stands together in quotes.",
                    text,
                    match.start(),
                    match.end(),
                )
            found[chunk] = Text(chunk, QuerySpan(match.start(), match.end()))
    return list(found.values())


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

    def at_order(self) -> bool:
        following = self._tokens[min(self._at + 1, len(self._tokens) - 1)]
        return self._is_word(self.token, "order") and self._is_word(following, "by")

    def skip_order(self) -> None:
        self._at += 2

    def sort(self) -> tuple[SortKey, ...]:
        keys = [self._sort_key()]
        while self._take(","):
            keys.append(self._sort_key())
            if len(keys) > MAX_KEYS:
                raise self._wrong(self.token, f"more than {MAX_KEYS} sort keys.")
        return tuple(keys)

    def _sort_key(self) -> SortKey:
        descending = self._take("-")
        if not descending:
            self._take("+")
        if self.token.kind not in ("name", "quoted") and self.token.value != "(":
            self.refuse("a column to sort by, such as -reward,")
        term = self._sum()
        if self._is_word(self.token, "desc") or self._is_word(self.token, "asc"):
            descending = descending != self._is_word(self.token, "desc")
            self._at += 1
        return SortKey(term, descending)

    def either(self) -> Node:
        parts = [self._both()]
        while self._take("or"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else Any(tuple(parts))

    def _both(self) -> Node:
        parts = [self._unary()]
        while self._take("and"):
            parts.append(self._unary())
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _unary(self) -> Node:
        opening = self.token
        if self._take("not"):
            self._deeper(opening)
            node: Node = Not(self._unary())
            self._depth -= 1
            return node
        if opening.value == "(" and opening.kind == "symbol":
            return self._bracket(opening)
        return self._test()

    def _bracket(self, opening: Token) -> Node:
        """A bracket around a condition; where it turns out to hold a value, a test that begins with it."""
        self._deeper(opening)
        self._at += 1
        node = self.either()
        self._expect(")", "')'")
        self._depth -= 1
        if isinstance(node, Condition) and not node.how and not self._ends_a_test():
            return self._tested(self._sum(first=node.term))
        return node

    def _test(self) -> Node:
        self._tests += 1
        token = self.token
        if self._tests > MAX_TESTS:
            raise self._wrong(token, f"more than {MAX_TESTS} tests.")
        if self._take("text"):
            return self._search()
        if token.kind in ("word", "end") and token.value not in ("true", "false", "null"):
            self.refuse("a column, such as reward,")
        term = self._sum(expected="a column, such as reward,")
        return self._tested(term)

    def _search(self) -> Node:
        how: Literal["contains", "~", "words"] = (
            "contains" if self._take("contains") else "~" if self._take("~") else "words"
        )
        pattern = self._constant(
            "a regular expression in quotes" if how == "~" else "a text in quotes to search for"
        )
        return Text(str(pattern.value), pattern.span, how)

    def _tested(self, term: Term) -> Node:
        for operator in COMPARISONS:
            if self._take(operator):
                return self._compared(term, operator)
        if self._take("is"):
            return self._is(term)
        if self.token.kind == "symbol" and self.token.value in ("~", "!~"):
            negated = self._take("!~") or not self._take("~")
            node = _looked_into(term, "~", self._constant("a regular expression in quotes"))
            return Not(node) if negated else node
        before = self._at
        negated = self._take("not")
        found = self._worded(term)
        if found is not None:
            return Not(found) if negated else found
        if negated:
            self.refuse("one of in, between, has, contains, like")
        self._at = before
        if self._ends_a_test():
            return Condition(term)
        self.refuse("one of =, !=, <, <=, >, >=, is, in, between, has, contains, like, ~")

    def _ends_a_test(self) -> bool:
        token = self.token
        return token.kind == "end" or token.value in ("and", "or", ")") or self.at_order()

    def _compared(self, term: Term, operator: str) -> Node:
        token, right = self.token, self._sum()
        if isinstance(right, Constant) and right.value is None:
            if operator not in ("=", "!="):
                raise self._wrong(
                    token, f"null cannot be compared with {operator}; use 'is null' or 'is not null'."
                )
            node = Condition(term, "is null")
            return node if operator == "=" else Not(node)
        return Condition(term, operator, (right,))

    def _is(self, term: Term) -> Node:
        negated = self._take("not")
        if self._is_word(self.token, "empty"):
            self._at += 1
            node = Condition(term, "is empty")
        else:
            self._expect(
                "null", "'null' or 'empty'" if negated else "'null', 'empty', 'not null' or 'not empty'"
            )
            node = Condition(term, "is null")
        return Not(node) if negated else node

    def _worded(self, term: Term) -> Node | None:
        """Reads what follows a term as a word: `in`, `between`, `has`, `contains`, `like`."""
        if self._take("in"):
            return self._in(term)
        if self._take("between"):
            return self._between(term)
        if self._take("has"):
            return Condition(term, "has", (self._text_or_name("a name, such as 'truncated',"),))
        if self._take("contains"):
            return _looked_into(term, "contains", self._text_or_name("a text in quotes"))
        if self._is_word(self.token, "like"):
            self._at += 1
            return Condition(term, "like", (self._constant("a text in quotes, % for anything"),))
        return None

    def _in(self, term: Term) -> Node:
        opening = self.token
        if opening.value == "[" and opening.kind == "symbol":
            values = self._values("[", "]")
            numbers = [v for v in values if not isinstance(v, Constant) or isinstance(v.value, int | float)]
            if len(values) == 2 and len(numbers) == 2:
                return Condition(term, "between", values)
            return Condition(term, "in", values)
        if opening.kind in ("name", "quoted") and isinstance(term, Constant) and isinstance(term.value, str):
            self._at += 1
            return Condition(self._name(opening), "has", (term,))
        return Condition(term, "in", self._values("(", ")"))

    def _between(self, term: Term) -> Node:
        if self.token.value == "[" and self.token.kind == "symbol":
            opening, values = self.token, self._values("[", "]")
            if len(values) != 2:
                raise self._wrong(opening, f"{len(values)} values; a range has two, [40, 60].")
            return Condition(term, "between", values)
        low = self._sum()
        self._expect("and", "'and'")
        return Condition(term, "between", (low, self._sum()))

    def _values(self, opening: str, closing: str) -> tuple[Term, ...]:
        self._expect(opening, f"{opening!r}")
        values = [self._sum()]
        while self._take(","):
            values.append(self._sum())
            if len(values) > MAX_VALUES:
                self.refuse(f"at most {MAX_VALUES} values")
        self._expect(closing, f"',' or {closing!r}")
        return tuple(values)

    def _sum(self, expected: str = "a number or a text in quotes", first: Term | None = None) -> Term:
        left = self._product(expected, first)
        while self.token.kind == "symbol" and self.token.value in ("+", "-"):
            left = self._arithmetic(left, self._product)
        return left

    def _product(self, expected: str = "a number or a column", first: Term | None = None) -> Term:
        left = first or self._signed(expected)
        while self.token.kind == "symbol" and self.token.value in ("*", "/", "%"):
            left = self._arithmetic(left, self._signed)
        return left

    def _arithmetic(self, left: Term, right_of: Callable[[str], Term]) -> Term:
        self._tests += 1
        if self._tests > MAX_TESTS:
            raise self._wrong(self.token, f"more than {MAX_TESTS} tests and sums.")
        sign = str(self.token.value)
        self._at += 1
        right = right_of("a number or a column")
        return Call(sign, (left, right), QuerySpan(left.span.start, right.span.stop))

    def _signed(self, expected: str) -> Term:
        opening = self.token
        if self._take("-"):
            self._deeper(opening)
            term = self._signed(expected)
            self._depth -= 1
            span = QuerySpan(opening.span.start, term.span.stop)
            if isinstance(term, Constant) and isinstance(term.value, int | float):
                return Constant(-term.value, span)
            return Call("-", (Constant(0, opening.span), term), span)
        if self._take("+"):
            return self._signed(expected)
        if opening.kind == "symbol" and self._take("("):
            self._deeper(opening)
            term = self._sum()
            self._expect(")", "')'")
            self._depth -= 1
            return term
        return self._primary(expected)

    def _primary(self, expected: str) -> Term:
        token = self.token
        if token.kind in ("number", "string"):
            self._at += 1
            return Constant(token.value, token.span)
        for word, value in (("true", 1), ("false", 0), ("null", None)):
            if self._take(word):
                return Constant(value, token.span)
        if token.kind not in ("name", "quoted"):
            self.refuse(expected)
        self._at += 1
        if token.kind == "name" and self.token.value == "(" and self.token.kind == "symbol":
            self._deeper(token)
            arguments = self._values("(", ")")
            self._depth -= 1
            return Call(str(token.value).lower(), arguments, token.span)
        return self._name(token)

    def _name(self, token: Token) -> Name:
        return Name(str(token.value), token.span, token.kind == "quoted")

    def _text_or_name(self, expected: str) -> Constant:
        return self._constant(expected, "name")

    def _constant(self, expected: str, *kinds: str) -> Constant:
        token = self.token
        if token.kind not in ("string", *kinds):
            self.refuse(expected)
        self._at += 1
        return Constant(token.value, token.span)

    def _deeper(self, opening: Token) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._wrong(opening, f"more than {MAX_DEPTH} levels deep.")

    def refuse(self, expected: str) -> NoReturn:
        token = self.token
        seen = (
            "the query ends"
            if token.kind == "end"
            else f"found {self._text[token.span.start : token.span.stop]!r}"
        )
        raise self._wrong(token, f"{seen} where {expected} was expected.")

    def _wrong(self, token: Token, what: str) -> QueryError:
        return QueryError(what, self._text, token.span.start, token.span.stop)

    def _is_word(self, token: Token, word: str) -> bool:
        return token.kind == "name" and str(token.value).lower() == word

    def _take(self, value: str) -> bool:
        if self.token.kind in ("word", "symbol") and self.token.value == value:
            self._at += 1
            return True
        return False

    def _expect(self, value: str, expected: str) -> None:
        if not self._take(value):
            self.refuse(expected)


def _looked_into(term: Term, how: Literal["contains", "~"], pattern: Constant) -> Node:
    """A look into a column; into the whole message where its column holds the first words alone."""
    if isinstance(term, Name) and term.name in ("prompt", "reply"):
        return Text(str(pattern.value), pattern.span, how, term.name)  # type: ignore[arg-type]
    return Condition(term, how, (pattern,))
