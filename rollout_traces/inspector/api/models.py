"""Answers for programs alone: short, for an agent's context, the same over HTTP and as tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rollout_traces.inspector.pages.compare import Delta
from rollout_traces.inspector.pages.run import ShownDiagnosis, ShownEvent
from rollout_traces.model.text import NOTICE
from rollout_traces.store import RunInfo
from rollout_traces.store.labels import Entry


@dataclass(frozen=True, kw_only=True)
class FromRuns:
    """An answer whose values runs and rollouts wrote; `notice` says so."""

    notice: str = NOTICE


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
        settings: what was set otherwise than in the run before, a sentence each.
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
    """The differences of a step from the ten before it."""

    step: int
    findings: list[SaidFinding]
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class EventsAnswer(FromRuns):
    """A run as a timeline."""

    events: list[ShownEvent]


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
