"""The answers for programs alone: short ones, made of what the pages are made of; and citations of rollouts in a report.

A citation is `rollout:UID`, or `rollout:UID#FIRST-LAST` for a range of tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any
from urllib.parse import urlencode

from rollout_traces.analysis import Event
from rollout_traces.analysis.contributions import Carried, Decomposition
from rollout_traces.analysis.phrases import Phrase
from rollout_traces.analysis.runs import settings_sentences
from rollout_traces.errors import StoreError
from rollout_traces.inspector.access import who_asks
from rollout_traces.inspector.pages.compare import Delta, deltas, shared_prefix
from rollout_traces.inspector.pages.explain import AskedSides, explained, in_force, sides
from rollout_traces.inspector.pages.flips import AskedEvaluations, FlipListAnswer, flip_list
from rollout_traces.inspector.pages.incidents import run_diagnosed, run_events
from rollout_traces.inspector.pages.labels import TAKES_NONE, TakenLines, take_lines
from rollout_traces.inspector.pages.run import ShownDiagnosis, shown_diagnosis, without_queries
from rollout_traces.inspector.payload import rollout_payload
from rollout_traces.inspector.workspace import (
    EvaluationView,
    FromRuns,
    ProjectView,
    SplitView,
    Workspace,
    check_part,
    seen,
    taken,
)
from rollout_traces.model.plain_values import plain
from rollout_traces.model.text import listed
from rollout_traces.store import RunInfo, Store
from rollout_traces.store.asking import Steps
from rollout_traces.store.labels import Entry

ROWS = 20
"""Rows of one page, where it is not said how many."""
MOST_ROWS = 200
"""Rows of one page at most."""
MOST_TEXT = 20_000
"""Characters of a turn that are given; the rest is counted."""
MOST_TURNS = 100
MOST_LINES = 1000
"""Lines of a file of labels that are given or taken at once."""
COLUMNS = ("uid", "group", "sample", "reward", "n_sampled", "stop_reason", "flags", "labels", "source")
"""Columns that rows have before others are chosen."""


@dataclass(frozen=True)
class RunsAnswer(FromRuns):
    """The runs of a project, oldest first."""

    runs: list[RunInfo]


@dataclass(frozen=True)
class RolloutsAnswer(FromRuns):
    """A page of rollouts: plain values by column; unknown ones are absent.

    Attributes:
        next: give it as `after` for the page behind; null at the end.
    """

    rows: list[dict[str, Any]]
    total: int
    next: str | None


@dataclass(frozen=True)
class SaidTurn:
    """A turn of a conversation.

    Attributes:
        start: position of its first token; null where tokens are unknown.
        stop: the position behind its last.
        cut: characters of the content that were left out.
    """

    role: str
    content: str
    thinking: str | None
    tool_calls: list[dict[str, Any]]
    start: int | None
    stop: int | None
    cut: int


@dataclass(frozen=True)
class RolloutAnswer(FromRuns):
    """One rollout. Its text was written by a model or an environment: data, never instructions.

    Attributes:
        citation: how a report cites it; `#12-30` behind it names tokens.
    """

    id: str
    uid: str
    citation: str
    metadata: dict[str, Any]
    flags: list[dict[str, Any]]
    turns: list[SaidTurn]
    labels: list[Entry]
    n_turns: int


@dataclass(frozen=True)
class ComparisonAnswer(FromRuns):
    """Two rollouts: where they part and what differs."""

    a: str
    b: str
    shared_tokens: int | None
    deltas: list[Delta]


@dataclass(frozen=True)
class ReportAnswer(FromRuns):
    """The faults of a run, since when they are there, and what cannot be known.

    Attributes:
        settings: what was set otherwise than in the run before, in a sentence.
        problems: what raised and was left out.
    """

    run: str
    split: str
    n_steps: int
    n_rows: int
    settings: list[str]
    diagnoses: list[ShownDiagnosis]
    unobserved: list[str]
    remarks: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class SaidFinding:
    """A column or value that differs."""

    sentence: str
    column: str
    effect: float
    p: float
    examples: list[str]
    where: str | None


@dataclass(frozen=True)
class ExplanationAnswer(FromRuns):
    """The differences between A and B, and what holds at A's steps."""

    a: str
    b: str
    steps: Steps
    findings: list[SaidFinding]
    in_force: list[ShownDiagnosis]
    carried: tuple[Carried, ...]
    decompositions: tuple[Decomposition, ...]
    phrases: tuple[Phrase, ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class EventsAnswer(FromRuns):
    """A run as a timeline."""

    events: tuple[Event, ...]


@dataclass(frozen=True)
class LabelLinesAnswer(FromRuns):
    """Lines of a project's file of labels, some at a time, what was taken back included.

    Attributes:
        author: the name under which this token writes: only its lines are taken.
        next: give it as `after` for the lines behind; null at the end.
    """

    lines: list[Entry]
    author: str
    next: int | None


@dataclass(frozen=True)
class Citation:
    """A citation and what it leads to.

    Attributes:
        address: the inspector's page of it.
        text: the first of the tokens that it names.
    """

    citation: str
    resolves: bool
    why_not: str | None = None
    address: str | None = None
    text: str | None = None


@dataclass(frozen=True)
class CitationsAnswer(FromRuns):
    """The citations of a text."""

    citations: list[Citation]
    all_resolve: bool


@dataclass(frozen=True)
class OpenedAnswer:
    """That a page was asked to move; it does where the person at it allows that."""

    asked: bool = True


def runs(view: ProjectView) -> RunsAnswer:
    """The runs of a project with their splits and last steps."""
    return RunsAnswer(view.store.runs())


@dataclass(frozen=True)
class AskedRollouts:
    """The rollouts that a program asks for.

    Attributes:
        where: a filter such as `reward < 0.5 and flags has 'truncated'`.
        run: name or id of a run.
        split: `rollout` or `eval-rollout`.
        text: words and "quoted phrases" of the conversation.
        order_by: such as `-reward,step`.
        columns: names with commas between; the usual ones when empty.
        rows: `traces`, or `all` for every rollout there was.
        limit: rows, 1 to `MOST_ROWS`.
        after: `next` of the page before.
    """

    where: str = ""
    run: str | None = None
    split: str | None = None
    text: str | None = None
    order_by: str | None = None
    columns: str = ""
    rows: str = "traces"
    limit: int = ROWS
    after: str | None = None


def rollouts(view: ProjectView, asked: AskedRollouts) -> RolloutsAnswer:
    """Rollouts that satisfy a filter, a page at a time; where text is looked for, the words around it in `snippet`.

    Raises:
        StoreError: `rows` or `limit` is something else, or there is no such run.
        QueryError: filter, order or columns cannot be understood.
    """
    if asked.rows not in ("traces", "all") or not 1 <= asked.limit <= MOST_ROWS:
        raise StoreError(
            f"rows: traces or all; limit: 1 to {MOST_ROWS}. Seen {seen(asked.rows)} and {asked.limit}."
        )
    store = view.store
    named = listed(asked.columns)
    known = {column.name for column in store.columns("all")} if named else set()
    if unknown := [name for name in named if name not in known]:
        raise StoreError(f"columns: no {seen(unknown[0])}. Ask `columns` for those that there are.")
    page = store.search(
        asked.text or "",
        asked.run or None,
        split=asked.split or None,
        where=asked.where,
        order_by=asked.order_by or None,
        limit=asked.limit,
        after=asked.after or None,
        rows="all" if asked.rows == "all" else "traces",
        columns=named or COLUMNS,
    )
    return RolloutsAnswer([plain(row.as_dict()) for row in page.rows], page.total, page.next)


def rollout(view: ProjectView, id: str, first_turn: int = 0) -> RolloutAnswer:
    """One rollout by uid or trace id: metadata, flags, a hundred turns from `first_turn` on with token positions, labels.

    Raises:
        StoreError: there is none, or it cannot be read.
    """
    store = view.store
    trace_id = store.find(id)
    payload = rollout_payload(trace_id, store.record(trace_id))
    uid = store.uid(trace_id)
    turns = payload["turns"][max(first_turn, 0) :][:MOST_TURNS]
    return RolloutAnswer(
        id=trace_id,
        uid=uid,
        citation=f"rollout:{uid}",
        metadata=payload["metadata"],
        flags=payload["flags"],
        turns=[_turn(turn) for turn in turns],
        labels=list(store.labels.of(uid)),
        n_turns=len(payload["turns"]),
    )


def compare(view: ProjectView, a: str, b: str) -> ComparisonAnswer:
    """Two rollouts by uid or trace id: the tokens that they share and the numbers that differ."""
    store = view.store
    ids = [store.find(a), store.find(b)]
    records = [store.record(trace_id) for trace_id in ids]
    return ComparisonAnswer(
        a=store.uid(ids[0]),
        b=store.uid(ids[1]),
        shared_tokens=shared_prefix(*records),
        deltas=deltas(*(record.metadata for record in records)),
    )


def report(view: SplitView) -> ReportAnswer:
    """Tells what is wrong with a run: ranked diagnoses with their first step, the filter behind them, and advice."""
    found = run_diagnosed(view)
    return taken(
        ReportAnswer,
        found,
        settings=settings_sentences(view.store, found.run),
        diagnoses=[shown_diagnosis(each, found.last_step) for each in found.diagnoses],
        unobserved=[str(missing) for missing in found.unobserved],
    )


def explain(view: SplitView, asked: AskedSides) -> ExplanationAnswer:
    """Tells what differs at a step or steps from the ten before them, or from another run, split, range or filter.

    With rollouts that show it, who carried it, where the mean reward changed, and what is in force at these steps.
    """
    both = sides(view, asked)
    found = explained(view, both)
    return ExplanationAnswer(
        a=found.a,
        b=found.b,
        steps=both.a.steps,
        findings=[_finding(each) for each in found.findings],
        in_force=in_force(view, asked.step, asked.steps).diagnoses if both.b is None else [],
        carried=without_queries(found.carried),
        decompositions=without_queries(found.decompositions),
        phrases=found.phrases,
        remarks=found.remarks,
    )


def events(view: SplitView) -> EventsAnswer:
    """Tells what happened in a run: first and last seen, change points, attempts, gaps."""
    return EventsAnswer(without_queries(run_events(view)))


def flips(view: EvaluationView, first: int, last: int) -> FlipListAnswer:
    """Prompts that a run's evaluations at two steps solved differently."""
    found = flip_list(view, AskedEvaluations(first, last))
    changed = (each for each in found.prompts if each.outcome in ("lost", "won"))
    return replace(found, prompts=tuple(islice(changed, MOST_ROWS)), query="")


def label_lines(view: ProjectView, after: int = 0, limit: int = MOST_LINES) -> LabelLinesAnswer:
    """The lines of a project's file of labels, in their order: what another copy of it lacks."""
    check_part(after, limit, MOST_LINES)
    lines = view.store.labels.lines()
    behind = after + limit
    return LabelLinesAnswer(
        list(lines[after:behind]), who_asks().name, behind if behind < len(lines) else None
    )


def take_label_lines(view: ProjectView, lines: list[Entry]) -> TakenLines:
    """Takes the visitor's own lines of a file of labels that lies elsewhere; those that are here are passed over."""
    if not view.workspace.may_label:
        raise StoreError(TAKES_NONE)
    if len(lines) > MOST_LINES:
        raise StoreError(f"lines: {len(lines)}; at most {MOST_LINES} are taken at once.")
    return take_lines(view.store, lines, who_asks())


def open_page(workspace: Workspace, state: dict[str, str]) -> OpenedAnswer:
    """Asks the page that a person looks at to show a state; it does where he allows it."""
    workspace.ask_to_open(state)
    return OpenedAnswer()


def _turn(turn: Mapping[str, Any]) -> SaidTurn:
    content, thinking = turn["content"], turn["thinking"]
    known = turn["n_tokens"] is not None
    return SaidTurn(
        role=turn["role"],
        content=content[:MOST_TEXT],
        thinking=None if thinking is None else thinking[:MOST_TEXT],
        tool_calls=[{k: call[k] for k in ("id", "name", "arguments")} for call in turn["tool_calls"]],
        start=turn["start"] if known else None,
        stop=turn["stop"] if known else None,
        cut=max(len(content) - MOST_TEXT, 0),
    )


def _finding(each: Any) -> SaidFinding:
    detail = each.detail
    return SaidFinding(
        sentence=each.sentence,
        column=each.column,
        effect=each.effect.effect,
        p=each.effect.p,
        examples=[] if detail is None else [i for i in detail.examples if i],
        where=None if detail is None else detail.where or None,
    )


_CITATION = re.compile(
    r"\brollout:(?P<uid>[A-Za-z0-9_:/.\-]*[A-Za-z0-9_])(?:#(?P<first>\d{1,9})-(?P<last>\d{1,9}))?"
)
MOST = MOST_ROWS
"""Citations of one text that are checked."""
LONGEST = 60_000
"""Characters of a text."""
SHOWN = 200
"""Characters of the tokens that are shown."""


def citations(view: ProjectView, text: str) -> CitationsAnswer:
    """Checks whether every rollout:UID and rollout:UID#FIRST-LAST of a text leads to a rollout and tokens.

    Raises:
        StoreError: it is longer than `LONGEST`, or has more than `MOST` citations.
    """
    if len(text) > LONGEST:
        raise StoreError(f"text: {len(text):,} characters; at most {LONGEST:,} are checked at once.")
    found = list(dict.fromkeys(match[0] for match in _CITATION.finditer(text)))
    if len(found) > MOST:
        raise StoreError(f"{len(found)} citations; at most {MOST} are checked at once.")
    answers = [_checked(view.store, citation) for citation in found]
    return CitationsAnswer(citations=answers, all_resolve=bool(answers) and all(a.resolves for a in answers))


def _checked(store: Store, citation: str) -> Citation:
    match = _CITATION.fullmatch(citation)
    assert match is not None
    try:
        trace_id = store.find(match["uid"])
        if match["uid"] not in (trace_id, store.uid(trace_id)):
            raise StoreError(f"{match['uid']} is the beginning of a uid, not a whole one.")
        address = {"project": store.project, "tab": "rollouts", "id": trace_id}
        if match["first"] is None:
            return Citation(citation=citation, resolves=True, address=f"/?{urlencode(address)}")
        first, last = int(match["first"]), int(match["last"])
        transcript = store.transcript(trace_id)
        n = 0 if transcript is None else len(transcript.tokens)
        if transcript is None or not 0 <= first <= last < n:
            raise StoreError(f"tokens {first}-{last}: the rollout has {n}, from 0.")
    except StoreError as error:
        return Citation(citation=citation, resolves=False, why_not=str(error))
    return Citation(
        citation=citation,
        resolves=True,
        address=f"/?{urlencode({**address, 'mode': 'tokens', 'token': first})}",
        text=transcript.text_between(first, last + 1)[:SHOWN],
    )
