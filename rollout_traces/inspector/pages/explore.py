"""The whole run as a table: traced rollouts, or every row of the ledger."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.figures import (
    PAGE_ROWS,
    Drawn,
    KeptRollouts,
    drawn_by,
    population_over_steps,
)
from rollout_traces.inspector.workspace import FromRuns, Names, ProjectView, SplitView, remembered
from rollout_traces.model.plain_values import finite_or_text
from rollout_traces.store import Histogram, Store, TraceRow
from rollout_traces.store.asking import Scope, Which
from rollout_traces.store.query.nodes import literal
from rollout_traces.store.rows import ColumnInfo

MOST_DOWNLOADED = 1000
BINS = 24
FEW_VALUES = 12
"""Numbers of so few values are counted one by one."""
MOST_VALUES = 40
FOUND = "snippet"
"""The column of a search, behind the reward: the text around what was found."""
WHICH = ("step", "group", "sample", "reward")
OF_TOKENS = ("advantage", "n_sampled", "stop_reason", "staleness_max")
"""Columns that a run of texts alone has no value of."""
WHAT = ("flags", *OF_TOKENS)


@dataclass(frozen=True)
class AskedRows:
    """The rows of a run's split that are meant.

    Attributes:
        where: a filter of the query language.
        text: words and "quoted phrases".
        rows: `traces`, or `all` for every rollout.
    """

    where: str = ""
    text: str = ""
    rows: str = "traces"

    @property
    def which(self) -> Which:
        """The word for what is meant: traces, or all rollouts."""
        return "all" if self.rows == "all" else "traces"

    def of(self, view: SplitView) -> dict[str, Any]:
        """The same as arguments of the store's questions."""
        asked = {"where": self.where, "text": self.text, "rows": self.which, "attempts": "newest"}
        return {"run": view.run, "split": view.split, **asked}


@dataclass(frozen=True)
class TableRow:
    """The wanted cells, and what opens the row."""

    id: str | None
    step: int
    group: int | None
    sample: int | None
    traced: bool
    cells: list[Any]


@dataclass(frozen=True, kw_only=True)
class TableAnswer(KeptRollouts, Drawn):
    """A page of rows with the chosen columns.

    Attributes:
        total: rows that match.
        next: the cursor behind the last one; None at the end.
    """

    columns: list[str]
    rows: list[TableRow]
    total: int
    next: str | None


@dataclass(frozen=True)
class ColumnsAnswer(FromRuns):
    """The columns that a filter can name."""

    columns: list[ColumnInfo]


@dataclass(frozen=True)
class SpreadAnswer:
    """The spread of a column's values over the rows that match: values with counts, or bins and what lies beyond: infinities."""

    column: str
    kind: str
    facets: list[tuple[Any, int]]
    bins: Histogram | None


@dataclass(frozen=True)
class ExportAnswer:
    """The command that exports rows, and the rows as JSON lines where they are no more than `most` and were asked for.

    Attributes:
        superseded: how many of them a later attempt superseded, marked as such in what is written.
    """

    total: int
    superseded: int
    most: int
    lines: str | None
    command: str


def table(
    view: SplitView, asked: AskedRows, columns: Names = (), sort: str = "", after: str = ""
) -> TableAnswer:
    """A page of rows with the chosen columns, and how many match."""
    kept = population_over_steps(view)
    chosen = columns or [
        name for name in default_columns(asked.which, kept.n_traced) if name not in unknown_columns(view)
    ]
    searched = Scope(text=asked.text, where=asked.where).looked_for()
    wanted = [name for name in chosen if name != FOUND]
    if searched:
        wanted.insert(wanted.index("reward") + 1 if "reward" in wanted else len(wanted), FOUND)
    there = {column.name for column in view.store.columns(asked.which)}
    page = view.store.search(
        order_by=sort or None,
        limit=PAGE_ROWS,
        after=after or None,
        columns=[*(name for name in wanted if name in there), "group", "sample"],
        **asked.of(view),
    )
    return TableAnswer(
        columns=wanted,
        rows=[_row(row, wanted) for row in page.rows],
        total=page.total,
        next=page.next,
        **drawn_by(view),
        **vars(kept),
    )


