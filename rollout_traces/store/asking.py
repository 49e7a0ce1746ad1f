"""One question about the table: the rows that it is about, its filter and sort as a condition, an order, and the relation that they read; and the answers that were given."""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, TypeVar

import duckdb
import numpy as np
import pyarrow as pa

from rollout_traces.errors import StoreError
from rollout_traces.ledger.columns import COLUMNS
from rollout_traces.ledger.groups import TIED_SQL
from rollout_traces.model.plain_values import INT64_MAX, INT64_MIN
from rollout_traces.model.text import IDENTITY_BYTES, short_hash
from rollout_traces.store import search
from rollout_traces.store.columns import COMPUTED, INTERNAL, LABELLED, MEANINGS, Kind, quoted
from rollout_traces.store.engine import Engine
from rollout_traces.store.query.compiler import (
    EVERY,
    GROUP,
    Compiler,
    Names,
    QueryColumn,
    Sql,
    check_pattern,
    group_column,
    joined,
)
from rollout_traces.store.query.nodes import All, Node, Not, QuerySpan, Text
from rollout_traces.store.query.nodes import Any as AnyOf
from rollout_traces.store.query.parser import parse_query, parse_search, parse_sort
from rollout_traces.store.rollout_table import State
from rollout_traces.store.rows import PLACE, ColumnInfo, TraceRow
from rollout_traces.store.source import Source
from rollout_traces.store.time_limit import waiting_for_another
from rollout_traces.trace.conversion import METADATA

Which = Literal["traces", "all"]
"""Traced rollouts, or every rollout there was."""
Attempts = Literal["newest", "all"]
"""Rollouts that no later attempt of their run superseded, or those too."""
Steps = tuple[int | None, int | None]
"""First and last step, both included; None at an end is open."""
EVERYTHING: Steps = (None, None)


@dataclass(frozen=True)
class Scope:
    """The rows that are meant.

    Attributes:
        run_ids: of these runs alone; all when None.
        splits: of these splits alone; all when None.
        steps: first and last step, both included; None at an end is open.
        where: a filter in the query language.
        text: words and quoted phrases that the conversation must hold, all of them.
        rows: `traces`, or `all` for every rollout there was.
        attempts: `newest` leaves out what a later attempt superseded, unless the filter speaks of `superseded`.
    """

    run_ids: tuple[str, ...] | None = None
    splits: tuple[str, ...] | None = None
    steps: Steps = EVERYTHING
    where: str = ""
    text: str = ""
    rows: Which = "traces"
    attempts: Attempts = "all"

    def place(self, state: State) -> list[Sql]:
        """The conditions on run, split, steps and traces."""
        parts: list[Sql] = []
        if self.run_ids is not None:
            numbers = [number for number, (run_id, _) in state.runs.items() if run_id in self.run_ids]
            parts.append(_one_of("run_no", numbers or [-1]))
        if self.splits is not None:
            parts.append(_one_of("split", self.splits or [""]))
        for bound, operator in zip(self.steps, (">=", "<="), strict=True):
            if bound is not None:
                parts.append(Sql(f"step {operator} ?", (within_64_bits(bound),)))
        return [*parts, Sql("doc IS NOT NULL")] if self.rows == "traces" else parts

    def looked_for(self) -> list[Text]:
        """Lists the texts that conversations must or may hold: the words of the search, and what the filter looks for in them.

        Raises:
            QueryError: filter or search cannot be understood.
        """
        return [*parse_search(self.text), *_texts(parse_query(self.where).node)]


def _texts(node: Node | None) -> list[Text]:
    """The searches of a filter; what must not occur is none."""
    if isinstance(node, All | AnyOf):
        return [each for part in node.parts for each in _texts(part)]
    return [node] if isinstance(node, Text) else []


def _one_of(column: str, values: Sequence[str | int]) -> Sql:
    return Sql(f"{column} IN ({', '.join('?' * len(values))})", tuple(values))


def conjuncts(node: Node | None) -> list[Node]:
    """The parts of a filter that must all hold."""
    if node is None:
        return []
    return [each for part in node.parts for each in conjuncts(part)] if isinstance(node, All) else [node]


