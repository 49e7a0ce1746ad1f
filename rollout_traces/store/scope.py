"""Which rows a question is about: run, split, steps, a filter and a search, as one SQL condition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollout_traces.store.query.nodes import All, Node, Substring, Text
from rollout_traces.store.query.parser import parse_query
from rollout_traces.store.query.search_text import parse_search

Rows = Literal["traces", "ledger"]
"""Traced rollouts, or every rollout that the ledgers know of."""


def within_sqlite(number: int) -> int:
    """The nearest integer that SQLite can hold."""
    return max(-(2**63), min(2**63 - 1, number))


@dataclass(frozen=True)
class Scope:
    """Which rows are meant.

    Attributes:
        run_id: of this run alone.
        split: of this split alone.
        steps: first and last step, both included; None at an end is open.
        where: a filter in the query language.
        text: words and quoted phrases that the conversation must hold, all of them.
        rows: `traces`, or `ledger` for every rollout of the ledgers.
    """

    run_id: str | None = None
    split: str | None = None
    steps: tuple[int | None, int | None] = (None, None)
    where: str = ""
    text: str = ""
    rows: Rows = "traces"

    @property
    def filtered(self) -> bool:
        """Whether more than run, split and steps decides."""
        return bool(self.where or self.text)

    @property
    def access(self) -> str:
        """How SQLite gets at the rows, behind the table's name.

        A table is read from end to end where most of its rows would be looked up through an index one by
        one; steps lie beside each other in one.
        """
        if self.steps == (None, None):
            return " NOT INDEXED"
        of_one_split = self.run_id is not None and self.split is not None
        return "" if of_one_split else f" INDEXED BY {self.rows}_newest"

    def place(self) -> tuple[str, tuple[str | int, ...]]:
        """The condition on run, split and steps, and its parameters."""
        parts: list[str] = []
        parameters: list[str | int] = []
        if self.run_id is not None:
            parts.append("t.run = (SELECT run FROM runs WHERE run_id = ?)")
            parameters.append(self.run_id)
        if self.split is not None:
            parts.append("t.split = ?")
            parameters.append(self.split)
        for bound, operator in zip(self.steps, (">=", "<="), strict=True):
            if bound is not None:
                parts.append(f"t.step {operator} ?")
                parameters.append(within_sqlite(bound))
        return " AND ".join(parts) or "1", tuple(parameters)

    def conditions(self) -> tuple[list[Node], list[Text | Substring]]:
        """Filter and search as conjuncts: those without a plain text search, and the searches.

        Raises:
            QueryError: the filter cannot be understood.
        """
        node = parse_query(self.where)
        parts = [] if node is None else list(node.parts) if isinstance(node, All) else [node]
        parts += parse_search(self.text)
        return (
            [part for part in parts if not isinstance(part, Text | Substring)],
            [part for part in parts if isinstance(part, Text | Substring)],
        )
