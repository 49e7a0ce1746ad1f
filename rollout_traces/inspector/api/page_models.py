"""What programs are answered of the pages: the same values that a page's script draws, typed.

A number that is unknown, or not finite, is null. Flags are told apart as on the pages: `flags` are abnormal for
the run, `explains` names under each those that it explains, `usual_flags` are usual for the run.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

Number = float | None
Range = tuple[float, float]


class Series(BaseModel):
    """Values over steps."""

    steps: list[int]
    values: list[Number]


class Progress(BaseModel):
    """How far a run was at each step: rollouts seen and tokens sampled."""

    steps: list[int]
    rollouts: list[Number]
    tokens: list[Number]


class Usual(BaseModel):
    """A flag that is usual for the run."""

    name: str
    share: float
    n: int


class SplitSteps(BaseModel):
    """A split of a run with its steps."""

    name: str
    steps: list[int]
    n_traced: int
    n_rows: int


class CatalogRun(BaseModel):
    """A run as the frame of the pages lists it."""

    name: str
    label: str
    started: str
    n_traces: int
    n_rollouts: int
    splits: list[SplitSteps]
    note: str
    without: list[str] = Field(description="pages that have nothing of this run to show")


class CatalogAnswer(BaseModel):
    """A project's runs with splits and steps, newest first."""

    projects: list[dict[str, str]]
    project: str | None
    runs: list[CatalogRun]
    version: int | None = None
    indexing: list[int] | None = Field(
        default=None, description="traces indexed and in all, while a project is indexed"
    )


class Open(BaseModel):
    """An incident in few words."""

    severity: str
    sentence: str


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
    last_trace: str | None = None
    reward: Series | None = None
    incidents: list[Open] = []


class Incident(BaseModel):
    """An incident of a run's split, with the filter of its rows."""

    name: str
    signal: str
    source: str
    severity: str
    sentence: str
    opened: int
    last: int
    closed: int | None
    times: int
    n_rows: int | None
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
    """The open incidents, worst first."""

    incidents: list[Incident]


class Query(BaseModel):
    """A statement with its answer."""

    sql: str
    columns: list[str]
    rows: list[list[Any]]
    n_rows: int


class QueriesAnswer(BaseModel):
    """The figures of a sentence, computed again."""

    queries: list[Query]


class Diagnosis(BaseModel):
    """A diagnosis and what follows from it."""

    kind: str
    sentence: str
    severity: str
    tier: str
    step: int | None
    last: int | None
    where: str | None
    query: str | None
    advice: str | None
    consequences: list[Diagnosis]


class Event(BaseModel):
    """Something that happened in a run."""

    step: int
    last: int | None
    kind: str
    what: str
    sentence: str
    where: str


class Chart(BaseModel):
    """A metric that matters."""

    key: str
    title: str
    unit: str
    steps: list[int]
    values: list[Number]


class Setting(BaseModel):
    """A setting that differs."""

    key: str
    a: str | None
    b: str | None


class SettingsSince(BaseModel):
    """What changed since the run before."""

    run: str
    changes: list[Setting]


class RunPageAnswer(BaseModel):
    """The Run page: diagnoses, incidents, events, the metrics that matter, settings."""

    run: str
    split: str
    n_steps: int
    fewest: int = Field(description="steps that diagnoses need")
    n_rows: int
    steps: list[int]
    tiers: list[str]
    diagnoses: list[Diagnosis]
    incidents: list[Incident]
    usual: list[Usual]
    events: list[Event]
    n_events: int
    metrics: list[Chart]
    progress: Progress | None
    settings: SettingsSince | None
    unobserved: list[dict[str, Any]]
    remarks: list[str]


class Effect(BaseModel):
    """How large a difference is: Cliff's delta or a difference of shares, its interval and p."""

    effect: Number
    low: Number
    high: Number
    p: Number
    paired: bool


class Place(BaseModel):
    """Rollouts, as a filter of the query language."""

    run: str
    split: str
    where: str


