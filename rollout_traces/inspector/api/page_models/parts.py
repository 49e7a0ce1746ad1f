"""What several answers are made of."""

from __future__ import annotations

from pydantic import BaseModel, Field

Number = float | None
Range = tuple[float, float]


class SeriesModel(BaseModel):
    """Values over steps; `superseded` are the steps that only an older attempt of the run has."""

    steps: list[int]
    values: list[Number]
    superseded: list[int] = []


class ProgressModel(BaseModel):
    """How far a run was at each step: rollouts seen and tokens sampled."""

    steps: list[int]
    rollouts: list[Number]
    tokens: list[Number]


class UsualModel(BaseModel):
    """A flag that is usual for the run."""

    name: str
    share: float
    n: int


class CardModel(BaseModel):
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
    late: bool = Field(default=False, description="it came after its step was closed")
    superseded: bool = Field(
        default=False, description="a later attempt of the run trained its step, or one before"
    )
    stop_reason: str | None
    selected_by: str | None
    group: int | None
    sample: int | None
    reward: Number
    advantage: Number
    n_tokens: int | None
    n_sampled: int | None
    staleness_max: int | None


class SettingModel(BaseModel):
    """A setting that differs."""

    key: str
    a: str | None
    b: str | None
