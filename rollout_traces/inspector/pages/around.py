"""What is around a rollout, for overlays that speak of its group or its step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rollout_traces.errors import StoreError
from rollout_traces.inspector.payload import packed
from rollout_traces.inspector.workspace import Request, Workspace
from rollout_traces.ledger.columns import NULL_INT
from rollout_traces.trace.conversion import TraceRecord, read_transcript


def around(workspace: Workspace, request: Request) -> dict[str, Any]:
    """The `step` or the `group` of a rollout, as the request's `what` names it.

    Raises:
        StoreError: `what` names neither, or the group is not known.
    """
    what = request.text("what")
    read = _READERS.get(what)
    if read is None:
        raise StoreError(f"what: seen {what!r}, expected one of {', '.join(_READERS)}.")
    return read(workspace, request)


def step_means(workspace: Workspace, request: Request) -> dict[str, Any]:
    """Means over the sampled tokens of all rollouts of the step, from the ledger.

    Returns:
        `advantage`, `logprob` (rollout logprob, nats; each None where the ledger has none), `n_rows`.
    """
    ledger = workspace.store(request.project).ledger_rows(
        request.run, request.split, steps=(request.step, request.step)
    )
    sampled = ledger.get("n_sampled")
    weights = np.where(sampled == NULL_INT, 0, sampled).astype(np.float64)
    return {
        "advantage": _weighted(ledger.get("advantage"), weights),
        "logprob": _weighted(ledger.get("mean_logprob"), weights),
        "n_rows": ledger.n_rows,
    }


def group_pushes(workspace: Workspace, request: Request) -> dict[str, Any]:
    """What the kept rollouts of a group do to each token id.

    Returns:
        `ids` int32 [V], `up` and `down` float32 [V]: sums of positive advantages and of negative ones
        (without their sign) over the loss tokens of that id; `n_kept` of `n_rollouts` were read.
    """
    store = workspace.store(request.project)
    groups = store.groups(request.run, request.split, request.step).groups
    group = next((each for each in groups if each.group == request.number("group")), None)
    if group is None:
        raise StoreError("This rollout belongs to no group, so nothing can cancel in it.")
    ids, advantages = [], []
    for row in group.traces:
        if row.id is not None and (found := _pushes(store.record(row.id))) is not None:
            ids.append(found[0])
            advantages.append(found[1])
    if not ids:
        raise StoreError("No kept rollout of this group has advantages.")
    known, places = np.unique(np.concatenate(ids), return_inverse=True)
    pushed = np.concatenate(advantages)
    return {
        "ids": packed(known.astype(np.int32)),
        "up": packed(np.bincount(places, np.maximum(pushed, 0), len(known)).astype(np.float32)),
        "down": packed(np.bincount(places, np.maximum(-pushed, 0), len(known)).astype(np.float32)),
        "n_kept": len(ids),
        "n_rollouts": group.n_rollouts,
    }


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


def _weighted(values: np.ndarray, weights: np.ndarray) -> float | None:
    known = np.isfinite(values) & (weights > 0)
    return float(np.average(values[known], weights=weights[known])) if known.any() else None


_READERS: Mapping[str, Callable[[Workspace, Request], dict[str, Any]]] = {
    "step": step_means,
    "group": group_pushes,
}
