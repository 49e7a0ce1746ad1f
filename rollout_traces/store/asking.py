"""One question about the table: a filter and a sort become a statement over the columns that they read."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa

from rollout_traces.errors import StoreError
from rollout_traces.ledger.groups import TIED_SQL
from rollout_traces.store import search
from rollout_traces.store.columns.engine import Engine
from rollout_traces.store.columns.table import POSITION, Rows
from rollout_traces.store.query.compiler import EVERY, Compiler, Sql, check_pattern
from rollout_traces.store.query.names import GROUP, Names, group_column
from rollout_traces.store.query.nodes import SortKey, Text, TextScan
from rollout_traces.store.query.parser import parse_sort
from rollout_traces.store.scope import Scope, conjuncts, holds_text
from rollout_traces.store.source import Source

GROUP_KEYS = ("run_no", "split", "step", "group", "attempt")
GROUP_READS = ("reward", "reward_status")
"""What makes rows a group: the rollouts of one prompt in one step of one attempt."""
GROUPS = f"""
SELECT run_no, split, step, "group", attempt, group_mean, group_std, n AS group_rows, low AS group_min, high AS group_max,
    CAST({TIED_SQL} AS TINYINT) AS group_tied
FROM (SELECT run_no, split, step, "group", attempt, avg(r) AS group_mean, stddev_pop(r) AS group_std,
        count(*) AS n, count(r) AS known, sum(failed) AS failed, min(r) AS low, max(r) AS high
    FROM (SELECT *, CASE WHEN isfinite(reward) AND NOT failed::BOOLEAN THEN reward END AS r FROM (
        SELECT *, CAST(coalesce(CAST(reward_status AS VARCHAR), 'ok') <> 'ok' AS TINYINT) AS failed
        FROM rollouts WHERE "group" IS NOT NULL))
    GROUP BY run_no, split, step, "group", attempt)
