"""Nodes -> SQL with parameters, and the names that a query can use: columns, flags, figures of a rollout's group.

No text of a query ever becomes part of a statement.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NoReturn

from rollout_traces.errors import QueryError
from rollout_traces.model.plain_values import INFINITE
from rollout_traces.store.columns import INTERNAL, Kind, quoted
from rollout_traces.store.query.nodes import (
    COMPARISONS,
    SIGNS,
    All,
    Any,
    Call,
    Condition,
    Constant,
    Name,
    Node,
    Not,
    QuerySpan,
    SortKey,
    Term,
    Text,
    Value,
)

ColumnKind = Literal["number", "text", "tags", "mixed"]
ALIASES = {
    "tool": "tool_names",
    "tools": "tool_names",
    "error": "error_signatures",
    "label": "labels",
    "note": "notes",
}
"""Shorter names that people type."""
GROUP = {
    "group.mean": ("group_mean", "mean reward of the rollout's group"),
    "group.std": ("group_std", "population standard deviation of the group's rewards"),
    "group.size": ("group_rows", "rollouts in the group"),
    "group.tied": ("group_tied", "1 where all rewards of the group are known and equal, with two or more"),
    "group.min": ("group_min", "lowest reward of the group"),
    "group.max": ("group_max", "highest reward of the group"),
}
"""Name in a query -> column of the group's figures, and what it means."""
ANSWER = ("answer", "parsed_answer")
"""Columns that hold the answer; the first that is known counts."""


def group_column(name: str) -> str:
    """The column of `rollouts` that holds a figure of the group; a name that no column of a run has."""
    return f"__{GROUP[name][0]}"


@dataclass(frozen=True)
class QueryColumn:
    """A column that a query can name.

    Attributes:
        kind: what its values are.
        sql: the SQL that reads it.
        reads: columns of the table that it needs; a figure of the group by its name in a query.
    """

    name: str
    kind: ColumnKind
    sql: str
    reads: tuple[str, ...]

    @property
    def uncast(self) -> str:
        """The SQL that leaves booleans as they are."""
        return self.sql.removeprefix("CAST(").removesuffix(" AS TINYINT)")

    @property
    def number(self) -> str:
        """The SQL that reads it as a number, null where it is none."""
        return f"TRY_CAST({self.sql} AS DOUBLE)" if self.kind != "tags" else "CAST(NULL AS DOUBLE)"


@dataclass(frozen=True)
class Names:
    """The names of one state of the table.

    Attributes:
        kinds: the kind of every column.
        all_flags: gives the names of the flags that this version raises or that rows have; asked only where a name is
            no column.
    """

    kinds: Mapping[str, Kind]
    all_flags: Callable[[], frozenset[str]] = frozenset

    def column(self, name: str) -> QueryColumn | None:
        """The column of a name, None where there is none."""
        if name in GROUP:
            return QueryColumn(name, "number", group_column(name), (name,))
        if name == "answer":
            both = ", ".join(quoted(each) for each in ANSWER)
            return QueryColumn(name, "text", f"coalesce({both})", ANSWER)
        name = name if name in self.kinds else ALIASES.get(name, name)
        kind = self.kinds.get(name)
        if kind is None or name in INTERNAL:
            return None
        sql = quoted(name)
        held: ColumnKind = kind if kind == "text" or kind == "tags" or kind == "mixed" else "number"
        return QueryColumn(name, held, f"CAST({sql} AS TINYINT)" if kind == "bool" else sql, (name,))

    @cached_property
    def flags(self) -> frozenset[str]:
        """The names of all flags."""
        return self.all_flags()

    @cached_property
    def all(self) -> tuple[str, ...]:
        """Every column's name."""
        return (*(name for name in self.kinds if name not in INTERNAL), *GROUP, *ALIASES)

    def hint(self, name: str) -> str:
        """Guesses what was meant by a name that is none, as a sentence behind a blank; else nothing."""
        near = difflib.get_close_matches(name, [*self.all, *self.flags], n=1) or [
            known for known in self.all if known.endswith("/" + name)
        ]
        return f" Did you mean {near[0]}?" if near else ""

    def flag_hint(self, name: str) -> str:
        """The same for a flag."""
        near = difflib.get_close_matches(name, list(self.flags), n=1)
        return f" Did you mean {near[0]}?" if near else f" Flags: {', '.join(sorted(self.flags))}."