class Part(BaseModel):
    """Values of a column that a difference lies in."""

    column: str
    values: list[str]


class Picture(BaseModel):
    """Both sides in the same bins, shares."""

    edges: list[Number]
    a: list[Number]
    b: list[Number]


class FindingDetail(BaseModel):
    """Where a difference lies, since when, and typical rollouts."""

    part: Part | None
    a: Number
    b: Number
    elsewhere: Number
    elsewhere_rows: int
    elsewhere_n: int
    since: int | None
    median_a: Number
    median_b: Number
    examples: list[str | None]
    picture: Picture | None
    where: str
    place: Place


class Finding(BaseModel):
    """A column or value that differs between A and B."""

    column: str
    value: str | None
    a: Number
    b: Number
    n_a: int
    n_b: int
    rows_a: int
    rows_b: int
    effect: Effect
    new: bool
    sentence: str
    detail: FindingDetail | None
    consequences: list[str]


class ExplainPhrase(BaseModel):
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


class CarriedShare(BaseModel):
    """A difference that few rollouts carry."""

    column: str
    rows: int
    of: int
    share: Number
    ids: list[str]
    sentence: str


class ExplainPageAnswer(BaseModel):
    """What differs between A and B, ranked."""

    a: str
    b: str
    rows: tuple[int, int]
    groups: tuple[int, int]
    findings: list[Finding]
    decompositions: list[dict[str, Any]]
    carried: list[CarriedShare]
    phrases: list[ExplainPhrase]
    winners: list[ExplainPhrase]
    only_in: dict[str, str]
    remarks: list[str]
    n_tested: int
    steps: tuple[int | None, int | None]


class InForce(BaseModel):
    """A diagnosis that holds at the steps asked about."""

    sentence: str
    severity: str


class InForceAnswer(BaseModel):
    """The diagnoses that hold at A's steps."""

    diagnoses: list[InForce]


class Card(BaseModel):
    """A rollout as lists show it."""

    id: str | None
    step: int
    words: str
    prompt: str
    snippet: str | None
    flags: list[str]
    explains: dict[str, list[str]] = {}
    usual_flags: list[str] = []
    labels: list[str]
    discard_reason: str | None
    stop_reason: str | None
    selected_by: str | None
    group: int | None
    sample: int | None
    reward: Number
    advantage: Number
    n_tokens: int | None
    n_sampled: int | None
    staleness_max: int | None


class Dot(BaseModel):
    """A reward of a group, and whether its rollout was kept."""

    reward: Number
    traced: bool


class StepGroup(BaseModel):
    """A group of a step with its kept rollouts."""

    group: int | None
    prompt: str | None
    mean: Number
    n: int
    tied: bool
    zero_advantage: bool
    rewards: list[Dot]
    flags: list[str]
    samples: list[Card]


class StepAnswer(BaseModel):
    """The list of Rollouts: a step's groups, or with `sort` or `scope=all` rollouts a page at a time."""

    usual: list[Usual]
    step: int
    range: Range
    severities: dict[str, str]
    columns: list[str]
    scope: str
    note: str | None = None
    n_traced: int
    n_rows: int | None
    chosen_by: str | None
    groups: list[StepGroup] | None
    samples: list[Card] | None = None
    n_matched: int
    next: str | None = Field(
        default=None, description="give it as `after` for the page behind; null at the end"
    )


class Token(BaseModel):
    """A token of a rollout with what is known of it."""

    at: int
    id: int
    text: str
    sampled: bool
    in_loss: bool
    special: bool
    tracks: dict[str, Number] = Field(description="logprobs, advantages, versions and the like, by name")


class TokensAnswer(BaseModel):
    """Tokens of a rollout, as the overlays colour them, some at a time."""

    id: str
    n_tokens: int
    train_version: int | None
    row_advantage: Number = None
    tokens: list[Token]
    next: int | None = Field(description="give it as `after` for the tokens behind; null at the end")


