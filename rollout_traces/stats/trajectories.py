"""AReaL's batches: a list of dicts, one per accepted prompt, whose rows are the prompt's group.

Right-padded with zeros in every key. In single-controller mode the values are `RTensor` handles: these are copied
before they are resolved, since a resolved handle travels with every later call of the trainer.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rollout_traces.capture.host_copy import MAX_BYTES
from rollout_traces.errors import BatchError, extra
from rollout_traces.model.batch import ListElement, RolloutBatch
from rollout_traces.model.text import fresh_name, words

TOKEN_KEYS = {
    **{key: key for key in words("input_ids attention_mask loss_mask versions turn_ids logprobs values")},
    "ref_logp": "ref_logprobs",
}
"""AReaL's per-token keys [g, T] -> ours."""
ROW_KEYS = {"rewards": "rewards", "original_rewards": "raw_rewards"}
"""AReaL's per-row keys [g] -> ours."""
MESSAGE_KEYS = ("messages", "conversation")
JOINED_KEYS = {"advantages": "advantages", "prox_logp": "prox_logprobs"}
"""Keys that `compute_advantages` adds -> ours."""
TOKENS_LEFT_OUT = "rollout_traces/tokens_left_out"
FETCHED = (*TOKEN_KEYS, *ROW_KEYS, *MESSAGE_KEYS, *JOINED_KEYS, "conversation_text", "interactions")
TOKEN_BYTES = MAX_BYTES
"""Bytes of token tensors that are fetched per batch; of the dicts beyond, rewards alone are."""


ONLY_AREAL = ("ref_logp", "original_rewards", "conversation", "conversation_text", "interactions", "messages")
"""Keys by which a dict is known to be AReaL's, where none of its values is a handle."""


def canonical(trajectories: Any) -> Any:
    """Makes the argument of `RolloutLogger.log_rollouts` of what AReaL's own `log_rollout_traces` is given.

    AReaL's dicts get our keys, handles fetched, a flat conversation only where the dict has one row; whatever
    else is given comes back as it is.
    """
    if not isinstance(trajectories, Sequence) or isinstance(trajectories, (str, bytes)):
        return trajectories
    fetched = iter(resolve([item for item in trajectories if isinstance(item, Mapping)], max_bytes=None))
    return [_canonical(next(fetched)) if isinstance(item, Mapping) else item for item in trajectories]


def _canonical(trajectory: Mapping[str, Any]) -> Any:
    if not any(key in trajectory for key in ONLY_AREAL):
        return trajectory
    if "input_ids" not in trajectory:
        return _without_tokens(trajectory) if "interactions" in trajectory else trajectory
    kept = {key: value for key, value in trajectory.items() if key not in ONLY_AREAL}
    return {**kept, **_fields(trajectory)}