TermKind = ColumnKind | Literal["any"]
MOST_PATTERN = 1000
"""Characters of a regular expression."""
_HYPHENATED = re.compile(r"[^\W\d][\w.]*(?:-[\w.]+)+")
"""`vllm-1`: a word as engines and runs are called, which is a difference beside numbers."""
MOST_ARGUMENTS = 32
_FUNCTIONS: Mapping[str, tuple[int, int]] = {
    "abs": (1, 1),
    "len": (1, 1),
    "min": (2, MOST_ARGUMENTS),
    "max": (2, MOST_ARGUMENTS),
    "round": (1, 2),
}
"""Name -> fewest and most arguments."""


@dataclass(frozen=True)
class Sql:
    """A piece of SQL.

    Attributes:
        text: the SQL, with `?` for each parameter.
    """

    text: str
    parameters: tuple[Value, ...] = ()


def composed(template: str, *parts: Sql) -> Sql:
    """A piece of SQL with others in the places of `{}`, and their parameters in that order."""
    texts = (part.text for part in parts)
    return Sql(template.format(*texts), tuple(value for part in parts for value in part.parameters))


EVERY = Sql("true")
"""The condition that every row satisfies."""


@dataclass(frozen=True)
class Valued:
    """A term's SQL, and what its values are."""

    sql: Sql
    kind: TermKind
    span: QuerySpan


