"""The answers for programs alone: short ones, made of what the pages are made of; and citations of rollouts in a report.

A citation is `rollout:UID`, or `rollout:UID#FIRST-LAST` for a range of tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Any
from urllib.parse import urlencode

from rollout_traces.analysis.runs import settings_sentences
from rollout_traces.errors import StoreError
from rollout_traces.inspector.access import who_asks
from rollout_traces.inspector.api import models
from rollout_traces.inspector.api.models import Citation, CitationsAnswer
from rollout_traces.inspector.pages import compare as compare_page
from rollout_traces.inspector.pages.explain import AskedSides, explained, sides
from rollout_traces.inspector.pages.figures import flag_severities
from rollout_traces.inspector.pages.flips import AskedEvaluations, FlipListAnswer, flip_list
from rollout_traces.inspector.pages.incidents import run_diagnosed, run_events
from rollout_traces.inspector.pages.labels import TAKES_NONE, TakenLines, take_lines
from rollout_traces.inspector.pages.run import ShownEvent, shown_diagnosis
from rollout_traces.inspector.payload import rollout_payload
from rollout_traces.inspector.workspace import EvaluationView, ProjectView, SplitView, Workspace, taken
from rollout_traces.model.plain_values import plain
from rollout_traces.store import Store
from rollout_traces.store.labels import Entry

MOST_ROWS = 200
"""Rows of one page."""
MOST_TEXT = 20_000
"""Characters of a turn that are given; the rest is counted."""
MOST_TURNS = 100
MOST_LINES = 1000
"""Lines of a file of labels that are given or taken at once."""
COLUMNS = ("uid", "group", "sample", "reward", "n_sampled", "stop_reason", "flags", "labels", "source")
"""Columns that rows have before others are chosen."""


def runs(view: ProjectView) -> models.RunsAnswer:
    """The runs of a project with their splits and last steps."""
    return models.RunsAnswer(view.store.runs())


def rollouts(
    view: ProjectView,
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
    store = view.store
    named = [name.strip() for name in columns.split(",") if name.strip()]
    known = {column.name for column in store.columns("all")} if named else set()
    if unknown := [name for name in named if name not in known]:
        raise StoreError(f"columns: no {unknown[0][:80]!r}. Ask `columns` for those that there are.")
    page = store.search(
        text or "",
        run or None,
        split=split or None,
        where=where,
        order_by=order_by or None,
        limit=limit,
        after=after or None,
        rows="all" if rows == "all" else "traces",
        columns=named or list(COLUMNS),
    )
    return models.RolloutsAnswer([plain(row.as_dict()) for row in page.rows], page.total, page.next)


def rollout(view: ProjectView, id: str, first_turn: int = 0) -> models.RolloutAnswer:
    """One rollout by uid or trace id: metadata, flags, a hundred turns from `first_turn` on with token positions, labels.

    Raises:
        StoreError: there is none, or it cannot be read.
    """
    store = view.store
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


def compare(view: ProjectView, a: str, b: str) -> models.ComparisonAnswer:
    """Two rollouts by uid or trace id: the tokens that they share and the numbers that differ."""
    store = view.store
    ids = [store.find(a), store.find(b)]
    records = [store.record(trace_id) for trace_id in ids]
    return models.ComparisonAnswer(
        a=store.uid(ids[0]),
        b=store.uid(ids[1]),
        shared_tokens=compare_page.shared_prefix(*records),
        deltas=compare_page.deltas(*(record.metadata for record in records)),
    )


def report(view: SplitView) -> models.ReportAnswer:
    """Tells what is wrong with a run: ranked diagnoses with their first step, the filter behind them, and advice."""
    found = run_diagnosed(view)
    return taken(
        models.ReportAnswer,
        found,
        settings=settings_sentences(view.store, found.run),
        diagnoses=[shown_diagnosis(each, found.last_step) for each in found.diagnoses],
        unobserved=[str(missing) for missing in found.unobserved],
    )


def explain(view: SplitView, step: int) -> models.ExplanationAnswer:
    """Tells what differs at a step from the ten before it, with typical rollouts."""
    found = explained(view, sides(view, AskedSides(step)))
    return models.ExplanationAnswer(step, [_finding(each) for each in found.findings], found.remarks)


def events(view: SplitView) -> models.EventsAnswer:
    """Tells what happened in a run: first and last seen, change points, attempts, gaps."""
    return models.EventsAnswer([taken(ShownEvent, each) for each in run_events(view)])


def flips(view: EvaluationView, first: int, last: int) -> FlipListAnswer:
    """Prompts that a run's evaluations at two steps solved differently."""
    found = flip_list(view, AskedEvaluations(first, last))
    changed = (each for each in found.prompts if each.outcome in ("lost", "won"))
    return replace(found, prompts=tuple(islice(changed, MOST_ROWS)), query="")