def holds_text(node: Node) -> bool:
    """Tells whether some part of a filter looks into conversations."""
    if isinstance(node, All | AnyOf):
        return any(map(holds_text, node.parts))
    return holds_text(node.part) if isinstance(node, Not) else isinstance(node, Text)


def within_64_bits(number: int) -> int:
    """The nearest integer that a database can hold."""
    return max(INT64_MIN, min(INT64_MAX, number))


REWARD_FAILED = "coalesce(CAST(reward_status AS VARCHAR), 'ok') <> 'ok'"
"""The condition that a row's reward function timed out or raised, so that its reward says nothing."""
_GROUP_KEYS = ("place", "group", "attempt")
GROUPS = f"""
SELECT place, "group", attempt, n AS group_rows, mean AS group_mean, std AS group_std, low AS group_min,
    high AS group_max, CAST({TIED_SQL} AS TINYINT) AS group_tied, first, traced, n_sampled, superseded
FROM (SELECT place, "group", attempt, avg(r) AS mean, stddev_pop(r) AS std, count(*) AS n, count(r) AS known,
        sum(failed) AS failed, min(r) AS low, max(r) AS high, min("row") AS first, count(doc) AS traced,
        CAST(sum(n_sampled) AS BIGINT) AS n_sampled, bool_and(superseded) AS superseded
    FROM (SELECT *, CASE WHEN isfinite(reward) AND failed = 0 THEN reward END AS r FROM (
        SELECT *, CAST({REWARD_FAILED} AS TINYINT) AS failed
        FROM rows WHERE "group" IS NOT NULL))
    GROUP BY place, "group", attempt)
"""
"""The groups, the rollouts of one prompt in one step of one attempt: the figures of their rewards, ties as in
`ledger.groups.tied_groups`, the first row, how many were traced, tokens, and whether all were superseded."""

Order = Sequence[tuple[Sql, bool]]
"""Expressions to sort by, each with True for highest first."""


@dataclass(frozen=True)
class Asked:
    """A compiled question.

    Attributes:
        condition: which rows.
        order: the filter's own `order by`, or what was asked for.
        columns: columns of the table that both read.
    """

    condition: Sql
    order: Order
    columns: frozenset[str]