class SeriesAnswer(BaseModel):
    """A run's logged numbers: all names, and the series that were asked for, the usual ones when none."""

    names: list[str]
    shown: list[str]
    series: dict[str, Series]
    timings: dict[str, Series]
    progress: Progress


class StepMeansAnswer(BaseModel):
    """Means over the sampled tokens of a step, which overlays compare a rollout with."""

    advantage: Number
    logprob: Number
    n_rows: int


class GroupPushesAnswer(BaseModel):
    """What the kept rollouts of a group do to each token id, some ids at a time."""

    ids: list[int]
    up: list[float] = Field(description="sum of the positive advantages over the loss tokens of the id")
    down: list[float] = Field(description="the same of the negative ones, without their sign")
    n_kept: int
    n_rollouts: int
    next: int | None = Field(
        default=None, description="give it as `after` for the ids behind; null at the end"
    )


class ImageAnswer(BaseModel):
    """An image of a rollout, base64."""

    type: str
    data: str


class ComparedSide(BaseModel):
    """One of two rollouts; `rollout` and `pages/rollouts/tokens` give its text and tokens."""

    id: str
    run: str | None
    metadata: dict[str, Any]
    flags: list[dict[str, Any]]
    explains: dict[str, list[str]] = {}
    usual_flags: list[str] = []
    ranges: dict[str, Range]


class Delta(BaseModel):
    """A value of both rollouts."""

    name: str
    a: Any
    b: Any
    delta: Number


class ComparePageAnswer(BaseModel):
    """Two rollouts of a group: those named, else its best and its worst."""

    sides: list[ComparedSide]
    shared: int | None
    deltas: list[Delta]
    candidates: list[Card]
    range: Range
    severities: dict[str, str]


class Visit(BaseModel):
    """The rollouts of one prompt at a step."""

    step: int
    n: int
    reward: Number
    pass_rate: Number
    traced: list[str]
    group: int | None


class PromptHistoryAnswer(BaseModel):
    """The rollouts that answer the same prompt, step by step."""

    steps: list[Visit]
    range: Range | None = None


class PopulationAnswer(BaseModel):
    """How many rollouts of a step were kept, and how they were chosen."""

    step: int
    n_traced: int
    n_rows: int | None
    chosen_by: str | None


class Bins(BaseModel):
    """A histogram: `edges` has one value more than `counts`."""

    edges: list[float]
    counts: list[int]
    unknown: int


class SpreadAnswer(BaseModel):
    """How a column's values are spread over the rows that match: values with counts, or bins."""

    column: str
    kind: str
    facets: list[tuple[Any, int]] | None
    bins: Bins | None


class ExportAnswer(BaseModel):
    """The command that exports rows, and the rows as JSON lines where they are few."""

    total: int
    most: int
    lines: str | None
    command: str


class Measure(BaseModel):
    """A measure of Health over the steps."""

    key: str
    title: str
    meaning: str
    unit: str
    values: list[Number]


class HeatRow(BaseModel):
    """A flag or reason: its share and number at each step."""

    name: str
    values: list[float]
    counts: list[int]
    estimated: bool


class HealthAnswer(BaseModel):
    """Measures, flags, discard and tie reasons, some steps at a time."""

    steps: list[int]
    measures: list[Measure]
    flags: list[HeatRow]
    usual: list[Usual]
    discards: list[HeatRow]
    ties: list[HeatRow]
    severities: dict[str, str]
    by: list[str]
    n_traced: int
    n_rows: int
    chosen_by: str | None
    counters: dict[str, float] | None
    off: dict[str, str]
    next: int | None = Field(
        default=None, description="give it as `after` for the steps behind; null at the end"
    )


class BreakdownAnswer(BaseModel):
    """A measure over the steps for the most frequent values of a column."""

    by: str
    steps: list[int]
    series: list[tuple[Any, list[Number]]]