def _fields(trajectory: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a `RolloutBatch` that a dict with tokens holds."""
    rows = int(trajectory["input_ids"].shape[0])
    renamed = _renamed(trajectory, {**TOKEN_KEYS, **ROW_KEYS})
    return {**renamed, **_texts(trajectory, rows), "messages": _messages(trajectory, rows)}


def _renamed(trajectory: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The values whose names AReaL gave, under ours."""
    return {ours: trajectory[theirs] for theirs, ours in names.items() if theirs in trajectory}


def batches_from(native: Sequence[Mapping[str, Any] | None], /) -> list[RolloutBatch]:
    """AReaL's list of dicts, tensors resolved, as one batch a dict: a group each.

    None trajectories, which AReaL leaves where it dropped one, are passed over; they keep their place, so that a
    group's number is its place in AReaL's list.

    Raises:
        BatchError: a dict has none of the keys that a rollout needs.
    """
    call = fresh_name()
    return [
        batch_of(trajectory).as_group(ListElement(call, place))
        for place, trajectory in enumerate(native)
        if trajectory is not None
    ]


def resolve(
    batch: Sequence[Mapping[str, Any] | None], *, max_bytes: int | None = TOKEN_BYTES
) -> list[dict[str, Any]]:
    """Fetches `RTensor` handles without touching the trainer's own.

    Args:
        batch: AReaL's list of dicts; of tensors it is copied shallowly.
        max_bytes: bytes of token tensors to fetch; beyond it only what is one value a row is fetched, and
            the dict says so under `TOKENS_LEFT_OUT`. None: no limit.

    Returns:
        The trajectories that are there, with local tensors.
    """
    trajectories = [dict(trajectory) for trajectory in batch if trajectory is not None]
    if not any(_is_handle(value) for trajectory in trajectories for value in trajectory.values()):
        return trajectories
    from areal.infra.rpc.rtensor import RTensor, clear_fetch_buffer, flatten_shard_ids

    wanted, spent = [], 0
    for trajectory in trajectories:
        spent += sum(_handle_bytes(value) for key, value in trajectory.items() if key in TOKEN_KEYS)
        if max_bytes is None or spent <= max_bytes:
            wanted.append(only(trajectory, FETCHED))
        else:
            wanted.append({**only(trajectory, tuple(ROW_KEYS)), TOKENS_LEFT_OUT: True})
    shells = copy.deepcopy(wanted)
    shards = flatten_shard_ids(shells)
    local = RTensor.localize(shells)
    clear_fetch_buffer(shards)
    return local


def batch_of(trajectory: Mapping[str, Any]) -> RolloutBatch:
    """One dict with local tensors as one batch.

    Raises:
        BatchError: it has none of the keys that a rollout needs.
    """
    if "input_ids" not in trajectory:
        return _without_tokens(trajectory)
    return RolloutBatch.from_dict(_fields(trajectory))


def _texts(trajectory: Mapping[str, Any], rows: int) -> dict[str, Any]:
    texts = trajectory.get("conversation_text")
    if not isinstance(texts, (list, tuple)) or len(texts) != rows:
        return {}
    return {"extras": [{"conversation_text": text} for text in texts]}


def _without_tokens(trajectory: Mapping[str, Any]) -> RolloutBatch:
    """Rows whose tokens were not fetched, or that an external agent gave as text alone."""
    with extra("train", "log_rollout_traces"):
        import torch

    if "interactions" in trajectory:
        interactions = trajectory["interactions"]
        rewards = [item.get("reward") for item in interactions]
        messages: list[Any] | None = [
            [*item.get("request", ()), {"role": "assistant", "content": item.get("response") or ""}]
            for item in interactions
        ]
        rows = len(interactions)
        fields: dict[str, Any] = {"rewards": [None if r is None else float(r) for r in rewards]}
    elif TOKENS_LEFT_OUT in trajectory and "rewards" in trajectory:
        fields = _renamed(trajectory, ROW_KEYS)
        rows = int(trajectory["rewards"].shape[0])
        messages = None
    else:
        raise BatchError(
            f"AReaL's trajectory: neither 'input_ids' nor 'interactions'. Seen {', '.join(sorted(trajectory)) or 'no keys'}."
        )
    nothing = torch.zeros(rows, 1, dtype=torch.bool)
    return RolloutBatch(
        input_ids=torch.zeros(rows, 1, dtype=torch.int64),
        attention_mask=nothing,
        loss_mask=nothing,
        messages=messages,
        **fields,
    )


def _messages(trajectory: Mapping[str, Any], rows: int) -> list[Any] | None:
    """One conversation a row; a flat list belongs to a dict of one row and to no other."""
    for key in MESSAGE_KEYS:
        value = trajectory.get(key)
        if not isinstance(value, (list, tuple)) or not value:
            continue
        if isinstance(value[0], Mapping):
            return [list(value)] if rows == 1 else None
        if len(value) == rows:
            return [None if conversation is None else list(conversation) for conversation in value]
    return None


def only(trajectory: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """The dict with those of the keys that it has."""
    return {key: trajectory[key] for key in keys if key in trajectory}


def _is_handle(value: Any) -> bool:
    return hasattr(value, "to_local") and hasattr(value, "shard")


def _handle_bytes(value: Any) -> int:
    return math.prod(value.shape) * value.dtype.itemsize if _is_handle(value) else 0
