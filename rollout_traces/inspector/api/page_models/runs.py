"""Runs, their health, and what differs between them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from rollout_traces.inspector.api.page_models.parts import (
    CardModel,
    Number,
    ProgressModel,
    Range,
    SeriesModel,
    SettingModel,
    UsualModel,
)


class SplitStepsModel(BaseModel):
    """A split of a run with its steps."""

    name: str
    steps: list[int]
    n_traced: int
    n_rows: int


class CatalogRunModel(BaseModel):
    """A run as the frame of the pages lists it."""

    name: str
    label: str
    started: str
    n_traces: int
    n_rollouts: int
    splits: list[SplitStepsModel]
    note: str
    without: list[str] = Field(description="pages that have nothing of this run to show")


class CatalogAnswer(BaseModel):
    """A project's runs with splits and steps, newest first."""

    projects: list[dict[str, str]]
    project: str | None
    runs: list[CatalogRunModel]
    version: int | None = None
    indexing: list[int] | None = Field(
        default=None, description="traces indexed and in all, while a project is indexed"
    )


class ProjectAnswer(BaseModel):
    """One project in figures; `error` where it cannot be read."""

    name: str
    error: str | None
    n_runs: int | None = None
    n_traces: int | None = None
    n_rollouts: int | None = None
    last_run: str | None = None
    started: str | None = None
    last_step: int | None = None
    resumed_at: list[int] = Field(
        default=[], description="of the newest run: first step of every attempt but the first"
    )
    last_trace: str | None = None
    reward: SeriesModel | None = None
    split: str | None = Field(
        default=None, description="the training split of the newest run, else its first one"
    )


class IncidentModel(BaseModel):
    """An incident of a run's split, with the filter of its rows."""

    name: str
    signal: str = Field(description="the series that its sentence is of")
    part: str = Field(description="whose it is, in words; empty for all rollouts")
    severity: str
    sentence: str
    opened: int
    closed: int | None = Field(description="its last step; null while it is in force")
    children: list[str] = Field(description="series that moved with it or follow from it")
    where: str
    muted: bool | None = None
    acknowledged: str | None = None


class NewMark(BaseModel):
    """What is done with an incident: `mute`, `unmute`, `acknowledge` or `recall`."""

    project: str
    run: str
    split: str = "rollout"
    incident: str
    what: str


class IncidentsAnswer(BaseModel):
    """The open incidents, worst first; the flags that are usual in the run, each with the steps where they rose."""

    incidents: list[IncidentModel]
    usual: dict[str, list[tuple[int, int | None]]]


class QueryModel(BaseModel):
    """A statement with its answer."""

    sql: str
    columns: list[str]
    rows: list[list[Any]]
    n_rows: int


class QueriesAnswer(BaseModel):
    """The figures of a sentence, computed again."""

    queries: list[QueryModel]


class DiagnosisModel(BaseModel):
    """A diagnosis and what follows from it."""

    name: str
    series: list[str]
    part: str
    shape: str
    sentence: str
    severity: str
    tier: str
    step: int | None
    last: int | None
    in_force: bool = Field(description="whether it is there at the newest step")
    where: str | None
    advice: str | None
    flips: tuple[str, int, int] | None = Field(
        description="of an evaluation that fell: its split and the two steps whose prompts to compare"
    )
    consequences: list[DiagnosisModel]


class EventModel(BaseModel):
    """Something that happened in a run."""

    step: int
    last: int | None
    kind: str
    what: str
    sentence: str
    where: str


class ChartModel(BaseModel):
    """A metric that matters."""

    key: str
    title: str
    unit: str
    steps: list[int]
    values: list[Number]


class SettingsSinceModel(BaseModel):
    """What changed since the run before."""

    run: str
    changes: list[SettingModel]


class VerdictModel(BaseModel):
    """The Run page's first line: `error`, `warn`, `unknown` or nothing, in words, and since which step."""

    severity: str
    text: str
    since: int | None


class RunCurvesAnswer(BaseModel):
    """The metrics that matter of a run and split."""

    run: str
    split: str
    n_steps: int
    n_rows: int
    kept_only: bool = Field(description="no step has a ledger: figures are over the kept rollouts")
    steps: list[int]
    metrics: list[ChartModel]
    progress: ProgressModel | None


class RunPageAnswer(RunCurvesAnswer):
    """The Run page: the metrics that matter, diagnoses, events, settings."""

    verdict: VerdictModel
    tiers: list[str]
    diagnoses: list[DiagnosisModel]
    usual: list[UsualModel]
    events: list[EventModel]
    n_events: int
    settings: SettingsSinceModel | None
    unobserved: list[dict[str, Any]]
    remarks: list[str]
    problems: list[str]


class EffectModel(BaseModel):
    """How large a difference is: Cliff's delta or a difference of shares, its interval and p."""

    effect: Number
    low: Number
    high: Number
    p: Number
    paired: bool


