"""The answers for programs, made of the same functions as the pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rollout_traces.analysis import Selection, diagnose
from rollout_traces.analysis import events as timeline
from rollout_traces.analysis import explain as explain_selections
from rollout_traces.analysis import flips as match_evaluations
from rollout_traces.analysis.runs import settings_sentences
from rollout_traces.errors import StoreError
from rollout_traces.inspector.api import models
from rollout_traces.inspector.api.citations import checked, cite
from rollout_traces.inspector.pages import compare as compare_page
from rollout_traces.inspector.pages.figures import flag_severities
from rollout_traces.inspector.pages.projects import places
from rollout_traces.inspector.payload import rollout_payload
from rollout_traces.inspector.visitor import who_asks
from rollout_traces.inspector.workspace import Request, Workspace
from rollout_traces.plain_values import plain

MOST_ROWS = 200
"""Rows of one page."""
MOST_TEXT = 20_000
"""Characters of a turn that are given; the rest is counted."""
MOST_TURNS = 100
MOST_LINES = 1000
"""Lines of a file of labels that are given at once."""
COLUMNS = ("uid", "group", "sample", "reward", "n_sampled", "stop_reason", "flags", "labels", "source")
"""What rows have before columns are chosen."""


def projects(workspace: Workspace) -> models.ProjectsAnswer:
    """The projects that are shown."""
    return models.ProjectsAnswer(**places(workspace, Request()))


def runs(workspace: Workspace, project: str) -> models.RunsAnswer:
    """The runs of a project."""
    found = workspace.store(project).runs()
    return models.RunsAnswer(
        runs=[models.RunAnswer(**{**asdict(run), "splits": list(run.splits)}) for run in found]
    )


def columns(workspace: Workspace, project: str) -> models.ColumnsAnswer:
    """The columns that a filter of a project can name."""
    found = workspace.store(project).columns("all")
    return models.ColumnsAnswer(columns=[models.ColumnAnswer(**asdict(column)) for column in found])


def rollouts(
    workspace: Workspace,
    project: str,
    where: str = "",
    run: str | None = None,
    split: str | None = None,
    text: str | None = None,
    order_by: str | None = None,
    columns: str = "",
    rows: str = "traces",
    limit: int = 20,
    after: str | None = None,
) -> models.RolloutsAnswer:
    """Rollouts that satisfy a filter, a page at a time; where text is looked for, the words around it in `snippet`.

    Args:
        workspace: where from.
        project: the project.
        where: a filter such as `reward < 0.5 and flags has 'truncated'`.
        run: name or id of a run.
        split: `rollout` or `eval-rollout`.
        text: words and "quoted phrases" of the conversation.
        order_by: such as `-reward,step`.
        columns: names with commas between; the usual ones when empty.
        rows: `traces`, or `all` for every rollout there was.
        limit: rows, 1 to `MOST_ROWS`.
        after: `next` of the page before.

    Raises:
        StoreError: `rows` or `limit` is something else, or there is no such run.
        QueryError: filter, order or columns cannot be understood.
    """
    if rows not in ("traces", "all") or not 1 <= limit <= MOST_ROWS:
        raise StoreError(f"rows: traces or all; limit: 1 to {MOST_ROWS}. Seen {rows[:20]!r} and {limit}.")
    store = workspace.store(project)
    named = [name.strip() for name in columns.split(",") if name.strip()]
    known = {column.name for column in store.columns("all")} if named else set()
    if unknown := [name for name in named if name not in known]:
        raise StoreError(f"columns: no {unknown[0][:80]!r}. Ask `columns` for those that there are.")
    wanted = named or list(COLUMNS)
    page = store.search(
        text or "", run or None, split=split or None, where=where, order_by=order_by or None, limit=limit,
        after=after or None, rows="all" if rows == "all" else "traces", columns=wanted,
    )  # fmt: skip
    return models.RolloutsAnswer(
        rows=[plain(row.as_dict()) for row in page.rows], total=page.total, next=page.next
    )


def rollout(workspace: Workspace, project: str, id: str, first_turn: int = 0) -> models.RolloutAnswer:
    """One rollout by uid or trace id, `MOST_TURNS` turns at a time.

    Raises:
        StoreError: there is none, or it cannot be read.
    """
    store = workspace.store(project)
    trace_id = store.find(id)
    payload = rollout_payload(trace_id, store.record(trace_id), flag_severities())
    uid = store.uid(trace_id)
    turns = payload["turns"][max(first_turn, 0) :][:MOST_TURNS]
    return models.RolloutAnswer(
        id=trace_id,
        uid=uid,
        citation=cite(uid),
        metadata=payload["metadata"],
        flags=payload["flags"],
        turns=[_turn(turn) for turn in turns],
        labels=list(store.labels.of(uid)),
        n_turns=len(payload["turns"]),
    )


def compare(workspace: Workspace, project: str, a: str, b: str) -> models.ComparisonAnswer:
    """Two rollouts by uid or trace id: where they part and what differs."""
    store = workspace.store(project)
    ids = [store.find(a), store.find(b)]
    records = [store.record(trace_id) for trace_id in ids]
    return models.ComparisonAnswer(
        a=store.uid(ids[0]),
        b=store.uid(ids[1]),
        shared_tokens=compare_page.shared_prefix(*records),
        deltas=compare_page.deltas(*(record.metadata for record in records)),
    )


def report(workspace: Workspace, project: str, run: str, split: str = "rollout") -> models.ReportAnswer:
    """What is wrong with a run, since when and why."""
    store = workspace.store(project)
    name = store.run(run).name
    found = workspace.remembered(
        ("run report", name, split), project, lambda: diagnose(store.table(), name, split)
    )
    return models.ReportAnswer(
        run=found.run,
        split=found.split,
        n_steps=found.n_steps,
        n_rows=found.n_rows,
        settings=settings_sentences(store, name),
        diagnoses=[_diagnosis(each) for each in found.diagnoses],
        unobserved=[str(missing) for missing in found.unobserved],
        remarks=list(found.remarks),
        problems=list(found.problems),
    )


def explain(
    workspace: Workspace, project: str, run: str, step: int, split: str = "rollout"
) -> models.ExplanationAnswer:
    """What differs at a step from the ten before it."""
    store = workspace.store(project)
    name = store.run(run).name
    selection = Selection(name, split, (step, step))
    found = workspace.remembered(
        ("explain", name, split, step), project, lambda: explain_selections(store.table(), selection)
    )
    return models.ExplanationAnswer(
        step=step, findings=[_finding(each) for each in found.findings], remarks=list(found.remarks)
    )


def events(workspace: Workspace, project: str, run: str, split: str = "rollout") -> models.EventsAnswer:
    """What happened in a run, step by step."""
    store = workspace.store(project)
    found = timeline(store.table(), store.run(run).name, split)
    return models.EventsAnswer(
        events=[
            models.EventAnswer(step=each.step, last=each.last, kind=each.kind, sentence=each.sentence)
            for each in found
        ]
    )


def flips(
    workspace: Workspace, project: str, run: str, first: int, last: int, split: str = "eval-rollout"
) -> models.FlipsAnswer:
    """Prompts that a run's evaluations at two steps solved differently."""
    store = workspace.store(project)
    name = store.run(run).name
    a, b = (Selection(name, split, (step, step)) for step in (first, last))
    found = match_evaluations(store.table(), a, b)
    shown = [each for each in found.prompts if each.outcome in ("lost", "won")][:MOST_ROWS]
    names = tuple(models.FlipAnswer.model_fields)
    return models.FlipsAnswer(
        a=str(found.a),
        b=str(found.b),
        score_a=found.score_a,
        score_b=found.score_b,
        difference=found.difference,
        counts=dict(found.counts),
        prompts=[models.FlipAnswer(**{name: getattr(each, name) for name in names}) for each in shown],
    )


