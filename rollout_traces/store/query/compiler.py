"""Nodes -> SQL with parameters. No text of a query ever becomes part of a statement."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rollout_traces.store.query.error import QueryError
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
from rollout_traces.store.schema import Column


@dataclass(frozen=True)
class Sql:
    """A piece of SQL.

    Attributes:
        text: the SQL, with `?` for each parameter.
        parameters: their values.
    """

    text: str
    parameters: tuple[Value, ...] = ()

    def and_(self, other: Sql) -> Sql:
        """Both conditions."""
        return Sql(f"{self.text} AND {other.text}", (*self.parameters, *other.parameters))


TextCompiler = Callable[[Text | Substring], Sql]


@dataclass(frozen=True)
class Compiler:
    """Compiles filters and sorts over one table, alias `t`.

    Attributes:
        columns: what can be named.
        known: names that are understood although no row has them yet.
        compile_text: compiles a search of the conversation.
        source_text: the query, for errors.
    """

    columns: Mapping[str, Column]
    known: frozenset[str]
    compile_text: TextCompiler
    source_text: str

    def filter(self, node: Node) -> Sql:
        """The condition of a filter; unknown values satisfy no test but `is null`.

        Raises:
            QueryError: an unknown column, or a test that a column does not take.
        """
        if isinstance(node, All | Any):
            return _joined(
                [self.filter(part) for part in node.parts], " AND " if isinstance(node, All) else " OR "
            )
        if isinstance(node, Not):
            inner = self.filter(node.part)
            return Sql(f"NOT coalesce({inner.text}, 0)", inner.parameters)
        if isinstance(node, Text | Substring):
            return self.compile_text(node)
        return self._test(node)

    def order(self, keys: Sequence[SortKey]) -> list[tuple[str, bool]]:
        """`(expression, descending)` for each sort key.

        Raises:
            QueryError: an unknown column.
        """
        return [(self.column(key.column).sql, key.descending) for key in keys]

    def reach(self, node: Node) -> int:
        """How far into a row SQLite must read for a test; the nearest one is best asked first."""
        if isinstance(node, All | Any):
            return max(map(self.reach, node.parts))
        if isinstance(node, Not):
            return self.reach(node.part)
        if isinstance(node, Text | Substring) or node.column.name not in self.columns:
            return len(self.columns)
        return list(self.columns).index(node.column.name)

    def _test(self, node: Compare | Between | In | Has | Contains) -> Sql:
        column = self.column(node.column)
        self._check_values(column, node)
        if isinstance(node, Compare):
            return _compare(column, node)
        if isinstance(node, Between):
            return Sql(f"{column.sql} BETWEEN ? AND ?", (node.low, node.high))
        if isinstance(node, In):
            return _one_of(column, node.values)
        if isinstance(node, Has):
            if column.kind not in ("tags", "mixed"):
                raise self._wrong(
                    node.column, f"{column.name} is no list of names; use {column.name} = '{node.name}'."
                )
            return Sql(f"instr({column.sql}, ?) > 0", (f"|{node.name}|",))
        return Sql(f"instr(lower({column.sql}), lower(?)) > 0", (node.piece,))

    def _check_values(self, column: Column, node: Compare | Between | In | Has | Contains) -> None:
        wanted = {"number": (int, float), "text": (str,), "tags": (str,)}.get(column.kind)
        for value in _values_of(node):
            if wanted is not None and not isinstance(value, wanted):
                holds = "numbers" if column.kind == "number" else "texts, which stand in quotes"
                raise self._wrong(node.column, f"{column.name} holds {holds}; found {value!r}.")

    def column(self, name: Name) -> Column:
        """The column of that name.

        Raises:
            QueryError: there is none.
        """
        if name.name in self.columns:
            return self.columns[name.name]
        if name.name in self.known:
            return Column(name.name, "mixed", "NULL")
        names = [*self.columns, *self.known]
        near = difflib.get_close_matches(name.name, names, n=1) or [
            n for n in names if n.endswith("/" + name.name)
        ]
        hint = f" Did you mean {near[0]}?" if near else ""
        raise self._wrong(name, f"no column {name.name!r}.{hint}")

    def _wrong(self, name: Name, what: str) -> QueryError:
        return QueryError(what, self.source_text, name.start, name.stop)


def _values_of(node: Compare | Between | In | Has | Contains) -> list[Value]:
    if isinstance(node, Compare):
        values: Sequence[Value] = (node.value,)
    elif isinstance(node, Between):
        values = (node.low, node.high)
    else:
        values = node.values if isinstance(node, In) else ()
    return [value for value in values if value is not None]


def _compare(column: Column, node: Compare) -> Sql:
    if node.value is None:
        return Sql(f"{column.sql} IS {'NOT ' if node.operator == '!=' else ''}NULL")
    return Sql(f"{column.sql} {node.operator} ?", (node.value,))


def _one_of(column: Column, values: Sequence[Value]) -> Sql:
    given = tuple(value for value in values if value is not None)
    listed = Sql(f"{column.sql} IN ({', '.join('?' * len(given))})", given)
    return listed if len(given) == len(values) else _joined([listed, Sql(f"{column.sql} IS NULL")], " OR ")


def _joined(parts: Sequence[Sql], by: str) -> Sql:
    parameters = tuple(value for part in parts for value in part.parameters)
    return Sql(f"({by.join(part.text for part in parts)})", parameters)