class PlaceModel(BaseModel):
    """Rollouts, as a filter of the query language."""

    run: str
    split: str
    where: str


class PartModel(BaseModel):
    """Values of a column that a difference lies in."""

    column: str
    values: list[str]


class PictureModel(BaseModel):
    """Both sides in the same bins, shares."""

    edges: list[Number]
    a: list[Number]
    b: list[Number]


class FindingDetailModel(BaseModel):
    """Where a difference lies, since when, and typical rollouts."""

    part: PartModel | None
    a: Number
    b: Number
    elsewhere: Number
    elsewhere_rows: int
    elsewhere_n: int
    median_a: Number
    median_b: Number
    examples: list[str | None]
    picture: PictureModel | None
    where: str
    place: PlaceModel


class FindingModel(BaseModel):
    """A column or value that differs between A and B."""

    column: str
    value: str | None
    a: Number
    b: Number
    n_a: int
    n_b: int
    rows_a: int
    rows_b: int
    effect: EffectModel
    new: bool
    logged: bool
    sentence: str
    detail: FindingDetailModel | None
    consequences: list[str]


class ExplainPhraseModel(BaseModel):
    """A phrase that one side says more."""

    phrase: str
    n_a: int
    n_b: int
    share_a: Number
    share_b: Number
    log_odds: Number
    z: Number
    p: Number
    examples: list[str]


class CarriedShareModel(BaseModel):
    """A difference that few rollouts carry."""

    column: str
    rows: int
    of: int
    share: Number
    p: Number
    ids: list[str]
    sentence: str


class ExplainPageAnswer(BaseModel):
    """What differs between A and B, ranked."""

    a: str
    b: str
    rows: tuple[int, int]
    groups: tuple[int, int]
    findings: list[FindingModel]
    decompositions: list[dict[str, Any]]
    carried: list[CarriedShareModel]
    phrases: list[ExplainPhraseModel]
    winners: list[ExplainPhraseModel]
    only_in: dict[str, str]
    remarks: list[str]
    problems: list[str] = Field(description="what could not be computed, a line each")
    n_tested: int
    steps: tuple[int | None, int | None]


class InForceModel(BaseModel):
    """A diagnosis that holds at the steps asked about."""

    sentence: str
    severity: str


class InForceAnswer(BaseModel):
    """The diagnoses that hold at A's steps."""

    diagnoses: list[InForceModel]


class SeriesAnswer(BaseModel):
    """A run's logged numbers: all names, and the series that were asked for, the usual ones when none."""

    names: list[str]
    shown: list[str]
    series: dict[str, SeriesModel]
    timings: dict[str, SeriesModel]
    resumed_at: list[int] = Field(description="first step of every attempt but the first")
    progress: ProgressModel


class TwoRunsAnswer(BaseModel):
    """Two runs: their series, progress, and the settings in which they differ."""

    runs: dict[str, str]
    names: list[str]
    shown: list[str]
    series: dict[str, dict[str, SeriesModel]]
    resumed_at: dict[str, list[int]] = Field(
        description="of each run: first step of every attempt but the first"
    )
    progress: dict[str, ProgressModel]
    settings: list[SettingModel]
    evaluations: list[str]


class MeasureModel(BaseModel):
    """A measure of Health over the steps."""

    key: str
    title: str
    meaning: str
    unit: str
    values: list[Number]


class HeatRowModel(BaseModel):
    """A flag or reason: its share and number at each step."""

    name: str
    values: list[float]
    counts: list[int]
    estimated: bool


class HealthAnswer(BaseModel):
    """Measures, flags, discard and tie reasons, some steps at a time."""

    steps: list[int]
    measures: list[MeasureModel]
    flags: list[HeatRowModel]
    usual: list[UsualModel]
    discards: list[HeatRowModel]
    ties: list[HeatRowModel]
    severities: dict[str, str]
    by: list[str]
    n_traced: int
    n_rows: int
    kept_only: bool = Field(description="no step has a ledger: figures are over the kept rollouts")
    chosen_by: str | None
    counters: dict[str, float] | None
    stored: str | None = Field(
        description="how much is stored of what was handed over on this machine, and what was lost; null where no spool is left"
    )
    off: dict[str, str]
    next: int | None = Field(
        default=None, description="give it as `after` for the steps behind; null at the end"
    )


class BreakdownAnswer(BaseModel):
    """A measure over the steps for the most frequent values of a column."""

    by: str
    steps: list[int]
    series: list[tuple[Any, list[Number]]]


class PopulationModel(BaseModel):
    """How many rollouts there were and were kept."""

    n_traced: int
    n_rows: int | None
    chosen_by: str | None


class ExamplesAnswer(BaseModel):
    """Kept rollouts behind a point of Health."""

    where: str
    order: str
    samples: list[CardModel]
    n_matched: int
    n_rows: int | None
    range: Range
    severities: dict[str, str]
    population: PopulationModel