def labels(workspace: Workspace, project: str, id: str) -> models.LabelsAnswer:
    """The labels and notes of a rollout."""
    store = workspace.store(project)
    return models.LabelsAnswer(labels=list(store.labels.of(store.uid(store.find(id)))))


def add_label(workspace: Workspace, new: models.NewLabel) -> models.LabelsAnswer:
    """Puts a label or a note on a rollout.

    Raises:
        StoreError: this server takes none, or it cannot be understood.
    """
    from rollout_traces.inspector.pages.labels import annotate

    trace_id = workspace.store(new.project).find(new.id)
    annotate(workspace, Request({**new.model_dump(), "id": trace_id}))
    return labels(workspace, new.project, trace_id)


def label_lines(
    workspace: Workspace, project: str, after: int = 0, limit: int = MOST_LINES
) -> models.LabelLinesAnswer:
    """The lines of a project's file of labels, in their order: what another copy of it lacks."""
    if after < 0 or not 1 <= limit <= MOST_LINES:
        raise StoreError(f"after: 0 or more; limit: 1 to {MOST_LINES}. Seen {after} and {limit}.")
    lines = workspace.store(project).labels.lines()
    behind = after + limit
    return models.LabelLinesAnswer(
        lines=lines[after:behind], author=who_asks().name, next=behind if behind < len(lines) else None
    )