def columns(view: ProjectView, rows: str = "all") -> ColumnsAnswer:
    """The columns that a filter of a project can name: of its `traces`, or of `all` rollouts."""
    return ColumnsAnswer(view.store.columns("all" if rows == "all" else "traces"))


def spread(view: SplitView, asked: AskedRows, column: str) -> SpreadAnswer:
    """A column's values over the rows that match: values with counts, or a histogram."""
    store, scope = view.store, asked.of(view)
    kind = next((c.kind for c in store.columns(asked.which) if c.name == column), "text")
    if kind != "number":
        return SpreadAnswer(column, kind, store.facets(column, limit=MOST_VALUES, **scope), None)
    facets = store.facets(column, limit=BINS, **scope)
    if len(facets) <= FEW_VALUES:
        facets.sort(key=lambda each: (each[0] is None, each[0] or 0))
        return SpreadAnswer(column, kind, _named(facets), None)
    bins = store.histogram(column, BINS, **scope)
    return SpreadAnswer(column, kind, _named(bins.infinite), bins)


def _named(facets: Iterable[tuple[Any, int]]) -> list[tuple[Any, int]]:
    return [(finite_or_text(value), n) for value, n in facets]


def export(view: SplitView, asked: AskedRows, sort: str = "", only_counted: bool = False) -> ExportAnswer:
    """The command that exports the rows that match, and the rows as JSON lines where they are few, unless they are only to be counted."""
    every = asked.of(view) | {"attempts": "all"}
    total, current = view.store.count(**every), view.store.count(**asked.of(view))
    lines = None
    if total <= MOST_DOWNLOADED and not only_counted:
        page = view.store.query(order_by=sort or None, limit=max(total, 1), **every)
        lines = "\n".join(_line(view.store, row) for row in page.rows)
    return ExportAnswer(total, total - current, MOST_DOWNLOADED, lines, command(view, asked, sort))


def export_chosen(view: SplitView, ids: Names, only_counted: bool = False) -> ExportAnswer:
    """The same of rollouts that were chosen one by one, by their traces' ids."""
    if not ids:
        raise StoreError("ids: none named. Choose rollouts in the list.")
    traces = [view.store.find(each) for each in ids]
    uids = [view.store.uid(each) for each in traces]
    name, listed = ("uid", uids) if set(uids).isdisjoint(traces) else ("id", traces)
    quoted = ", ".join(map(literal, listed))
    return export(view, AskedRows(where=f"{name} in ({quoted})"), only_counted=only_counted)


def command(view: SplitView, asked: AskedRows, sort: str = "") -> str:
    """The command line that does the same."""
    given = {
        "--server-url": view.workspace.server_url,
        "--space": view.workspace.space,
        "--project": Path(view.project).resolve() if Path(view.project).is_dir() else view.project,
        "--split": view.split,
        "--where": asked.where,
        "--text": asked.text,
        "--sort": sort,
    }
    options = [f"{option}={value}" for option, value in given.items() if value]
    rows = ["--all"] if asked.which == "all" else []
    return shlex.join(["rollout-traces", "export", view.run, "rollouts.jsonl", *options, *rows])


@remembered
def unknown_columns(view: SplitView) -> frozenset[str]:
    """The columns of `OF_TOKENS` of which no rollout of the run has a value."""
    counts = ", ".join(f'count("{name}")' for name in OF_TOKENS)
    query = f"SELECT {counts} FROM rollouts WHERE run = ? AND split = ?"
    found = view.store.table().sql(query, [view.info.name, view.split])
    return frozenset(name for at, name in enumerate(OF_TOKENS) if not found.column(at)[0].as_py())


def default_columns(rows: Which, n_traced: int) -> tuple[str, ...]:
    """Picks the columns that are shown before others are chosen; what was said, where some of it was kept."""
    said = ("reply",) if n_traced else ()
    chosen = () if rows == "traces" else ("discard_reason", "selected_by")
    return (*WHICH, *said, *WHAT, *chosen)


def _row(row: TraceRow, wanted: list[str]) -> TableRow:
    cells = [finite_or_text(row[name]) for name in wanted]
    return TableRow(row.id, row.step, row["group"], row["sample"], row.id is not None, cells)


def _line(store: Store, row: TraceRow) -> str:
    record = row.as_dict()
    if row.id is not None:
        record["messages"] = store.record(row.id).messages
    return orjson.dumps(record, default=str).decode()
