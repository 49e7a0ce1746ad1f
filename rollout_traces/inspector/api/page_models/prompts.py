"""Prompts over steps and evaluations, and columns over rows."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from rollout_traces.inspector.api.page_models.parts import Number, Range


class VisitModel(BaseModel):
    """The rollouts of one prompt at a step."""

    step: int
    n: int
    reward: Number
    pass_rate: Number
    traced: list[str]
    group: int | None


class PromptHistoryAnswer(BaseModel):
    """The rollouts that answer the same prompt, step by step."""

    steps: list[VisitModel]
    range: Range | None = None


class PromptRowModel(BaseModel):
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

    prompts: list[PromptRowModel]
    total: int
    keyless: int
    order: str
    offset: int
    orders: list[str]
    next: int | None = Field(
        default=None, description="give it as `after` for the prompts behind; null at the end"
    )


class PromptVisitModel(BaseModel):
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


class PromptPlaceModel(BaseModel):
    """A prompt in one run and split."""

    run: str
    split: str
    visits: list[PromptVisitModel]


class PromptAnswer(BaseModel):
    """One prompt over steps, splits and runs."""

    prompt_key: str
    prompt: str | None
    n_visits: int
    shown: int
    tried: int
    solved: int | None
    range: Range
    places: list[PromptPlaceModel]


class FlippedPromptModel(BaseModel):
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
    prompts: list[FlippedPromptModel]
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


class GridCellModel(BaseModel):
    """A prompt at an evaluation."""

    solved: int
    trials: int
    solved_id: str | None
    failed_id: str | None


class GridRowModel(BaseModel):
    """A prompt at every evaluation."""

    prompt_key: str
    prompt: str | None
    cells: list[GridCellModel | None]
    flips: int


class FlipGridAnswer(BaseModel):
    """Prompt by evaluation, some prompts at a time."""

    evaluations: list[tuple[str, int]]
    rows: list[GridRowModel]
    n_prompts: int
    n_evaluations: int
    solved_by: str
    next: int | None = Field(
        default=None, description="give it as `after` for the prompts behind; null at the end"
    )


class BinsModel(BaseModel):
    """A histogram: `edges` has one value more than `counts`."""

    edges: list[float]
    counts: list[int]
    unknown: int


class SpreadAnswer(BaseModel):
    """How a column's values are spread over the rows that match: values with counts, or bins."""

    column: str
    kind: str
    facets: list[tuple[Any, int]] | None
    bins: BinsModel | None


class ExportAnswer(BaseModel):
    """The command that exports rows, and the rows as JSON lines where they are few."""

    total: int
    most: int
    lines: str | None
    command: str
