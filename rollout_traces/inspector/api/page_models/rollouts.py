"""Rollouts, their tokens, groups and episodes."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from rollout_traces.inspector.api.page_models.parts import CardModel, Number, Range, UsualModel


class DotModel(BaseModel):
    """A reward of a group, and whether its rollout was kept."""

    reward: Number
    traced: bool


class StepGroupModel(BaseModel):
    """A group of a step with its kept rollouts."""

    group: int | None
    prompt: str | None
    mean: Number
    n: int
    tied: bool
    zero_advantage: bool
    rewards: list[DotModel]
    flags: list[str]
    usual_flags: list[str]
    samples: list[CardModel]


class StepAnswer(BaseModel):
    """The list of Rollouts: a step's groups, or with `sort` or `scope=all` rollouts a page at a time."""

    usual: list[UsualModel]
    step: int
    range: Range
    severities: dict[str, str]
    columns: list[str]
    scope: str
    note: str | None = None
    n_traced: int
    n_rows: int | None
    chosen_by: str | None
    groups: list[StepGroupModel] | None
    samples: list[CardModel] | None = None
    n_matched: int
    next: str | None = Field(
        default=None, description="give it as `after` for the page behind; null at the end"
    )


class TokenModel(BaseModel):
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
    tokens: list[TokenModel]
    next: int | None = Field(description="give it as `after` for the tokens behind; null at the end")


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


class ComparedSideModel(BaseModel):
    """One of two rollouts; `rollout` and `pages/rollouts/tokens` give its text and tokens."""

    id: str
    run: str | None
    metadata: dict[str, Any]
    flags: list[dict[str, Any]]
    explains: dict[str, list[str]] = {}
    usual_flags: list[str] = []
    ranges: dict[str, Range]


class DeltaModel(BaseModel):
    """A value of both rollouts."""

    name: str
    a: Any
    b: Any
    delta: Number


class ComparePageAnswer(BaseModel):
    """Two rollouts of a group: those named, else its best and its worst."""

    sides: list[ComparedSideModel]
    shared: int | None
    deltas: list[DeltaModel]
    candidates: list[CardModel]
    range: Range
    severities: dict[str, str]


class PopulationAnswer(BaseModel):
    """How many rollouts of a step were kept, and how they were chosen."""

    step: int
    n_traced: int
    n_rows: int | None
    chosen_by: str | None


class MemberTurnModel(BaseModel):
    """A turn of a sample: its tokens and tools."""

    role: str
    n: int
    calls: list[str]
    failed: bool


class ActionModel(BaseModel):
    """A tool call or the last answer of a sample."""

    kind: str
    name: str
    text: str
    failed: bool
    turn: int


class MemberModel(BaseModel):
    """A sample of a group."""

    id: str | None
    sample: int | None
    flags: list[str]
    explains: dict[str, list[str]]
    usual_flags: list[str]
    values: dict[str, Any]
    turns: list[MemberTurnModel]
    actions: list[ActionModel]


class BranchModel(BaseModel):
    """Tokens that some samples share; `members` are positions in the list of all members."""

    n_tokens: int
    start: int
    text: str
    members: list[int]
    mean: Number
    children: list[BranchModel]


class PrefixTreeModel(BaseModel):
    """Where the kept samples of a group share tokens and where they part."""

    prompt_tokens: int
    root: BranchModel


class GroupPhraseModel(BaseModel):
    """A phrase with the shares of winners and losers that say it."""

    text: str
    winners: float
    losers: float


class GroupPhrasesModel(BaseModel):
    """What winners say and losers do not, and the other way round."""

    n_winners: int
    n_losers: int
    winners: list[GroupPhraseModel]
    losers: list[GroupPhraseModel]


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
    usual: list[UsualModel]
    components: list[str]
    members: list[MemberModel]
    tree: PrefixTreeModel | None
    phrases: GroupPhrasesModel
    next: int | None = Field(
        default=None, description="give it as `after` for the members behind; null at the end"
    )


class EpisodeModel(BaseModel):
    """An episode of a step."""

    episode: str
    group: int | None
    n_rows: int
    n_kept: int
    n_trained: int
    reward: Number


class LeftModel(BaseModel):
    """How a row left another."""

    kind: str
    shared: int | None
    left_at: int | None
    back_at: int | None


class EpisodeTurnModel(BaseModel):
    """A turn of a row of an episode."""

    role: str
    n: int
    size: int
    name: str | None
    calls: list[str]


class EpisodeRowModel(BaseModel):
    """A row of an episode; a row stands before those that left it."""

    id: str | None
    at: int
    depth: int
    parent: int | None
    group: int | None
    sample: int | None
    name: str | None
    left: LeftModel
    flags: list[str]
    values: dict[str, Any]
    seconds: Number
    start: Number
    extras: dict[str, Any]
    turns: list[EpisodeTurnModel]


class EpisodeTreeModel(BaseModel):
    """The rows of an episode as a tree."""

    episode: str
    reward: Number
    one_reward: bool
    n_rows: int
    n_lost: int
    clock: str | None
    rows: list[EpisodeRowModel]
    differs: list[str]


class EpisodesAnswer(BaseModel):
    """The episodes of a step, some at a time, and the chosen one as a tree."""

    step: int
    episodes: list[EpisodeModel]
    range: Range
    severities: dict[str, str]
    kinds: dict[str, str]
    n_beyond: int
    tree: EpisodeTreeModel
    next: int | None = Field(
        default=None, description="give it as `after` for the episodes behind; null at the end"
    )


class CellsModel(BaseModel):
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
    cells: CellsModel | None
    why: str = Field(description="why there are no cells")
    declared: dict[str, float | dict[str, float] | None]
    range: Range
    samples: list[CardModel]
    next: int | None = Field(
        default=None, description="give it as `after` for the cells behind; null at the end"
    )
