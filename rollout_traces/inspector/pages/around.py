"""What is around a rollout, for overlays that speak of its group or its step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.figures import Number
from rollout_traces.inspector.view import SplitView
from rollout_traces.ledger.columns import NULL_INT
from rollout_traces.trace.conversion import TraceRecord, read_transcript


@dataclass(frozen=True)
class StepMeans:
    """Means over the sampled tokens of all rollouts of a step, each None where the ledger has none.

    Attributes:
        advantage: of the advantage.
        logprob: of the rollout logprob, nats.
        n_rows: rollouts.
    """

    advantage: Number
    logprob: Number
    n_rows: int


@dataclass(frozen=True)
class GroupPushes:
    """What the kept rollouts of a group do to each token id.

    Attributes:
        ids: the token ids, ascending.
        up: sum of the positive advantages over the loss tokens of each id.
        down: the same of the negative ones, without their sign.
        n_kept: rollouts that were read.
        n_rollouts: rollouts of the group.
        next: give it as `after` for the ids behind; None at the end.
    """

    ids: list[int]
    up: list[float]
    down: list[float]
    n_kept: int
    n_rollouts: int
    next: int | None = None


def step_means(view: SplitView, step: int) -> StepMeans:
    """Means over the sampled tokens of a step, which overlays compare a rollout with."""
    ledger = view.store.ledger_rows(view.run, view.split, steps=(step, step))
    sampled = ledger.get("n_sampled")
    weights = np.where(sampled == NULL_INT, 0, sampled).astype(np.float64)
    return StepMeans(
        _weighted(ledger.get("advantage"), weights),
        _weighted(ledger.get("mean_logprob"), weights),
        ledger.n_rows,
    )


def group_pushes(view: SplitView, step: int, group: int) -> GroupPushes:
    """What the kept rollouts of a group do to each token id.

    Raises:
        StoreError: the group is not known, or no kept rollout of it has advantages.
    """
    groups = view.store.groups(view.run, view.split, step).groups
    found = next((each for each in groups if each.group == group), None)
    if found is None:
        raise StoreError("This rollout belongs to no group, so nothing can cancel in it.")
    kept = [_pushes(view.store.record(row.id)) for row in found.traces if row.id is not None]
    pushes = [each for each in kept if each is not None]
    if not pushes:
        raise StoreError("No kept rollout of this group has advantages.")
    known, places = np.unique(np.concatenate([ids for ids, _ in pushes]), return_inverse=True)
    pushed = np.concatenate([advantages for _, advantages in pushes])
    up, down = (
        np.bincount(places, np.maximum(sign * pushed, 0), len(known)).astype(np.float32) for sign in (1, -1)
    )
    return GroupPushes(known.tolist(), up.tolist(), down.tolist(), len(pushes), found.n_rollouts)


def _pushes(record: TraceRecord) -> tuple[np.ndarray, np.ndarray] | None:
    """Ids and advantages of a rollout's loss tokens; None where it has no advantages."""
    transcript = read_transcript(record)
    if transcript is None:
        return None
    tokens = transcript.tokens
    in_loss = tokens.loss_mask.astype(bool)
    whole = record.metadata.get("advantage")
    if "advantages" in tokens.tracks:
        advantages = np.nan_to_num(tokens.tracks["advantages"][in_loss].astype(np.float64))
    elif isinstance(whole, (int, float)):
        advantages = np.full(int(in_loss.sum()), float(whole))
    else:
        return None
    return tokens.input_ids[in_loss], advantages


def _weighted(values: np.ndarray, weights: np.ndarray) -> Number:
    known = np.isfinite(values) & (weights > 0)
    return float(np.average(values[known], weights=weights[known])) if known.any() else None