@dataclass(eq=False)
class Asking:
    """Compiles and runs questions about one state of the table.

    Args:
        connection: the manifest and words of that state.
        cursor: the table in that state.
        state: what the manifest says.
        engine: what runs statements.
        source: where texts are.
        answers: what was answered before.
    """

    connection: sqlite3.Connection
    cursor: duckdb.DuckDBPyConnection
    state: State
    engine: Engine
    source: Source
    answers: RememberedAnswers

    @cached_property
    def names(self) -> Names:
        """The names that a filter may use."""
        return Names(self.state.kinds, self._flags)

    def run(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> pa.Table:
        """The rows of a statement over `rows`, `rollouts` or what `relation` gives."""
        return self.engine.run(statement, parameters, on=self.cursor)

    def remember(self, key: Hashable, compute: Callable[[], Answer]) -> Answer:
        """The answer to a question about this state, from before where it was given."""
        return self.answers.answer((self.state.stamp, key), compute)

    def asked(self, scope: Scope, order_by: str | None = None) -> Asked:
        """Compiles a question.

        Args:
            scope: which rows.
            order_by: sort keys; None for those of the filter's `order by`.

        Raises:
            QueryError: filter or sort cannot be understood.
        """
        query = parse_query(scope.where)
        parts = scope.place(self.state)

        def compile_text(node: Text) -> Sql:
            return self._holding(node, scope.where, parts, compiler.used)

        compiler = Compiler(self.names, scope.where, compile_text)
        for node in sorted([*conjuncts(query.node), *parse_search(scope.text)], key=_reading):
            parts.append(compiler.filter(node))
        if scope.attempts == "newest" and "superseded" not in compiler.used:
            parts.append(Sql("NOT superseded"))
        sorting = compiler if order_by is None else Compiler(self.names, order_by, _no_text)
        order = sorting.order(query.order if order_by is None else parse_sort(order_by))
        return Asked(joined(parts or [EVERY], " AND "), order, frozenset({*compiler.used, *sorting.used}))

    def column(self, name: str) -> QueryColumn:
        """The column of a name.

        Raises:
            QueryError: there is none.
        """
        return Compiler(self.names, name, _no_text).column(name, QuerySpan(0, len(name)))

    def relation(self, columns: Collection[str]) -> str:
        """Writes the relation behind FROM where these columns are read, figures of groups among them."""
        relation = self.state.relation([*columns])
        figures = [name for name in GROUP if name in columns]
        if not figures:
            return relation
        on = " AND ".join(f"r.{quoted(key)} IS NOT DISTINCT FROM g.{quoted(key)}" for key in _GROUP_KEYS)
        listed = ", ".join(f"g.{GROUP[name][0]} AS {group_column(name)}" for name in figures)
        return f"(SELECT r.*, {listed} FROM {relation} r LEFT JOIN ({GROUPS}) g ON {on})"

    def shown_columns(self, wanted: Sequence[str] | None = None) -> list[str]:
        """The columns that a row is shown with: all that any row may know, or some of them.

        Args:
            wanted: some columns; all when None.

        Raises:
            StoreError: there is no column of a name.
        """
        kinds = self.state.kinds
        if wanted is None:
            known = {*self.state.stored_kinds, "id", *COMPUTED, *self.state.side_names}
            known |= LABELLED.keys() if self.state.labelled.entries else set()
            return [name for name in kinds if name in known and name not in INTERNAL]
        for name in wanted:
            if name not in kinds or name in INTERNAL:
                raise StoreError(f"columns: no column {name!r}.{self.names.hint(name)}")
        return list(dict.fromkeys([*PLACE, *wanted]))

    def columns(self, rows: Which) -> list[ColumnInfo]:
        """The columns that a query can name: those that some row knows, and the figures of groups.

        Args:
            rows: of traced rollouts, or of all.
        """
        known = {**self.state.side.meanings, **meanings()}
        names = [name for name in self.shown_columns() if rows == "all" or name != "trace_uid"]
        found = [(name, self.names.column(name)) for name in (*names, *GROUP)]
        return [
            ColumnInfo(name, c.kind, known.get(name) or known.get(name.split("/", 1)[0] + "/*", ""))
            for name, c in found
            if c is not None
        ]

    def rows(self, which: str, names: Sequence[str], parameters: Sequence[Any] = ()) -> list[TraceRow]:
        """Rows as plain ones.

        Args:
            which: the SQL behind WHERE, with its order.
            names: their columns, with those that say where each is.
            parameters: those of the SQL.
        """
        listed = ", ".join(map(quoted, names))
        found = self.run(f"SELECT {listed} FROM {self.relation(names)} WHERE {which}", parameters)
        return plain_rows(found, self.state.kinds)

    def _holding(self, node: Text, where: str, parts: Sequence[Sql], used: Collection[str]) -> Sql:
        """The condition that a conversation holds a text: its words are looked up, else what `parts` leave is read."""
        if node.how == "~":
            check_pattern(node.pattern, where, node.span)
        expression = search.expression_of(node)
        if expression is not None:
            return self._hits(search.look_up(self.connection, expression))
        return self._read(node, parts, used)

    def _hits(self, docs: np.ndarray) -> Sql:
        """The condition that a row has one of some conversations; its name says which, so that equals are equal."""
        name = "found_" + short_hash(docs.tobytes(), IDENTITY_BYTES).hex()
        column = pa.Array.from_buffers(pa.int64(), len(docs), [None, pa.py_buffer(docs.astype(np.int64))])
        self.cursor.register(name, pa.table([column], ["doc"]))
        return Sql(f"doc IN (SELECT doc FROM {name})")

    def _read(self, node: Text, parts: Sequence[Sql], used: Collection[str]) -> Sql:
        """Reads the texts of the rows that other conditions leave."""
        condition = joined([Sql("doc IS NOT NULL"), *parts], " AND ")

        def docs() -> np.ndarray:
            statement = f"SELECT doc FROM {self.relation(used)} WHERE {condition.text}"
            rows = self.run(statement, condition.parameters)["doc"].to_numpy()
            return search.scan(self.connection, self.source, node, rows, self.engine)

        return self._hits(self.remember((node, condition), docs))

    def _flags(self) -> frozenset[str]:
        """Names of the flags that this version raises, and of those that rows have."""
        from rollout_traces.flags import REGISTRY

        if self.state.kinds["flags"] != "tags":
            return frozenset(REGISTRY)
        seen = "SELECT DISTINCT unnest(flags) AS f FROM rows"
        return frozenset({*REGISTRY, *self.remember("flags seen", lambda: self.run(seen)["f"].to_pylist())})


def plain_rows(found: pa.Table, kinds: dict[str, Kind]) -> list[TraceRow]:
    """Rows of a table as plain ones.

    Args:
        found: the rows, with the columns of `PLACE`.
        kinds: the kind of each column.
    """
    tags = [name for name in found.column_names if kinds.get(name) == "tags"]
    rows = []
    for row in found.to_pylist():
        place = {name: row.pop(name) for name in PLACE}
        row |= {name: tuple(row[name]) for name in tags if row[name] is not None}
        known = {name: value for name, value in row.items() if value is not None}
        rows.append(TraceRow(**place, values=known))
    return rows


def groups_table(asking: Asking) -> pa.Table:
    """The groups of all steps, in their order.

    Args:
        asking: asks the table.

    Returns:
        `run, run_id, split, step, group, attempt, prompt_key, source, rollouts, traced, reward_mean,
        reward_std, reward_min, reward_max, tied, n_sampled, superseded`; a group is the rollouts of one
        prompt in one step.
    """
    return asking.run(
        f"""SELECT run, run_id, split, step, r."group", r.attempt, prompt_key, source, group_rows AS rollouts,
            g.traced, group_mean AS reward_mean, group_std AS reward_std, group_min AS reward_min,
            group_max AS reward_max, group_tied = 1 AS tied, g.n_sampled, g.superseded
        FROM ({GROUPS}) g JOIN rows r ON r."row" = g.first
        ORDER BY run_no, split, step, r."group", r.attempt"""
    )


def _no_text(node: Text) -> Sql:
    raise StoreError("text cannot be sorted by.")


def _reading(node: Node) -> int:
    """Orders the parts of a filter: texts are looked up, and at last read, in the rows that all else leaves."""
    if not holds_text(node):
        return 0
    return 1 if isinstance(node, Text) and search.expression_of(node) is not None else 2


@lru_cache(maxsize=1)
def meanings() -> dict[str, str]:
    """Name -> meaning of all columns that have one; prefixed ones end in `/*`."""
    ours = {name.replace("<name>", "*"): meaning for name, meaning in METADATA.items()}
    groups = {name: meaning for name, (_, meaning) in GROUP.items()}
    return {**{column.name: column.meaning for column in COLUMNS}, **ours, **MEANINGS, **groups}


KEPT_ANSWERS = 64
Answer = TypeVar("Answer")


class RememberedAnswers:
    """Answers by question; those asked for longest ago are let go first.

    Args:
        most: answers that are kept.
    """

    def __init__(self, most: int = KEPT_ANSWERS) -> None:
        self._most = most
        self._answers: OrderedDict[Hashable, Future[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def answer(self, question: Hashable, compute: Callable[[], Answer]) -> Answer:
        """The answer to a question.

        Of several threads that ask the same at once one computes it and the others wait for it: they get what it
        gets, an exception too. The next one that asks tries again.

        Args:
            question: what was asked, and the state of what it was asked of.
            compute: gives the answer where there is none; it may ask other questions.
        """
        with self._lock:
            known = self._answers.get(question)
            if known is None:
                mine = self._answers[question] = Future[Any]()
            else:
                self._answers.move_to_end(question)
        if known is not None:
            if not known.done():
                with waiting_for_another():
                    wait([known])
            return known.result()
        try:
            found = compute()
        except BaseException as error:
            with self._lock:
                if self._answers.get(question) is mine:
                    del self._answers[question]
            mine.set_exception(error)
            raise
        mine.set_result(found)
        with self._lock:
            while len(self._answers) > self._most:
                self._answers.popitem(last=False)
        return found

    def forget(self) -> None:
        """Drops all answers."""
        with self._lock:
            self._answers.clear()