def label_lines(view: ProjectView, after: int = 0, limit: int = MOST_LINES) -> models.LabelLinesAnswer:
    """The lines of a project's file of labels, in their order: what another copy of it lacks."""
    if after < 0 or not 1 <= limit <= MOST_LINES:
        raise StoreError(f"after: 0 or more; limit: 1 to {MOST_LINES}. Seen {after} and {limit}.")
    lines = view.store.labels.lines()
    behind = after + limit
    return models.LabelLinesAnswer(
        list(lines[after:behind]), who_asks().name, behind if behind < len(lines) else None
    )


def take_label_lines(view: ProjectView, lines: list[Entry]) -> TakenLines:
    """Takes the visitor's own lines of a file of labels that lies elsewhere; those that are here are passed over."""
    if not view.workspace.may_label:
        raise StoreError(TAKES_NONE)
    if len(lines) > MOST_LINES:
        raise StoreError(f"lines: {len(lines)}; at most {MOST_LINES} are taken at once.")
    return take_lines(view.store, lines, who_asks())


def citations(view: ProjectView, text: str) -> models.CitationsAnswer:
    """Checks whether every rollout:UID and rollout:UID#FIRST-LAST of a text leads to a rollout and tokens."""
    return checked(view.store, text)


def open_page(workspace: Workspace, state: dict[str, str]) -> models.OpenedAnswer:
    """Asks the page that a person looks at to show a state; it does where he allows it."""
    workspace.ask_to_open(state)
    return models.OpenedAnswer()


def _turn(turn: Mapping[str, Any]) -> models.SaidTurn:
    content, thinking = turn["content"], turn["thinking"]
    known = turn["n_tokens"] is not None
    return models.SaidTurn(
        role=turn["role"],
        content=content[:MOST_TEXT],
        thinking=None if thinking is None else thinking[:MOST_TEXT],
        tool_calls=[{k: call[k] for k in ("id", "name", "arguments")} for call in turn["tool_calls"]],
        start=turn["start"] if known else None,
        stop=turn["stop"] if known else None,
        cut=max(len(content) - MOST_TEXT, 0),
    )


def _finding(each: Any) -> models.SaidFinding:
    detail = each.detail
    return models.SaidFinding(
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
MOST = 200
"""Citations of one text that are checked."""
LONGEST = 60_000
"""Characters of a text."""
SHOWN = 200
"""Characters of the tokens that are shown."""


def cite(uid: str, first: int | None = None, last: int | None = None) -> str:
    """The citation of a rollout, or of its tokens from `first` to `last`, both included."""
    return f"rollout:{uid}" + ("" if first is None else f"#{first}-{last}")


def checked(store: Store, text: str) -> CitationsAnswer:
    """Every citation of a text, and whether it leads to a rollout and tokens that are there.

    Args:
        text: a report.

    Raises:
        StoreError: it is longer than `LONGEST`, or has more than `MOST` citations.
    """
    if len(text) > LONGEST:
        raise StoreError(f"text: {len(text):,} characters; at most {LONGEST:,} are checked at once.")
    found = list(dict.fromkeys(match[0] for match in _CITATION.finditer(text)))
    if len(found) > MOST:
        raise StoreError(f"{len(found)} citations; at most {MOST} are checked at once.")
    answers = [_checked(store, citation) for citation in found]
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
    tokens = transcript.tokens
    said = transcript.raw[int(tokens.char_starts[first]) : int(tokens.char_stops[last])][:SHOWN]
    return Citation(
        citation=citation,
        resolves=True,
        address=f"/?{urlencode({**address, 'mode': 'tokens', 'token': first})}",
        text=said,
    )
