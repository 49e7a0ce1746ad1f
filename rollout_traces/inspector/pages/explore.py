"""The whole run as a table: traced rollouts, or every row of the ledger."""

from __future__ import annotations

import shlex
from typing import Any

import orjson

from rollout_traces.inspector.pages.base import Page
from rollout_traces.inspector.pages.figures import axis_range, chosen_over_steps, flag_severities
from rollout_traces.inspector.workspace import Request, Workspace
from rollout_traces.store import Store, TraceRow
from rollout_traces.store.scope import Scope, Which

PAGE_ROWS = 100
MOST_DOWNLOADED = 1000
BINS = 24
FOUND = "snippet"
"""The last column of a search: the text around what was found."""

WHICH = ("step", "group", "sample", "reward")
WHAT = ("flags", "advantage", "n_sampled", "stop_reason", "staleness_max")


def table(workspace: Workspace, request: Request) -> dict[str, Any]:
    """A page of rows with the chosen columns, and how many match."""
    store = workspace.store(request.project)
    steps = store.steps(request.run, request.split)
    n_traced = sum(info.n_traces for info in steps)
    chosen = request.names("columns") or default_columns(_rows(request), n_traced)
    searched = Scope(text=request.text("text"), where=request.text("where")).looked_for()
    wanted = tuple(name for name in chosen if name != FOUND) + ((FOUND,) if searched else ())
    there = {column.name for column in store.columns(_rows(request))}
    page = store.search(
        order_by=request.text("sort") or None,
        limit=PAGE_ROWS,
        after=request.text("after") or None,
        columns=[*(name for name in wanted if name in there), "group", "sample"],
        **_asked(request),
    )
    known = [info.n_rollouts for info in steps if info.n_rollouts is not None]
    return {
        "columns": list(wanted),
        "rows": [_plain(row, wanted) for row in page.rows],
        "total": page.total,
        "next": page.next,
        "range": axis_range(workspace, request, "reward"),
        "n_traced": n_traced,
        "n_rows": sum(known) or None,
        "chosen_by": chosen_over_steps(workspace, request),
        "severities": flag_severities(),
    }


def columns(workspace: Workspace, request: Request) -> dict[str, Any]:
    """The columns there are, with their kinds and meanings."""
    found = workspace.store(request.project).columns(_rows(request))
    return {"columns": [{"name": c.name, "kind": c.kind, "meaning": c.meaning} for c in found]}


def spread(workspace: Workspace, request: Request) -> dict[str, Any]:
    """How a column's values are spread over the rows that match: bins of numbers, counts of names."""
    store = workspace.store(request.project)
    name = request.text("column")
    kind = next((c.kind for c in store.columns(_rows(request)) if c.name == name), "text")
    asked = _asked(request)
    if kind == "number":
        facets = store.facets(name, limit=BINS, **asked)
        if len(facets) <= 12:
            return {"column": name, "kind": kind, "facets": sorted(facets, key=_value_order), "bins": None}
        histogram = store.histogram(name, BINS, **asked)
        return {
            "column": name,
            "kind": kind,
            "facets": None,
            "bins": {"edges": histogram.edges, "counts": histogram.counts, "unknown": histogram.unknown},
        }
    return {"column": name, "kind": kind, "facets": store.facets(name, limit=40, **asked), "bins": None}


def export(workspace: Workspace, request: Request) -> dict[str, Any]:
    """The command that exports what is shown, and the rows themselves as JSON lines when they are few."""
    store = workspace.store(request.project)
    asked = _asked(request)
    total = store.count(**asked)
    lines = None
    if total <= MOST_DOWNLOADED:
        page = store.query(order_by=request.text("sort") or None, limit=max(total, 1), **asked)
        lines = "\n".join(_line(store, row) for row in page.rows)
    return {"total": total, "most": MOST_DOWNLOADED, "lines": lines, "command": command(workspace, request)}


def command(workspace: Workspace, request: Request) -> str:
    """The command line that does the same."""
    asked = {
        "--server-url": workspace.server_url,
        "--space": workspace.space,
        "--project": request.project,
        "--run": request.run,
        "--split": request.split,
        "--where": request.text("where"),
        "--text": request.text("text"),
        "--sort": request.text("sort"),
    }
    options = [f"{option}={value}" for option, value in asked.items() if value]
    rows = ["--all"] if _rows(request) == "all" else []
    return shlex.join(["rollout-traces", "export", "rollouts.jsonl", *options, *rows])


def default_columns(rows: Which, n_traced: int) -> tuple[str, ...]:
    """What is shown before columns are chosen; what was said, where some of it was kept."""
    said = ("reply",) if n_traced else ()
    chosen = () if rows == "traces" else ("discard_reason", "selected_by")
    return (*WHICH, *said, *WHAT, *chosen)


def _asked(request: Request) -> dict[str, Any]:
    return {
        "run": request.run,
        "split": request.split,
        "where": request.text("where"),
        "text": request.text("text"),
        "rows": _rows(request),
    }


def _rows(request: Request) -> Which:
    return "all" if request.text("rows") == "all" else "traces"


def _plain(row: TraceRow, wanted: tuple[str, ...]) -> dict[str, Any]:
    """The wanted cells, and what opens the row."""
    values = [row[name] for name in wanted]
    return {
        "id": row.id,
        "step": row.step,
        "group": row["group"],
        "sample": row["sample"],
        "traced": row.id is not None,
        "cells": [list(value) if isinstance(value, tuple) else value for value in values],
    }


def _line(store: Store, row: TraceRow) -> str:
    record = row.as_dict()
    if row.id is not None:
        record["messages"] = store.record(row.id).messages
    return orjson.dumps(record, default=str).decode()


def _value_order(facet: tuple[Any, int]) -> tuple[bool, Any]:
    return (facet[0] is None, facet[0] if facet[0] is not None else 0)


PAGE = Page(name="explore", title="Explore", key="3", functions=(table, columns, spread, export))