class Population(BaseModel):
    """How many rollouts there were and were kept."""

    n_traced: int
    n_rows: int | None
    chosen_by: str | None


class ExamplesAnswer(BaseModel):
    """Kept rollouts behind a point of Health."""

    where: str
    order: str
    samples: list[Card]
    n_matched: int
    n_rows: int | None
    range: Range
    severities: dict[str, str]
    population: Population


class MemberTurn(BaseModel):
    """A turn of a sample: its tokens and tools."""

    role: str
    n: int
    calls: list[str]
    failed: bool


class Action(BaseModel):
    """A tool call or the last answer of a sample."""

    kind: str
    name: str
    text: str
    failed: bool
    turn: int


class Member(BaseModel):
    """A sample of a group."""

    id: str | None
    sample: int | None
    flags: list[str]
    explains: dict[str, list[str]]
    usual_flags: list[str]
    values: dict[str, Any]
    turns: list[MemberTurn]
    actions: list[Action]


class Branch(BaseModel):
    """Tokens that some samples share; `members` are positions in the list of all members."""

    n_tokens: int
    start: int
    text: str
    members: list[int]
    mean: Number
    children: list[Branch]


class PrefixTree(BaseModel):
    """Where the kept samples of a group share tokens and where they part."""

    prompt_tokens: int
    root: Branch


class GroupPhrase(BaseModel):
    """A phrase with the shares of winners and losers that say it."""

    text: str
    winners: float
    losers: float


class GroupPhrases(BaseModel):
    """What winners say and losers do not, and the other way round."""

    n_winners: int
    n_losers: int
    winners: list[GroupPhrase]
    losers: list[GroupPhrase]


class GroupAnswer(BaseModel):
    """All samples of a group, best first, some at a time; the tree and phrases are of all of them."""

    step: int
    group: int
    groups: list[int]
    prompt: str | None
    mean: Number
    tied: bool
    n_rollouts: int
    range: Range
    severities: dict[str, str]
    usual: list[Usual]
    components: list[str]
    members: list[Member]
    tree: PrefixTree | None
    phrases: GroupPhrases
    next: int | None = Field(
        default=None, description="give it as `after` for the members behind; null at the end"
    )


class PromptRow(BaseModel):
    """A prompt of a run and split."""

    prompt_key: str
    prompt: str | None
    source: str | None
    visits: int
    tried: int
    solved: int | None
    solve_rate: Number
    mean_reward: Number
    spread: Number
    trend: Number
    first_solved: int | None
    first_step: int | None
    last_step: int | None
    tokens: int | None
    wasted: int | None


class PromptsAnswer(BaseModel):
    """Prompts of a run and split in an order, some at a time."""

    prompts: list[PromptRow]
    total: int
    keyless: int
    order: str
    offset: int
    orders: list[str]
    next: int | None = Field(
        default=None, description="give it as `after` for the prompts behind; null at the end"
    )


class PromptVisit(BaseModel):
    """What a step holds of a prompt."""

    run: str
    split: str
    step: int
    tried: int
    solved: int | None
    rewards: list[Number]
    mean_reward: Number
    n_sampled: Number
    stop_reasons: dict[str, int]
    ids: list[str]


class PromptPlace(BaseModel):
    """A prompt in one run and split."""

    run: str
    split: str
    visits: list[PromptVisit]


class PromptAnswer(BaseModel):
    """One prompt over steps, splits and runs."""

    prompt_key: str
    prompt: str | None
    n_visits: int
    shown: int
    tried: int
    solved: int | None
    range: Range
    places: list[PromptPlace]


class FlippedPrompt(BaseModel):
    """A prompt at two evaluations."""

    prompt_key: str
    prompt: str | None
    solved_a: int
    trials_a: int
    solved_b: int
    trials_b: int
    outcome: str
    low: Number
    high: Number
    difference: Number
    differs: dict[str, tuple[Any, Any]]
    ids_a: list[str]
    ids_b: list[str]


