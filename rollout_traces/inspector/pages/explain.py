"""Differences between two sets of rollouts: any step, range, split, run or filter against another, as they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rollout_traces.analysis import Explanation, Finding, Selection
from rollout_traces.analysis import explain as explain_selections
from rollout_traces.analysis.finding import Detail
from rollout_traces.analysis.selections import narrowed
from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.figures import QueriesAnswer, answered_all
from rollout_traces.inspector.pages.incidents import run_diagnosed
from rollout_traces.inspector.pages.run import ShownDiagnosis, shown_diagnosis, without_queries
from rollout_traces.inspector.workspace import SplitView, seen, taken
from rollout_traces.model.text import step_range
from rollout_traces.store.asking import Steps

SENTENCES = ("findings", "decompositions", "carried")
"""Parts of an explanation that are sentences with figures."""


@dataclass(frozen=True)
class FilteredRollouts:
    """Rollouts, as a filter of the query language."""

    run: str
    split: str
    where: str


@dataclass(frozen=True)
class ShownDetail(Detail):
    """The place of a difference, rollouts that show it, and the filter that lists all of A's."""

    place: FilteredRollouts


@dataclass(frozen=True)
class ShownFinding(Finding):
    """A column or value that differs between A and B."""

    detail: ShownDetail | None = None


@dataclass(frozen=True, repr=False)
class ExplainAnswer(Explanation):
    """The differences between A and B, ranked; without the queries of their figures.

    Attributes:
        steps: A's first and last.
    """

    findings: tuple[ShownFinding, ...] = ()
    steps: tuple[int | None, int | None] = (None, None)


@dataclass(frozen=True)
class InForceAnswer:
    """The diagnoses that hold at A's steps."""

    diagnoses: list[ShownDiagnosis]


def explain(view: SplitView, asked: AskedSides) -> ExplainAnswer:
    """Tells what differs between A and B; B is the ten steps before A where nothing of `against_...` is given."""
    both = sides(view, asked)
    found = explained(view, both)
    return taken(
        ExplainAnswer,
        found,
        findings=tuple(_shown(each, both) for each in found.findings),
        decompositions=without_queries(found.decompositions),
        carried=without_queries(found.carried),
        steps=both.a.steps,
    )


def in_force(view: SplitView, step: int | None = None, steps: str = "") -> InForceAnswer:
    """The diagnoses of the run that hold at the steps."""
    first, last = sides(view, AskedSides(step, steps)).a.steps
    report = run_diagnosed(view)
    return InForceAnswer([shown_diagnosis(d, report.last_step) for d in report.in_force(first, last)])


def figures(view: SplitView, asked: AskedSides, of: str = "findings", at: int = 0) -> QueriesAnswer:
    """The figures of one sentence of Explain, computed again: `of` is the list it stands in, `at` its place.

    Raises:
        StoreError: there is no such sentence.
    """
    if of not in SENTENCES:
        raise StoreError(f"of: seen {seen(of)}, expected one of {', '.join(SENTENCES)}.")
    sentences: tuple[Any, ...] = getattr(explained(view, sides(view, asked)), of)
    if not 0 <= at < len(sentences):
        raise StoreError(f"{of}: no {at}; there are {len(sentences)}.")
    queries = sentences[at].queries if of == "findings" else (sentences[at].query,)
    return answered_all(view.store.table(), queries)


def explained(view: SplitView, both: Sides) -> Explanation:
    """Has the analysis say what differs between two sets of rollouts."""
    table = view.store.table()
    return view.remembered(("explain", *both.key), lambda: explain_selections(table, both.a, both.b))


def _shown(finding: Finding, both: Sides) -> ShownFinding:
    detail = None
    if finding.detail is not None:
        detail = ShownDetail(**vars(finding.detail), place=filtered(both, finding.detail.where))
    following = without_queries(finding.consequences)
    return taken(ShownFinding, finding, detail=detail, consequences=following, query="")


def filtered(both: Sides, where: str) -> FilteredRollouts:
    """A's rollouts with a finding, as a filter of the query language."""
    first, last = both.a.steps
    parts = [f"({part})" if " or " in part else part for part in (both.where, where) if part]
    if first is not None and first == last:
        parts.append(f"step = {first}")
    else:
        parts += [f"step >= {first}"] if first is not None else []
        parts += [f"step <= {last}"] if last is not None else []
    return FilteredRollouts(both.a.run or "", both.a.split or "", " and ".join(parts))


@dataclass(frozen=True)
class AskedSides:
    """A, and what B has different of it; B is the ten steps before A where nothing of `against_...` is given.

    Attributes:
        step: A's step.
        steps: A's steps, such as `10:20`, in place of one.
        where: A's filter.
        against_run: B's run.
        against_split: B's split.
        against_steps: B's steps.
        against_where: B's filter; A's where it is None.
        against_rest: B is the rollouts of the same place that A's filter leaves out.
    """

    step: int | None = None
    steps: str = ""
    where: str = ""
    against_run: str = ""
    against_split: str = ""
    against_steps: str = ""
    against_where: str | None = None
    against_rest: bool = False


@dataclass(frozen=True)
class Sides:
    """Two sets of rollouts.

    Attributes:
        a: the one in question.
        b: what it is compared with; None for the ten steps before it.
        where: A's filter in the query language.
        key: what was asked for, to remember the answer by.
    """

    a: Selection
    b: Selection | None
    where: str
    key: tuple[Any, ...]


def sides(view: SplitView, asked: AskedSides) -> Sides:
    """The selections that are asked for.

    Raises:
        StoreError: a step is no number, or the rest is asked for without a filter.
        QueryError: a filter cannot be understood.
    """
    steps = step_range(asked.steps) if asked.steps else (asked.step, asked.step)
    a, rest = _selection(view, view.run, view.split, steps, asked.where)
    b = None
    if asked.against_rest:
        if rest is None:
            raise StoreError(
                "against the rest: A has no filter, so nothing is left out. Give one, or other steps."
            )
        b = rest
    elif asked.against_run or asked.against_split or asked.against_steps or asked.against_where is not None:
        b, _ = _selection(
            view,
            asked.against_run or view.run,
            asked.against_split or view.split,
            step_range(asked.against_steps) if asked.against_steps else steps,
            asked.where if asked.against_where is None else asked.against_where,
        )
    return Sides(a, b, asked.where, (a.run, view.split, asked))


def _selection(
    view: SplitView, run: str, split: str, steps: Steps, where: str
) -> tuple[Selection, Selection | None]:
    plain = Selection(view.store.run(run).name, split, steps)
    return narrowed(plain, where, view.store.sql_condition(where)) if where else (plain, None)
