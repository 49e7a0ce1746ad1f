"""OpenRLHF's `Experience`: whole sequences, with an action mask that is one token shorter and shifted.

    from rollout_traces.integrations import openrlhf
    logger.log_rollouts(openrlhf.batches_from(experiences), step=step)

`action_mask[b, t]` speaks of `sequences[b, t + 1]`, and so do the logprobs: OpenRLHF's frame is that of the
logits. Wrap `experience_maker.make_experience_batch`, whose experiences have advantages and the policy's logprobs, or
`samples_generator.generate_samples`, whose first result they are before that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollout_traces.errors import BatchError
from rollout_traces.model.batch import RolloutBatch

SHIFTED_TRACKS = {
    "rollout_log_probs": "logprobs",
    "action_log_probs": "prox_logprobs",
    "base_action_log_probs": "ref_logprobs",
    "advantages": "advantages",
    "values": "values",
}
"""OpenRLHF's [B, T - 1] tensors -> ours."""


def batches_from(native: Sequence[Any], /, *, group_size: int | None = None) -> list[RolloutBatch]:
    """OpenRLHF's experiences, a batch each, shifted back into the frame of the ids.

    Rows of equal `prompts` are one group, over all experiences of a call: OpenRLHF samples one experience a row, and
    merges them later. With `group_size` rows are grouped as it does for its baselines, by their `index`, which they have
    in `make_experience_batch`. Without either, every experience is a group.

    Args:
        native: experiences with `sequences` and `attention_mask` [B, T], `action_mask` [B, T - 1], and
            perhaps the tracks of `SHIFTED_TRACKS`, `rewards` [B], `prompts`, `labels`, `truncated`, `index`,
            `info` (name -> [B], what a reward function logged among it).
        group_size: `args.rollout.n_samples_per_prompt`.

    Returns:
        One batch an experience.

    Raises:
        BatchError: a key is missing, or the action mask is not one shorter than the sequences.
    """
    return [_batch(experience, group_size) for experience in native]


def _batch(experience: Any, group_size: int | None) -> RolloutBatch:
    ids, attention, actions = (
        _get(experience, key) for key in ("sequences", "attention_mask", "action_mask")
    )
    for key, value in (("sequences", ids), ("attention_mask", attention), ("action_mask", actions)):
        if value is None:
            raise BatchError(f"OpenRLHF's experience: {key!r} is missing.")
    B, T = ids.shape
    if tuple(actions.shape) != (B, T - 1):
        raise BatchError(
            f"OpenRLHF's action_mask: seen shape {tuple(actions.shape)}. Expected [B, T - 1] = {(B, T - 1)}, "
            "one value a predicted token."
        )
    sampled = _shift_back(actions > 0, False)
    tracks = {
        ours: _shift_back(value, float("nan"))
        for theirs, ours in SHIFTED_TRACKS.items()
        if (value := _get(experience, theirs)) is not None and tuple(value.shape) == (B, T - 1)
    }
    truncated = _get(experience, "truncated")
    return RolloutBatch(
        input_ids=ids,
        attention_mask=attention,
        loss_mask=sampled,
        response_mask=sampled,
        rewards=_get(experience, "rewards"),
        sample_metrics=_metrics(experience, B),
        group_ids=_groups(experience, group_size),
        prompt_keys=_get(experience, "prompts") or None,
        ground_truths=_get(experience, "labels") or None,
        stop_reasons=None if truncated is None else ["length" if cut else "stop" for cut in truncated],
        **tracks,
    )


def _groups(experience: Any, group_size: int | None) -> list[Any] | None:
    index = _get(experience, "index")
    if group_size is not None and index is not None:
        return [int(number) // group_size for number in index]
    return _get(experience, "prompts") or None


def _metrics(experience: Any, n_rows: int) -> dict[str, Any]:
    """Picks what `info` has of each row, its reward apart."""
    info = _get(experience, "info") or {}
    return {
        str(name): values
        for name, values in info.items()
        if name != "reward" and tuple(getattr(values, "shape", ())) == (n_rows,)
    }


def _shift_back(values: Any, fill: Any) -> Any:
    """[B, T - 1] in the logits' frame -> [B, T] in the ids' frame; nothing predicts the first token."""
    import torch

    if values.dtype != torch.bool:
        values = values.float()
    return torch.cat([torch.full_like(values[:, :1], fill), values], dim=1)


def _get(experience: Any, key: str) -> Any:
    value = experience.get(key) if isinstance(experience, Mapping) else getattr(experience, key, None)
    if value is None and not isinstance(experience, Mapping):
        value = (getattr(experience, "info", None) or {}).get(key)
    return value