"""
"""The figures of every group, from the rewards of its rollouts; ties as in `ledger.rewards.tied_groups`."""

_OF_GROUPS = (
    *GROUP_KEYS,
    "run",
    "run_id",
    *GROUP_READS,
    "prompt_key",
    "source",
    "doc",
    "superseded",
    "n_sampled",
)
"""What the table of groups is made from."""
_AT = "__asked_at"
"""The order of rows that were taken out; a name that no column of a run has."""
_FOUND = "__found_"
"""What columns of search results begin with; what was found follows, as a hash."""
Order = Sequence[tuple[Sql, bool]]
"""Expressions to sort by, each with True for highest first."""


@dataclass(frozen=True)
class Asked:
    """A compiled question.

    Attributes:
        condition: which rows, alias `t`.
        order: the filter's own `order by`, or what was asked for.
        columns: columns of the table that both read.
        found: columns of search results that the condition reads, bool [N] each; a name says what is in it, so that
            equal conditions have equal answers.
    """

    condition: Sql
    order: Order
    columns: tuple[str, ...]
    found: dict[str, np.ndarray]

    @property
    def only_found(self) -> np.ndarray | None:
        """Where the search result is true that the whole condition is, int [K]; None where it is another one."""
        columns = (column for name, column in self.found.items() if self.condition == Sql(f"t.{name}"))
        return next((np.flatnonzero(column) for column in columns), None)


class Asking:
    """Compiles and runs questions about one state of the table.

    Args:
        connection: the manifest and words of the same state.
        rows: the table.
        engine: what runs statements.
        source: where texts are.
        remember: gives an answer from before, else the one that it computes.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        rows: Rows,
        engine: Engine,
        source: Source,
        remember: Callable[[Any, Callable[[], Any]], Any],
    ) -> None:
        self.connection = connection
        self.rows = rows
        self._engine = engine
        self._source = source
        self._remember = remember
        self.names = Names(rows.kinds, registered_flags, self._flags_seen)

    def asked(self, scope: Scope, order_by: str | None = None) -> Asked:
        """Compiles a question.

        Args:
            scope: which rows.
            order_by: sort keys; None for those of the filter's `order by`.

        Raises:
            QueryError: filter or sort cannot be understood.
        """
        query = scope.parsed()
        nodes = conjuncts(query.node)
        texts = [node for node in nodes if isinstance(node, Text | TextScan)]
        mixed = [node for node in nodes if not isinstance(node, Text | TextScan) and holds_text(node)]
        plain = [node for node in nodes if not holds_text(node)]
        for node in texts:
            _check(node, scope.where)
        parts, columns = scope.place(self.rows)
        found: dict[str, np.ndarray] = {}
        used = dict.fromkeys(columns)

        def compile_text(node: Text | TextScan) -> Sql:
            _check(node, scope.where)
            return self._text(node, found, parts, used)

        compiler = Compiler(self.names, scope.where, compile_text)
        compiler.used = used
        parts += [compiler.filter(node) for node in plain]
        parts += self._searched([*texts, *scope.searches()], found, parts, used)
        for either in mixed:
            parts.append(compiler.filter(either))
        order = compiler.order(query.order) if order_by is None else self.order(order_by, used)
        condition = EVERY
        for part in parts:
            condition = condition.and_(part)
        return Asked(condition, order, tuple(used), found)

    def order(self, order_by: str, used: dict[str, None]) -> Order:
        """Compiles sort keys; the columns that they read are added to `used`."""
        keys: Sequence[SortKey] = parse_sort(order_by)
        compiler = Compiler(self.names, order_by, self._no_text)
        compiler.used = used
        return compiler.order(keys)

    def run(
        self, asked: Asked, statement: str, parameters: Sequence[Any], columns: Sequence[str] = ()
    ) -> pa.Table:
        """Runs a statement over `rollouts` with the columns that a question reads.

        Args:
            asked: the question.
            statement: the SQL; `rollouts` is the table.
            parameters: its parameters.
            columns: further columns that it reads.
        """
        stored: dict[str, None] = {}
        for name in (*asked.columns, *columns):
            if name not in GROUP:
                stored[name] = None
        table = self.rows.coded([*stored, *(() if stored else (POSITION,))])
        for name in dict.fromkeys(name for name in (*asked.columns, *columns) if name in GROUP):
            table = table.append_column(group_column(name), self._of_groups(GROUP[name][0]))
        for name, column in asked.found.items():
            table = table.append_column(name, pa.array(column))
        return self._engine.run(statement, parameters, {"rollouts": table})

    def _of_groups(self, figure: str) -> pa.ChunkedArray:
        """A figure of every row's group, null where it has none; computed once for a state of the table."""
        known = self.rows.computed.get(figure)
        if known is None:
            on = " AND ".join(f't."{key}" IS NOT DISTINCT FROM g."{key}"' for key in GROUP_KEYS)
            found = self._engine.run(
                f"SELECT g.{figure} AS v FROM rollouts t LEFT JOIN ({GROUPS}) g ON {on} ORDER BY t.position",
                (),
                {"rollouts": self.rows.coded([*GROUP_KEYS, *GROUP_READS, POSITION])},
            )
            known = self.rows.computed[figure] = found["v"]
        return known

    def run_at(self, positions: np.ndarray, statement: str, columns: Sequence[str]) -> pa.Table:
        """Runs a statement over the rows at some positions, in their order; no other rows are read.

        Args:
            positions: int [K].
            statement: a SELECT over `rollouts t` without WHERE and ORDER BY.
            columns: columns that it reads.
        """
        rows = self.rows.take(positions, columns or [POSITION])
        order = pa.array(np.arange(len(positions)))
        return self.run_over(rows.append_column(_AT, order), f"{statement} ORDER BY t.{_AT}", ())

    def rows_at(self, positions: np.ndarray, columns: Sequence[str]) -> pa.Table:
        """The rows at some positions, in their order, with what a question reads of them.

        Args:
            positions: int [K].
            columns: columns of the table, and figures of groups.
        """
        rows = self.rows.take(positions, [name for name in columns if name not in GROUP])
        for name in dict.fromkeys(name for name in columns if name in GROUP):
            figure = self._of_groups(GROUP[name][0]).take(pa.array(positions))
            rows = rows.append_column(group_column(name), figure)
        return rows

    def run_over(self, rows: pa.Table, statement: str, parameters: Sequence[Any]) -> pa.Table:
        """Runs a statement over some rows alone.

        Args:
            rows: they, with the columns that it reads.
            statement: the SQL; `rollouts` is these rows.
            parameters: its parameters.
        """
        return self._engine.run(statement, parameters, {"rollouts": rows})

    def positions(self, asked: Asked) -> np.ndarray:
        """The rows of a question, in the order of arrival, int [K]."""
        found = self.run(
            asked,
            f"SELECT t.position FROM rollouts t WHERE {asked.condition.text} ORDER BY t.position",
            asked.condition.parameters,
            [POSITION],
        )
        return found["position"].to_numpy()

    def _searched(
        self,
        texts: Sequence[Text | TextScan],
        found: dict[str, np.ndarray],
        parts: list[Sql],
        used: dict[str, None],
    ) -> list[Sql]:
        """The conditions of searches that must all hit: words are looked up together, texts read last."""
        expressions = {node: search.expression_of(node) for node in texts}
        indexed = [expression for expression in expressions.values() if expression is not None]
        hits = []
        if indexed:
            hits.append(self._hits(search.look_up(self.connection, " AND ".join(indexed)), found))
        for node, expression in expressions.items():
            if expression is None:
                hits.append(self._read(node, found, [*parts, *hits], used))
        return hits

    def _text(
        self, node: Text | TextScan, found: dict[str, np.ndarray], parts: list[Sql], used: dict[str, None]
    ) -> Sql:
        """The condition of a search inside a larger filter."""
        expression = search.expression_of(node)
        if expression is not None:
            return self._hits(search.look_up(self.connection, expression), found)
        return self._read(node, found, parts, used)

    def _hits(self, docs: np.ndarray, found: dict[str, np.ndarray]) -> Sql:
        column = self.rows.of_docs(docs)
        if column.all():
            return EVERY
        name = _FOUND + blake2b(docs.tobytes(), digest_size=16).hexdigest()
        found[name] = column
        return Sql(f"t.{name}")

    def _read(
        self,
        node: Text | TextScan,
        found: dict[str, np.ndarray],
        parts: Sequence[Sql],
        used: dict[str, None],
    ) -> Sql:
        """Reads the texts of the rows that other conditions leave."""
        condition = Sql("t.doc IS NOT NULL")
        for part in parts:
            condition = condition.and_(part)
        left = Asked(condition, (), (*used, "doc"), dict(found))

        def docs() -> np.ndarray:
            rows = self.run(
                left, f"SELECT t.doc FROM rollouts t WHERE {condition.text}", condition.parameters
            )
            return search.scan(self.connection, self._source, node, rows["doc"].to_numpy(), self._engine)

        return self._hits(self._remember((node, condition), docs), found)

    def _flags_seen(self) -> Collection[str]:
        def seen() -> frozenset[str]:
            table = self.rows.arrow(["flags"])
            if self.rows.kinds["flags"] != "tags":
                return frozenset()
            found = self._engine.run(
                "SELECT DISTINCT unnest(flags) AS f FROM rollouts", (), {"rollouts": table}
            )
            return frozenset(found["f"].to_pylist())

        return frozenset(self._remember("flags seen", seen))

    @staticmethod
    def _no_text(node: Text | TextScan) -> Sql:
        raise StoreError("text cannot be sorted by.")


