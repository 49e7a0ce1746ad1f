"""What differs between two sets of rollouts: any step, range, split, run or filter against another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.base import Page
from rollout_traces.inspector.pages.diagnosed import run_diagnosed
from rollout_traces.inspector.pages.selecting import Sides, relations_of, sides
from rollout_traces.inspector.workspace import Request, Workspace

if TYPE_CHECKING:
    from rollout_traces.analysis import Explanation

SENTENCES = ("findings", "decompositions", "carried")
"""What an explanation says with figures."""
MOST_ROWS = 200
"""Rows of a query's answer that are shown."""


def explain(workspace: Workspace, request: Request) -> dict[str, Any]:
    """What differs between A and B, ranked, with what the page draws of it."""
    asked = sides(workspace, request)
    return plain(_explained(workspace, request, asked), asked)


def in_force(workspace: Workspace, request: Request) -> dict[str, Any]:
    """The diagnoses of A's run that hold at A's steps."""
    first, last = sides(workspace, request).a.steps
    found = run_diagnosed(workspace, request).in_force(first, last)
    return {"diagnoses": [{"sentence": d.sentence, "severity": d.severity} for d in found]}


def figures(workspace: Workspace, request: Request) -> dict[str, Any]:
    """The figures of one sentence, computed again by the queries that the page shows.

    `of` names a list of the explanation (`findings`, `decompositions`, `carried`), `at` a place in it.

    Raises:
        StoreError: there is no such sentence.
    """
    found = _explained(workspace, request, sides(workspace, request))
    of, at = request.text("of") or "findings", request.number("at") or 0
    if of not in SENTENCES:
        raise StoreError(f"of: seen {of[:40]!r}, expected one of {', '.join(SENTENCES)}.")
    sentences = getattr(found, of)
    if not 0 <= at < len(sentences):
        raise StoreError(f"{of}: no {at}; there are {len(sentences)}.")
    queries = sentences[at].queries if of == "findings" else (sentences[at].query,)
    return answered_all(workspace.store(request.project).table(), queries)


def answered_all(table: Any, queries: Sequence[str]) -> dict[str, Any]:
    """Queries of the analysis, each with its rows."""
    answers = []
    for query in queries:
        found = table.sql(query)
        rows = [[_plain(value) for value in row.values()] for row in found.slice(0, MOST_ROWS).to_pylist()]
        answers.append({"sql": query, "columns": found.column_names, "rows": rows, "n_rows": found.num_rows})
    return {"queries": answers}


def _plain(value: Any) -> Any:
    """A value as JSON has it: DuckDB sums whole numbers as decimals."""
    return int(value) if isinstance(value, Decimal) else value


def _explained(workspace: Workspace, request: Request, asked: Sides) -> Explanation:
    from rollout_traces.analysis import explain as explain_selections

    whole = workspace.store(request.project).table()

    def compute() -> Explanation:
        with workspace.turns.first():
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
    answer["carried"] = [{**asdict(each), "sentence": each.sentence} for each in found.carried]
    answer["steps"] = list(asked.a.steps)
    return without_queries(answer)


def without_queries(answer: Any) -> Any:
    """An answer without the queries of its sentences: the page asks for one when it is wanted."""
    if isinstance(answer, dict):
        return {key: without_queries(value) for key, value in answer.items() if key != "query"}
    return [without_queries(value) for value in answer] if isinstance(answer, (list, tuple)) else answer


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
