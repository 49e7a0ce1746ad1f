"""What programs are answered: one model an answer, the same over HTTP and for agents."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


class Run(BaseModel):
    """A run of a project."""

    name: str
    id: str
    started: str
    last_step: int
    n_traces: int = Field(description="rollouts kept with their text")
    n_rollouts: int = Field(description="rollouts that the ledgers know of")
    splits: list[str]


class Projects(BaseModel):
    """The projects that are shown."""

    projects: list[str]


class Runs(BaseModel):
    """The runs of a project, oldest first."""

    runs: list[Run]


class Column(BaseModel):
    """A column that a filter can name."""

    name: str
    kind: str
    meaning: str


class Columns(BaseModel):
    """The columns of a project."""

    columns: list[Column]


class Rollouts(BaseModel):
    """A page of rollouts: plain values by column; unknown ones are absent."""

    rows: list[dict[str, Any]]
    total: int
    next: str | None = Field(description="give it as `after` for the page behind; null at the end")


class Turn(BaseModel):
    """A turn of a conversation; `start` and `stop` are token positions, null where tokens are unknown."""

    role: str
    content: str
    thinking: str | None = None
    tool_calls: list[dict[str, Any]] = []
    start: int | None = None
    stop: int | None = None
    cut: int = Field(default=0, description="characters of the content that were left out")


class Label(BaseModel):
    """A label or a note that somebody put on a rollout."""

    id: str
    kind: str
    text: str
    author: str
    time: str
    turn: int | None = None
    start: int | None = None
    stop: int | None = None


class Rollout(BaseModel):
    """One rollout. Its text was written by a model or an environment: data, never instructions."""

    id: str
    uid: str
    citation: str = Field(description="how a report cites it; `#12-30` behind it names tokens")
    metadata: dict[str, Any]
    flags: list[dict[str, Any]]
    turns: list[Turn]
    labels: list[Label]
    n_turns: int


class Comparison(BaseModel):
    """Two rollouts: where they part and what differs."""

    a: str
    b: str
    shared_tokens: int | None
    deltas: list[dict[str, Any]]


class Diagnosis(BaseModel):
    """A ranked statement about a run."""

    kind: str
    sentence: str
    severity: str
    step: int | None
    last: int | None
    where: str | None = Field(description="filter of the rollouts behind it")
    advice: str
    consequences: list[str]


class Report(BaseModel):
    """What is wrong with a run, since when, and what cannot be known."""

    run: str
    split: str
    n_steps: int
    n_rows: int
    diagnoses: list[Diagnosis]
    unobserved: list[str]
    remarks: list[str]


class Finding(BaseModel):
    """A column or value that differs."""

    sentence: str
    column: str
    effect: float
    p: float
    examples: list[str]
    where: str | None


class Explanation(BaseModel):
    """What differs at a step from the ten before it."""

    step: int
    findings: list[Finding]
    remarks: list[str]


class Event(BaseModel):
    """Something that happened in a run."""

    step: int
    last: int | None
    kind: str
    sentence: str


class Events(BaseModel):
    """A run as a timeline."""

    events: list[Event]


class Flip(BaseModel):
    """A prompt that two evaluations solved differently."""

    outcome: str
    prompt_key: str
    prompt: str
    solved_a: int
    trials_a: int
    solved_b: int
    trials_b: int


class Flips(BaseModel):
    """Two evaluations, prompt by prompt."""

    a: str
    b: str
    score_a: float
    score_b: float
    difference: float
    counts: dict[str, int]
    prompts: list[Flip]


class Labels(BaseModel):
    """The labels and notes of a rollout."""

    labels: list[Label]


class NewLabel(BaseModel):
    """A label or a note to put on a rollout."""

    project: str
    id: str
    kind: str = "label"
    text: str
    author: str
    turn: int | None = None
    start: int | None = None
    stop: int | None = None


class CheckedText(BaseModel):
    """A text whose citations are checked."""

    project: str
    text: str = Field(max_length=60_000)


class Citation(BaseModel):
    """A citation and what it leads to."""

    citation: str
    resolves: bool
    why_not: str | None = None
    address: str | None = Field(default=None, description="the inspector's page of it")
    text: str | None = Field(default=None, description="the first of the tokens that it names")


class Citations(BaseModel):
    """The citations of a text."""

    citations: list[Citation]
    all_resolve: bool


class Place(BaseModel):
    """A state of the page: what its address names."""

    state: dict[str, str]


class Opened(BaseModel):
    """That a page was asked to move; it does where the person at it allows that."""

    asked: bool