def take_label_lines(workspace: Workspace, given: models.LabelLines) -> models.TakenAnswer:
    """Takes the visitor's own lines of a file of labels that lies elsewhere; those that are here are passed over."""
    from rollout_traces.inspector.label_lines import take_lines
    from rollout_traces.inspector.pages.labels import TAKES_NONE

    if not workspace.may_label:
        raise StoreError(TAKES_NONE)
    found = take_lines(workspace.store(given.project), given.lines, who_asks())
    return models.TakenAnswer(taken=found.taken, refused=list(found.refused))


def citations(workspace: Workspace, text: models.CheckedText) -> models.CitationsAnswer:
    """The citations of a text, `rollout:UID#FIRST-LAST`, and whether each leads somewhere."""
    return checked(workspace.store(text.project), text.text)


def open_page(workspace: Workspace, place: models.PageState) -> models.OpenedAnswer:
    """Asks the page that a person looks at to show a state; it does where he allows it."""
    workspace.ask_to_open(place.state)
    return models.OpenedAnswer(asked=True)


def _turn(turn: Mapping[str, Any]) -> models.TurnAnswer:
    content = turn["content"]
    known = turn["n_tokens"] is not None
    return models.TurnAnswer(
        role=turn["role"],
        content=content[:MOST_TEXT],
        thinking=None if turn["thinking"] is None else turn["thinking"][:MOST_TEXT],
        tool_calls=[{k: call[k] for k in ("id", "name", "arguments")} for call in turn["tool_calls"]],
        start=turn["start"] if known else None,
        stop=turn["stop"] if known else None,
        cut=max(len(content) - MOST_TEXT, 0),
    )


def _diagnosis(each: Any) -> models.DiagnosisAnswer:
    return models.DiagnosisAnswer(
        name=each.name,
        series=[str(name) for name in each.series],
        sentence=each.sentence,
        severity=each.severity,
        step=each.step,
        last=each.last,
        where=each.where or None,
        advice=each.advice or "",
        flips=each.flips,
        consequences=[consequence.sentence for consequence in each.consequences],
    )


def _finding(each: Any) -> models.FindingAnswer:
    detail = each.detail
    return models.FindingAnswer(
        sentence=each.sentence,
        column=each.column,
        effect=each.effect.effect,
        p=each.effect.p,
        examples=[] if detail is None else [str(i) for i in detail.examples if i],
        where=None if detail is None else detail.where or None,
    )
