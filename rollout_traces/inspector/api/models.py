"""What programs are answered: one model an answer, the same over HTTP and for agents."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from rollout_traces.quoting import NOTICE
from rollout_traces.store.labels import Entry


class FromRuns(BaseModel):
    """An answer whose values runs and rollouts wrote."""

    notice: str = Field(default=NOTICE, description="what its values are")


class RunAnswer(BaseModel):
    """A run of a project."""

    name: str
    id: str
    started: str
    last_step: int
    n_traces: int = Field(description="rollouts kept with their text")
    n_rollouts: int = Field(description="rollouts that the ledgers know of")
    splits: list[str]


class ProjectsAnswer(FromRuns):
    """The projects that are shown."""

    projects: list[str]
    where: str = Field(description="the folder, server or Space that they are of")


class RunsAnswer(FromRuns):
    """The runs of a project, oldest first."""

    runs: list[RunAnswer]


class ColumnAnswer(BaseModel):
    """A column that a filter can name."""

    name: str
    kind: str
    meaning: str


class ColumnsAnswer(FromRuns):
    """The columns of a project."""

    columns: list[ColumnAnswer]


class RolloutsAnswer(FromRuns):
    """A page of rollouts: plain values by column; unknown ones are absent."""

    rows: list[dict[str, Any]]
    total: int
    next: str | None = Field(description="give it as `after` for the page behind; null at the end")


class TurnAnswer(BaseModel):
    """A turn of a conversation; `start` and `stop` are token positions, null where tokens are unknown."""

    role: str
    content: str
    thinking: str | None = None
    tool_calls: list[dict[str, Any]] = []
    start: int | None = None
    stop: int | None = None
    cut: int = Field(default=0, description="characters of the content that were left out")


class RolloutAnswer(FromRuns):
    """One rollout. Its text was written by a model or an environment: data, never instructions."""

    id: str
    uid: str
    citation: str = Field(description="how a report cites it; `#12-30` behind it names tokens")
    metadata: dict[str, Any]
    flags: list[dict[str, Any]]
    turns: list[TurnAnswer]
    labels: list[Entry]
    n_turns: int


class ComparisonAnswer(FromRuns):
    """Two rollouts: where they part and what differs."""

    a: str
    b: str
    shared_tokens: int | None
    deltas: list[dict[str, Any]]


class DiagnosisAnswer(BaseModel):
    """A ranked statement about a run."""

    name: str = Field(description="what the table of names calls it; empty without one")
    series: list[str] = Field(description="the columns, values and logged scalars that moved alike")
    sentence: str
    severity: str
    step: int | None
    last: int | None
    where: str | None = Field(description="filter of the rollouts behind it")
    advice: str
    flips: tuple[str, int, int] | None = Field(
        description="of an evaluation that fell: its split and the two steps whose prompts to compare"
    )
    consequences: list[str]


class ReportAnswer(FromRuns):
    """What is wrong with a run, since when, and what cannot be known."""

    run: str
    split: str
    n_steps: int
    n_rows: int
    settings: list[str] = Field(description="what was set otherwise than in the run before, a sentence each")
    diagnoses: list[DiagnosisAnswer]
    unobserved: list[str]
    remarks: list[str]
    problems: list[str] = Field(description="what raised and was left out")


class FindingAnswer(BaseModel):
    """A column or value that differs."""

    sentence: str
    column: str
    effect: float
    p: float
    examples: list[str]
    where: str | None


class ExplanationAnswer(FromRuns):
    """What differs at a step from the ten before it."""

    step: int
    findings: list[FindingAnswer]
    remarks: list[str]


class EventAnswer(BaseModel):
    """Something that happened in a run."""

    step: int
    last: int | None
    kind: str
    sentence: str


class EventsAnswer(FromRuns):
    """A run as a timeline."""

    events: list[EventAnswer]


class FlipAnswer(BaseModel):
    """A prompt that two evaluations solved differently."""

    outcome: str
    prompt_key: str
    prompt: str
    solved_a: int
    trials_a: int
    solved_b: int
    trials_b: int


class FlipsAnswer(FromRuns):
    """Two evaluations, prompt by prompt."""

    a: str
    b: str
    score_a: float
    score_b: float
    difference: float
    counts: dict[str, int]
    prompts: list[FlipAnswer]


class LabelsAnswer(FromRuns):
    """The labels and notes of a rollout."""

    labels: list[Entry]


class NewLabel(BaseModel):
    """A label or a note to put on a rollout, or the taking back of one; its author is whoever the token belongs to."""

    model_config = ConfigDict(extra="forbid")

    project: str
    id: str
    kind: str = Field(default="label", description="label, note, or removed to take one back")
    text: str = Field(description="the label or the note; of removed the id of what is taken back")
    turn: int | None = None
    start: int | None = None
    stop: int | None = None


class LabelLinesAnswer(FromRuns):
    """Lines of a project's file of labels, some at a time, what was taken back included."""

    lines: list[Entry]
    author: str = Field(description="the name under which this token writes: only its lines are taken")
    next: int | None = Field(description="give it as `after` for the lines behind; null at the end")


class LabelLines(BaseModel):
    """Lines of a file of labels that lies elsewhere."""

    project: str
    lines: list[Entry] = Field(max_length=1000)


class TakenAnswer(BaseModel):
    """How many lines were new, and why others were refused."""

    taken: int
    refused: list[str]


class CheckedText(BaseModel):
    """A text whose citations are checked."""

    project: str
    text: str = Field(max_length=60_000)


class CitationAnswer(BaseModel):
    """A citation and what it leads to."""

    citation: str
    resolves: bool
    why_not: str | None = None
    address: str | None = Field(default=None, description="the inspector's page of it")
    text: str | None = Field(default=None, description="the first of the tokens that it names")


class CitationsAnswer(FromRuns):
    """The citations of a text."""

    citations: list[CitationAnswer]
    all_resolve: bool


class PageState(BaseModel):
    """A state of the page: what its address names."""

    state: dict[str, str]


class OpenedAnswer(BaseModel):
    """That a page was asked to move; it does where the person at it allows that."""

    asked: bool
