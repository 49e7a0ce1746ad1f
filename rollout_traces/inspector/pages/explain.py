"""What differs between two sets of rollouts: any step, range, split, run or filter against another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.base import Page
from rollout_traces.inspector.pages.diagnosed import run_diagnosed
from rollout_traces.inspector.pages.selecting import Sides, relations_of, sides
from rollout_traces.inspector.workspace import Request, Workspace

if TYPE_CHECKING:
    from rollout_traces.analysis import Explanation

MOST_ROWS = 200
"""Rows of a query's answer that are shown."""


def explain(workspace: Workspace, request: Request) -> dict[str, Any]:
    """What differs between A and B, ranked, with what the page draws of it."""
    asked = sides(workspace, request)
    return plain(_explained(workspace, request, asked), asked)


def in_force(workspace: Workspace, request: Request) -> dict[str, Any]:
    """The diagnoses of A's run that hold at A's steps."""
    first, last = sides(workspace, request).a.steps
    found = [
        d
        for d in run_diagnosed(workspace, request).diagnoses
        if d.step is not None
        and (last is None or d.step <= last)
        and (d.last is None or first is None or d.last >= first)
    ]
    return {"diagnoses": [{"sentence": d.sentence, "severity": d.severity} for d in found]}


def figures(workspace: Workspace, request: Request) -> dict[str, Any]:
    """The figures of one finding's sentence, computed again by the queries that the page shows.

    Raises:
        StoreError: there is no such finding.
    """
    found = _explained(workspace, request, sides(workspace, request))
    at = request.number("finding") or 0
    if not 0 <= at < len(found.findings):
        raise StoreError(f"finding: no {at}; there are {len(found.findings)}.")
    detail = found.findings[at].detail
    if detail is None:
        return {"queries": []}
    asked = [(detail.query, detail.params)]
    if detail.since_query:
        asked.append((detail.since_query, detail.since_params))
    table = workspace.store(request.project).table()
    return {"queries": [answered(table, query, params) for query, params in asked]}


def answered(table: Any, query: str, params: Sequence[Any] = ()) -> dict[str, Any]:
    """A query of the analysis with its parameters written in, and its rows."""
    found = table.sql(query, list(params))
    rows = found.slice(0, MOST_ROWS)
    return {
        "sql": written(query, params),
        "columns": found.column_names,
        "rows": [list(row.values()) for row in rows.to_pylist()],
        "n_rows": found.num_rows,
    }


def written(query: str, params: Sequence[Any]) -> str:
    """A statement with its parameters as literals, to be read and pasted."""
    parts = query.split("?")
    if len(parts) != len(params) + 1:
        return f"{query}\n-- parameters: {list(params)}"
    literals = [*(_literal(value) for value in params), ""]
    return "".join(part + literal for part, literal in zip(parts, literals, strict=True))


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return "null" if value is None else str(value)


def _explained(workspace: Workspace, request: Request, asked: Sides) -> Explanation:
    from rollout_traces.analysis import explain as explain_selections

    whole = workspace.store(request.project).table()

    def compute() -> Explanation:
        part = relations_of(workspace, request.project, asked)
        return explain_selections(part, asked.a, asked.b, whole=whole)

    return workspace.remembered(("explain", *asked.key), request.project, compute)


def plain(found: Explanation, asked: Sides) -> dict[str, Any]:
    """An explanation as the page takes it: sentences, and for each finding the filter that lists its rollouts."""
    answer = asdict(found)
    for finding, each in zip(found.findings, answer["findings"], strict=True):
        each["sentence"] = finding.sentence
        each["consequences"] = [one.sentence for one in finding.consequences]
        if finding.detail is not None:
            each["detail"]["place"] = place(asked, finding.detail.where)
            for name in ("query", "params", "since_query", "since_params"):
                del each["detail"][name]
    answer["carried"] = [{**asdict(each), "sentence": each.sentence} for each in found.carried]
    answer["steps"] = list(asked.a.steps)
    return answer


def place(asked: Sides, where: str) -> Mapping[str, str]:
    """A's rollouts with a finding, as a filter of the query language."""
    first, last = asked.a.steps
    parts = [f"({part})" if " or " in part else part for part in (asked.where, where) if part]
    if first is not None and first == last:
        parts.append(f"step = {first}")
    else:
        parts += [f"step >= {first}"] if first is not None else []
        parts += [f"step <= {last}"] if last is not None else []
    return {"run": asked.a.run or "", "split": asked.a.split or "", "where": " and ".join(parts)}


PAGE = Page(name="explain", title="Explain", key="7", functions=(explain, figures, in_force))