def groups_table(asking: Asking) -> pa.Table:
    """The groups of all steps, in their order.

    Args:
        asking: asks the table.

    Returns:
        `run, run_id, split, step, group, attempt, prompt_key, source, rollouts, traced, reward_mean,
        reward_std, reward_min, reward_max, tied, n_sampled, superseded`; a group is the rollouts of one
        prompt in one step.
    """
    on = " AND ".join(f'f."{key}" IS NOT DISTINCT FROM g."{key}"' for key in GROUP_KEYS)
    more = """
        SELECT run_no, split, step, "group", attempt, any_value(run) AS run, any_value(run_id) AS run_id,
            any_value(prompt_key) AS prompt_key, any_value(source) AS source, count(doc) AS traced,
            sum(n_sampled) AS n_sampled, bool_and(superseded) AS superseded
        FROM rollouts WHERE "group" IS NOT NULL GROUP BY run_no, split, step, "group", attempt"""
    statement = f"""
        SELECT f.run, f.run_id, f.split, f.step, f."group", f.attempt, f.prompt_key, f.source,
            g.group_rows AS rollouts, f.traced, g.group_mean AS reward_mean, g.group_std AS reward_std,
            g.group_min AS reward_min, g.group_max AS reward_max, g.group_tied = 1 AS tied,
            CAST(f.n_sampled AS BIGINT) AS n_sampled, f.superseded
        FROM ({more}) f JOIN ({GROUPS}) g ON {on}
        ORDER BY f.run_no, f.split, f.step, f."group", f.attempt"""
    return asking.run(Asked(EVERY, (), _OF_GROUPS, {}), statement, ())


def _check(node: Text | TextScan, where: str) -> None:
    """Points at a regular expression that is none, before any text is read."""
    if isinstance(node, TextScan) and node.how == "~":
        check_pattern(node.pattern, where, node.place)


@lru_cache(maxsize=1)
def registered_flags() -> frozenset[str]:
    """Names of the flags that this version raises."""
    from rollout_traces.flags import REGISTRY

    return frozenset(REGISTRY)