@dataclass
class Compiler:
    """Compiles filters and sorts over the table.

    Attributes:
        names: what can be named.
        source: the query, for errors.
        compile_text: compiles a search of the conversation.
        used: columns that what was compiled so far reads.
    """

    names: Names
    source: str
    compile_text: Callable[[Text], Sql]
    used: dict[str, None] = field(default_factory=dict)

    def filter(self, node: Node) -> Sql:
        """The condition of a filter; unknown values satisfy no test but `is null` and `is empty`.

        Raises:
            QueryError: an unknown name, or a test that a column does not take.
        """
        if isinstance(node, All | Any):
            return joined([self.filter(p) for p in node.parts], " AND " if isinstance(node, All) else " OR ")
        if isinstance(node, Not):
            return composed("NOT coalesce({}, false)", self.filter(node.part))
        if isinstance(node, Text):
            return self.compile_text(node)
        return self._test(node)

    def order(self, keys: Sequence[SortKey]) -> list[tuple[Sql, bool]]:
        """`(expression, descending)` for each sort key.

        Raises:
            QueryError: an unknown column, or a list of names.
        """
        found = []
        for key in keys:
            value = self._value(key.term)
            if value.kind == "tags":
                value = Valued(composed("len({})", value.sql), "number", value.span)
            found.append((value.sql, key.descending))
        return found

    def column(self, name: str, span: QuerySpan) -> QueryColumn:
        """The column of that name.

        Raises:
            QueryError: there is none.
        """
        column = self.names.column(name)
        if column is None:
            self._refuse(span, f"no column {name!r}.{self.names.hint(name)}")
        self.used.update(dict.fromkeys(column.reads))
        return column

    def _test(self, node: Condition) -> Sql:
        term, how = node.term, node.how
        if not how:
            return self._bare(term)
        if how in COMPARISONS:
            return self._compare(term, how, node.values[0])
        if how == "has":
            return self._has(term, str(self._named_text(node.values[0])), node.values[0].span)
        value = self._value(term)
        if how == "is null":
            return composed("({} IS NULL)", value.sql)
        if how == "is empty":
            return self._is_empty(value)
        if how == "between":
            low, high = (self._other(each, value) for each in node.values)
            return composed("({} BETWEEN {} AND {})", _comparable(value, low), low.sql, high.sql)
        return self._in(node, value) if how == "in" else self._matches(how, value, node.values[0])

    def _bare(self, term: Term) -> Sql:
        if isinstance(term, Name) and self._names_a_flag(term):
            return self._has(Name("flags", term.span), term.name, term.span)
        value = self._value(term)
        if isinstance(term, Constant) and not isinstance(term.value, int):
            self._refuse(term.span, "a value alone is no test; compare it with something.")
        if value.kind in ("number", "any"):
            return composed("({} <> 0)", value.sql)
        return composed("NOT {}", self._is_empty(value))

    def _compare(self, left: Term, operator: str, right: Term) -> Sql:
        if isinstance(left, Constant) and not isinstance(right, Constant):
            left, right = right, left
            operator = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(operator, operator)
        value = self._value(left)
        if value.kind == "tags":
            return self._compare_tags(left, operator, right)
        other = self._other(right, value)
        return composed(f"({{}} {operator} {{}})", _comparable(value, other), other.sql)

    def _compare_tags(self, left: Term, operator: str, right: Term) -> Sql:
        """`flags = 'x'` means that the list has it."""
        name = self._named_text(right)
        if name is None or operator not in ("=", "!="):
            column = left.name if isinstance(left, Name) else "a list"
            self._refuse(right.span, f"{column} is a list of names; use {column} has 'name'.")
        has = self._has(left, name, right.span)
        return has if operator == "=" else composed("NOT coalesce({}, false)", has)

    def _has(self, term: Term, name: str, span: QuerySpan) -> Sql:
        if not isinstance(term, Name):
            self._refuse(span, "has looks into a list of names, such as flags.")
        column = self.column(term.name, term.span)
        if column.kind != "tags":
            self._refuse(term.span, f"{term.name} is no list of names; use {term.name} = '{name}'.")
        if term.name == "flags" and name not in self.names.flags:
            self._refuse(span, f"no flag {name!r}.{self.names.flag_hint(name)}")
        return Sql(f"list_contains({column.sql}, ?)", (name,))

    def _matches(self, how: str, value: Valued, looked_for: Term) -> Sql:
        pattern = self._value(looked_for).sql
        if value.kind == "number":
            self._refuse(value.span, f"{self._said(value.span)} holds numbers; {how} looks into texts.")
        if value.kind == "tags":
            if how == "contains":
                return composed(
                    "(len(list_filter({}, lambda x: contains(lower(x), lower({})))) > 0)", value.sql, pattern
                )
            self._refuse(value.span, f"{self._said(value.span)} is a list of names; use has or contains.")
        if how == "~":
            check_pattern(str(pattern.parameters[0]), self.source, looked_for.span)
        test = {
            "contains": "contains(lower({}), lower({}))",
            "like": "({} ILIKE {} ESCAPE '\\')",
            "~": "regexp_matches({}, {})",
        }[how]
        return composed(test, value.sql, pattern)

    def _in(self, node: Condition, value: Valued) -> Sql:
        if value.kind == "tags":
            names = [self._named_text(v) for v in node.values]
            if None in names:
                self._refuse(value.span, f"{self._said(value.span)} is a list of names; found a number.")
            return joined([self._has(node.term, str(name), value.span) for name in names], " OR ")
        unknown = [v for v in node.values if isinstance(v, Constant) and v.value is None]
        given = [self._other(v, value) for v in node.values if v not in unknown]
        parts = []
        if given:
            listed = joined([other.sql for other in given], ", ")
            parts.append(composed("({} IN {})", _comparable(value, given[0]), listed))
        if unknown:
            parts.append(composed("({} IS NULL)", value.sql))
        return joined(parts, " OR ")

    def _is_empty(self, value: Valued) -> Sql:
        if value.kind in ("number", "any"):
            return composed("({} IS NULL)", value.sql)
        return composed("({} IS NULL OR len({}) = 0)", value.sql, value.sql)

    def _value(self, term: Term) -> Valued:
        if isinstance(term, Constant):
            kind: TermKind = (
                "any" if term.value is None else "text" if isinstance(term.value, str) else "number"
            )
            return Valued(Sql("?", (term.value,)), kind, term.span)
        if isinstance(term, Call):
            return self._arithmetic(term) if term.function in SIGNS else self._call(term)
        if not term.quoted and self.names.column(term.name) is None:
            split = _as_arithmetic(term, self.names)
            if split is not None:
                return self._value(split)
        column = self.column(term.name, term.span)
        return Valued(Sql(column.sql), column.kind, term.span)

    def _arithmetic(self, term: Call) -> Valued:
        divisor = "nullif({}, 0)" if term.function in ("/", "%") else "{}"
        sql = composed(f"({{}} {term.function} {divisor})", *map(self._number, term.arguments))
        return Valued(sql, "number", term.span)

    def _call(self, term: Call) -> Valued:
        if term.function not in _FUNCTIONS:
            self._refuse(term.span, f"no function {term.function!r}; there is {', '.join(_FUNCTIONS)}.")
        fewest, most = _FUNCTIONS[term.function]
        if not fewest <= len(term.arguments) <= most:
            wanted = str(fewest) if fewest == most else f"{fewest} to {most}"
            self._refuse(term.span, f"{term.function} takes {wanted} values; found {len(term.arguments)}.")
        if term.function == "len":
            value = self._value(term.arguments[0])
            if value.kind == "number":
                self._refuse(value.span, f"{self._said(value.span)} holds numbers, which have no length.")
            return Valued(composed("len({})", value.sql), "number", term.span)
        numbers = [self._number(argument) for argument in term.arguments]
        if term.function in ("abs", "round"):
            digits = [composed("CAST({} AS INTEGER)", number) for number in numbers[1:]]
            listed = joined([*numbers[:1], *digits], ", ")
            return Valued(composed(f"{term.function}{{}}", listed), "number", term.span)
        unknown = joined([composed("{} IS NULL", number) for number in numbers], " OR ")
        most_or_least = "least" if term.function == "min" else "greatest"
        chosen = composed(
            f"(CASE WHEN {{}} THEN NULL ELSE {most_or_least}{{}} END)", unknown, joined(numbers, ", ")
        )
        return Valued(chosen, "number", term.span)

    def _number(self, term: Term) -> Sql:
        value = self._value(term)
        if value.kind in ("text", "tags"):
            holds = "texts" if value.kind == "text" else "a list of names"
            self._refuse(value.span, f"{self._said(value.span)} is {holds}; expected a number.")
        test = "TRY_CAST" if value.kind == "mixed" else "CAST"
        return composed(f"{test}({{}} AS DOUBLE)", value.sql)

    def _other(self, term: Term, beside: Valued) -> Valued:
        """The value that a column is compared with; an unquoted word beside a text is that text."""
        word = self.source[term.span.start : term.span.stop]
        if beside.kind in ("text", "mixed") and _HYPHENATED.fullmatch(word):
            return Valued(Sql("?", (word,)), "text", term.span)
        if isinstance(term, Name) and beside.kind in ("text", "mixed") and not self._names_a_value(term):
            return Valued(Sql("?", (term.name,)), "text", term.span)
        if isinstance(term, Name) and self._names_a_flag(term):
            self._refuse(term.span, f"{term.name} is a flag; use flags has {term.name}.")
        if beside.kind == "number" and isinstance(term, Constant) and term.value in INFINITE:
            return Valued(Sql("?", (INFINITE[str(term.value)],)), "number", term.span)
        value = self._value(term)
        if value.kind == "any":
            self._refuse(term.span, "null has no order; use 'is null' or 'is not null'.")
        if beside.kind != value.kind and "mixed" not in (beside.kind, value.kind):
            holds = "numbers" if beside.kind == "number" else "texts, which stand in quotes"
            shown = repr(term.value) if isinstance(term, Constant) else self._said(value.span)
            self._refuse(beside.span, f"{self._said(beside.span)} holds {holds}; found {shown}.")
        return value

    def _named_text(self, term: Term) -> str | None:
        if isinstance(term, Name):
            return term.name
        return term.value if isinstance(term, Constant) and isinstance(term.value, str) else None

    def _names_a_value(self, term: Name) -> bool:
        return self.names.column(term.name) is not None or _as_arithmetic(term, self.names) is not None

    def _names_a_flag(self, term: Name) -> bool:
        return not self._names_a_value(term) and term.name in self.names.flags

    def _said(self, span: QuerySpan) -> str:
        return self.source[span.start : span.stop].strip("`") or "this"

    def _refuse(self, span: QuerySpan, what: str) -> NoReturn:
        raise QueryError(what, self.source, span.start, span.stop)