class FlipsPageAnswer(BaseModel):
    """Two evaluations matched on their prompts, lost ones first, some prompts at a time."""

    a: str
    b: str
    score_a: Number
    score_b: Number
    error_a: Number
    error_b: Number
    difference: Number
    low: Number
    high: Number
    p: Number
    counts: dict[str, int]
    prompts: list[FlippedPrompt]
    only_a: int
    only_b: int
    keyless: int
    solved_by: str
    remarks: list[str]
    n_prompts: int
    run: str
    other: str
    first: int
    second: int
    steps: list[int]
    steps_other: list[int]
    next: int | None = Field(
        default=None, description="give it as `after` for the prompts behind; null at the end"
    )


class GridCell(BaseModel):
    """A prompt at an evaluation."""

    solved: int
    trials: int
    solved_id: str | None
    failed_id: str | None


class GridRow(BaseModel):
    """A prompt at every evaluation."""

    prompt_key: str
    prompt: str | None
    cells: list[GridCell | None]
    flips: int


class FlipGridAnswer(BaseModel):
    """Prompt by evaluation, some prompts at a time."""

    evaluations: list[tuple[str, int]]
    rows: list[GridRow]
    n_prompts: int
    n_evaluations: int
    solved_by: str
    next: int | None = Field(
        default=None, description="give it as `after` for the prompts behind; null at the end"
    )


class TwoRunsAnswer(BaseModel):
    """Two runs: their series, progress, and the settings in which they differ."""

    runs: dict[str, str]
    names: list[str]
    shown: list[str]
    series: dict[str, dict[str, Series]]
    progress: dict[str, Progress]
    settings: list[Setting]
    evaluations: list[str]


class Episode(BaseModel):
    """An episode of a step."""

    episode: str
    group: int | None
    n_rows: int
    n_kept: int
    n_trained: int
    reward: Number


class Left(BaseModel):
    """How a row left another."""

    kind: str
    shared: int | None
    left_at: int | None
    back_at: int | None


class EpisodeTurn(BaseModel):
    """A turn of a row of an episode."""

    role: str
    n: int
    size: int
    name: str | None
    calls: list[str]


class EpisodeRow(BaseModel):
    """A row of an episode; a row stands before those that left it."""

    id: str | None
    at: int
    depth: int
    parent: int | None
    group: int | None
    sample: int | None
    name: str | None
    left: Left
    flags: list[str]
    values: dict[str, Any]
    seconds: Number
    start: Number
    extras: dict[str, Any]
    turns: list[EpisodeTurn]


class EpisodeTree(BaseModel):
    """The rows of an episode as a tree."""

    episode: str
    reward: Number
    one_reward: bool
    n_rows: int
    n_lost: int
    clock: str | None
    rows: list[EpisodeRow]
    differs: list[str]


class EpisodesAnswer(BaseModel):
    """The episodes of a step, some at a time, and the chosen one as a tree."""

    step: int
    episodes: list[Episode]
    range: Range
    severities: dict[str, str]
    kinds: dict[str, str]
    n_beyond: int
    tree: EpisodeTree
    next: int | None = Field(
        default=None, description="give it as `after` for the episodes behind; null at the end"
    )


class Cells(BaseModel):
    """A histogram of the loss tokens: one value of each list a cell."""

    edges: list[Number]
    sources: list[str]
    n: int
    new: list[int]
    prox: list[int]
    sign: list[int]
    staleness: list[int]
    source: list[int]
    turn: list[int]
    tokens: list[float]
    weight: list[float]


class WhatIfAnswer(BaseModel):
    """A step's loss tokens in cells, some cells at a time, the run's own bounds, the rollouts that were kept."""

    step: int
    cells: Cells | None
    why: str = Field(description="why there are no cells")
    declared: dict[str, float | dict[str, float] | None]
    range: Range
    samples: list[Card]
    next: int | None = Field(
        default=None, description="give it as `after` for the cells behind; null at the end"
    )
