"""The rows that a question is about: run, split, steps, a filter and a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rollout_traces.model.plain_values import INT64_MAX, INT64_MIN
from rollout_traces.store.columns.rollout_table import State
from rollout_traces.store.query.compiler import Sql
from rollout_traces.store.query.nodes import All, Any, Node, Not, Query, Text, TextScan
from rollout_traces.store.query.parser import parse_query, parse_search

Which = Literal["traces", "all"]
"""Traced rollouts, or every rollout there was."""
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
    """

    run_ids: tuple[str, ...] | None = None
    splits: tuple[str, ...] | None = None
    steps: Steps = EVERYTHING
    where: str = ""
    text: str = ""
    rows: Which = "traces"

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

    def parsed(self) -> Query:
        """Parses the filter.

        Raises:
            QueryError: it cannot be understood.
        """
        return parse_query(self.where)

    def searches(self) -> list[Text]:
        """Parses the search.

        Raises:
            QueryError: there is too much of it.
        """
        return parse_search(self.text)

    def looked_for(self) -> list[Text | TextScan]:
        """Lists the texts that conversations must or may hold: the words of the search, and what the filter looks for in them.

        Raises:
            QueryError: filter or search cannot be understood.
        """
        return [*self.searches(), *_texts(self.parsed().node)]


def _texts(node: Node | None) -> list[Text | TextScan]:
    """The searches of a filter; what must not occur is none."""
    if isinstance(node, All | Any):
        return [each for part in node.parts for each in _texts(part)]
    return [node] if isinstance(node, Text | TextScan) else []


def _one_of(column: str, values: Sequence[str | int]) -> Sql:
    return Sql(f"{column} IN ({', '.join('?' * len(values))})", tuple(values))


def conjuncts(node: Node | None) -> list[Node]:
    """The parts of a filter that must all hold."""
    if node is None:
        return []
    return [each for part in node.parts for each in conjuncts(part)] if isinstance(node, All) else [node]


def holds_text(node: Node) -> bool:
    """Tells whether some part of a filter looks into conversations."""
    if isinstance(node, All | Any):
        return any(map(holds_text, node.parts))
    return holds_text(node.part) if isinstance(node, Not) else isinstance(node, Text | TextScan)


def within_64_bits(number: int) -> int:
    """The nearest integer that a database can hold."""
    return max(INT64_MIN, min(INT64_MAX, number))