def check_pattern(pattern: str, source: str, span: QuerySpan) -> None:
    """Refuses what is no regular expression of RE2, which takes time linear in the text.

    Raises:
        QueryError: it is none, or too long.
    """
    import duckdb

    if len(pattern) > MOST_PATTERN:
        what = f"a regular expression of {len(pattern)} characters; at most {MOST_PATTERN}."
        raise QueryError(what, source, span.start, span.stop)
    try:
        with duckdb.connect(":memory:") as database:
            database.execute("SELECT regexp_matches('', ?)", (pattern,))
    except duckdb.Error as error:
        what = f"no regular expression: {str(error).splitlines()[0].removeprefix('Invalid Input Error: ')}."
        raise QueryError(what, source, span.start, span.stop) from error


def joined(parts: Sequence[Sql], by: str) -> Sql:
    """Pieces of SQL in brackets with a word between."""
    return composed(f"({by.join(['{}'] * len(parts))})", *parts)


def _comparable(left: Valued, right: Valued) -> Sql:
    """A column of numbers and texts, read as what it is compared with."""
    if left.kind == "mixed" and right.kind == "number":
        return composed("TRY_CAST({} AS DOUBLE)", left.sql)
    return left.sql


def _as_arithmetic(term: Name, names: Names) -> Call | None:
    """`a/b` and `component/x-component/y` are one word to the lexer; here they become sums of columns."""
    text, start = term.name, term.span.start
    for at in range(len(text) - 2, 0, -1):
        left, right = text[:at], text[at + 1 :]
        if text[at] not in "+-/" or names.column(right) is None:
            continue
        below: Term = Name(left, QuerySpan(start, start + at))
        if names.column(left) is None:
            deeper = _as_arithmetic(below, names)  # type: ignore[arg-type]
            if deeper is None:
                continue
            below = deeper
        above = Name(right, QuerySpan(start + at + 1, term.span.stop))
        return Call(text[at], (below, above), term.span)
    return None
