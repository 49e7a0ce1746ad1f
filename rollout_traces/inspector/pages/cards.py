"""A rollout as lists show it, and how many of all rollouts were kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rollout_traces.alarms.worn import Worn
from rollout_traces.inspector.pages.figures import Number, chosen_by, chosen_over_steps
from rollout_traces.inspector.view import SplitView
from rollout_traces.store import StepGroups, TraceRow

NUMBERS = ("group", "sample", "reward", "advantage", "n_tokens", "n_sampled", "staleness_max")


@dataclass(frozen=True, kw_only=True)
class Card:
    """A rollout as lists show it.

    Attributes:
        flags: those that it wears: abnormal for the run.
        explains: under each of these those that it explains.
        usual_flags: those that are usual for the run, or of its group.
        late: it came after its step was closed.
        superseded: a later attempt of the run trained its step, or one before.
        sorted_by: the value that the list is sorted by.
    """

    id: str | None
    step: int
    words: str
    prompt: str
    snippet: str | None
    flags: list[str]
    explains: dict[str, list[str]] = field(default_factory=dict)
    usual_flags: list[str] = field(default_factory=list)
    labels: list[str]
    discard_reason: str | None
    late: bool
    superseded: bool
    stop_reason: str | None
    selected_by: str | None
    group: int | None
    sample: int | None
    reward: Number
    advantage: Number
    n_tokens: int | None
    n_sampled: int | None
    staleness_max: int | None
    sorted_by: float | str | None = None


@dataclass(frozen=True, kw_only=True)
class KeptRollouts:
    """How many rollouts there were, how many were kept, and how these were chosen, in words."""

    n_traced: int
    n_rows: int | None
    chosen_by: str | None


@dataclass(frozen=True, kw_only=True)
class KeptOfStep(KeptRollouts):
    """The same of one step."""

    step: int


def population(view: SplitView, step: int) -> KeptOfStep:
    """How many rollouts of a step were kept, and how they were chosen."""
    return KeptOfStep(step=step, **vars(population_of(view.store.groups(view.run, view.split, step))))


def population_of(groups: StepGroups) -> KeptRollouts:
    """The same, of groups that were read: where no ledger says how many there were, the traces may."""
    populations = [row["population"] for group in groups.groups for row in group.traces]
    n_rows = groups.n_rollouts or max((n for n in populations if isinstance(n, int)), default=None)
    return KeptRollouts(n_traced=groups.n_traces, n_rows=n_rows, chosen_by=chosen_by(groups.selected_by))


def population_over_steps(view: SplitView) -> KeptRollouts:
    """The same of all steps of a split."""
    steps = view.store.steps(view.run, view.split)
    return KeptRollouts(
        n_traced=sum(info.n_traces for info in steps),
        n_rows=sum(info.n_rollouts or 0 for info in steps) or None,
        chosen_by=chosen_over_steps(view),
    )


def sample_card(row: TraceRow, worn: Worn | None = None, sorted_by: str | None = None) -> Card:
    """What the list shows of a rollout.

    Args:
        row: the rollout.
        worn: which of its flags are abnormal for the run; all are shown when None.
        sorted_by: the column that the list is sorted by first.
    """
    known = row.values
    value = None if sorted_by is None else row.get(sorted_by)
    numbers: dict[str, Any] = {name: known.get(name) for name in NUMBERS}
    return Card(
        id=row.id,
        step=row.step,
        words=known.get("reply") or known.get("prompt") or "",
        prompt=known.get("prompt") or "",
        snippet=known.get("snippet"),
        labels=list(known.get("labels") or ()),
        discard_reason=known.get("discard_reason"),
        late=bool(known.get("late")),
        superseded=bool(known.get("superseded")),
        stop_reason=known.get("stop_reason"),
        selected_by=known.get("selected_by"),
        sorted_by=value if isinstance(value, (int, float, str)) else None,
        **({"flags": list(known.get("flags") or ())} if worn is None else worn_listed(worn)),
        **numbers,
    )


def worn_listed(worn: Worn) -> dict[str, Any]:
    """What a card shows of a row's flags: `flags` that it wears, and under each those that it explains."""
    return {
        "flags": list(worn.names),
        "explains": {name: list(names) for name, names in worn.worn if names},
        "usual_flags": [*worn.usual, *worn.of_group],
    }
