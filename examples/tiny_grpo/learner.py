"""GRPO: padded batches, advantages within groups, and the clipped policy loss for slightly stale rollouts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from transformers import LlamaForCausalLM

from .sampler import Rollout
from .task import REWARD_WEIGHTS, total_reward

CLIP_LOW, CLIP_HIGH = 0.2, 0.28
MAX_STALENESS_WEIGHT = 2.0
LOSS_KEYS = ("input_ids", "loss_mask", "logprobs")


def group_advantages(rewards_G: torch.Tensor) -> torch.Tensor:
    """Return (reward - mean) / std of one group; all zeros when its rewards are equal."""
    std = rewards_G.std(correction=0)
    return torch.zeros_like(rewards_G) if std < 1e-6 else (rewards_G - rewards_G.mean()) / std


def make_batch(groups: list[list[Rollout]], pad_id: int, train_version: int, device: str) -> dict[str, Any]:
    """Pad groups of rollouts to B rows of T tokens, score them and compute their advantages.

    Args:
        groups: Complete groups, each of one problem.
        pad_id: What fills the rows on the right.
        train_version: The policy version about to be updated.
        device: Where the tensors go.

    Returns:
        The keys of ``rollout_traces.RolloutBatch``: per-token tensors [B, T], unshifted, per-row
        tensors and lists of B.
    """
    rows = [rollout for group in groups for rollout in group]
    longest = max(len(row.ids) for row in rows)

    def padded(track: str, fill: float) -> torch.Tensor:
        values = [getattr(row, track) for row in rows]
        return torch.tensor([value + [fill] * (longest - len(value)) for value in values], device=device)

    components = [row.episode.score(row.n_sampled) for row in rows]
    rewards = torch.tensor([total_reward(scores) for scores in components], device=device)
    advantages = torch.cat(
        [group_advantages(part) for part in rewards.split([len(group) for group in groups])]
    )
    lengths = torch.tensor([len(row.ids) for row in rows], device=device)
    return {
        "input_ids": padded("ids", pad_id),
        "attention_mask": torch.arange(longest, device=device) < lengths[:, None],
        "loss_mask": padded("sampled", False),
        "turn_ids": padded("turn_ids", -1),
        "versions": padded("versions", -1),
        "logprobs": padded("logprobs", 0.0),
        "entropies": padded("entropies", 0.0),
        "advantages": advantages,
        "rewards": rewards,
        "reward_components": {
            name: torch.tensor([scores[name] for scores in components]) for name in REWARD_WEIGHTS
        },
        "sample_metrics": {"tool_errors": torch.tensor([float(row.episode.tool_errors) for row in rows])},
        "extras": [{"tool_host": row.episode.host.name} for row in rows],
        "timings": [row.timings for row in rows],
        "group_ids": [row.group_id for row in rows],
        "prompt_keys": [row.episode.problem.key for row in rows],
        "sources": [row.episode.problem.family for row in rows],
        "stop_reasons": [row.stop_reason for row in rows],
        "discard_reasons": ["zero_advantage" if a == 0 else None for a in advantages.abs().tolist()],
        "successes": [row.episode.success for row in rows],
        "parsed_answers": [row.episode.last_box for row in rows],
        "ground_truths": [row.episode.problem.answers[-1] for row in rows],
        "train_version": train_version,
    }


def token_logprobs(model: LlamaForCausalLM, ids_B_T: torch.Tensor, mask_B_T: torch.Tensor) -> torch.Tensor:
    """Return the log-probability of each token of ``mask``, float [B, T], unshifted; 0 elsewhere.

    Rows are padded on the right, where a causal model does not look, so they need no attention mask.
    """
    hidden_B_T_D = model.model(input_ids=ids_B_T, use_cache=False).last_hidden_state
    wanted = mask_B_T[:, 1:]  # the state at t predicts token t + 1
    logprobs_N_V = model.lm_head(hidden_B_T_D[:, :-1][wanted]).float().log_softmax(-1)
    picked = logprobs_N_V.gather(-1, ids_B_T[:, 1:][wanted][:, None]).squeeze(-1)
    return torch.zeros(mask_B_T.shape, device=mask_B_T.device).masked_scatter(
        torch.nn.functional.pad(wanted, (1, 0)), picked
    )


def policy_loss(
    new: torch.Tensor,
    prox: torch.Tensor,
    rollout: torch.Tensor,
    advantages_B: torch.Tensor,
    mask: torch.Tensor,
) -> torch.Tensor:
    """Clip new / prox as in PPO, and weigh each token by prox / rollout, capped, for its staleness.

    ``new``, ``prox`` and ``rollout`` are log-probabilities [B, T]; the sum is over the tokens of ``mask``.
    """
    ratio, advantages = (new - prox).exp(), advantages_B[:, None]
    weight = (prox - rollout).exp().clamp(max=MAX_STALENESS_WEIGHT)
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH) * advantages)
    return -(weight * gain)[mask].sum()


def like_lengths(
    attention_mask_B_T: torch.Tensor, rows: torch.Tensor, size: int = 8
) -> Iterator[tuple[torch.Tensor, int]]:
    """Split ``rows`` into parts of like length, each with the column its padding begins at."""
    lengths = attention_mask_B_T.sum(1).cpu()[rows]
    for part in lengths.argsort().split(size):
        yield rows[part], int(lengths[part].max())


@torch.no_grad()
def recomputed_logprobs(model: LlamaForCausalLM, batch: dict[str, Any]) -> torch.Tensor:
    """Compute the log-probabilities [B, T] of all sampled tokens with the model's weights as they are now.

    Before the update these are the proximal ones, which the loss compares with; after it the new ones.
    """
    found = torch.zeros_like(batch["logprobs"])
    for rows, end in like_lengths(batch["attention_mask"], torch.arange(len(found))):
        found[rows, :end] = token_logprobs(
            model, batch["input_ids"][rows, :end], batch["loss_mask"][rows, :end]
        )
    return found


def update(
    model: LlamaForCausalLM,
    optimizer: torch.optim.Optimizer,
    batch: dict[str, Any],
    prox_logprobs: torch.Tensor,
    minibatches: int = 2,
) -> dict[str, float]:
    """Take ``minibatches`` gradient steps on the rows that were not discarded.

    Returns:
        The mean loss and gradient norm; nothing when every row was discarded.
    """
    used = torch.tensor(
        [i for i, reason in enumerate(batch["discard_reasons"]) if reason is None], dtype=torch.long
    )
    stats: dict[str, list[float]] = {"loss": [], "grad_norm": []}
    for rows in used[torch.randperm(len(used))].chunk(minibatches) if len(used) else ():
        optimizer.zero_grad()
        n_tokens, total = batch["loss_mask"][rows].sum(), 0.0
        for part, end in like_lengths(batch["attention_mask"], rows):
            ids, mask, rollout = (batch[key][part, :end] for key in LOSS_KEYS)
            new = token_logprobs(model, ids, mask)
            prox = prox_logprobs[part, :end]
            loss = policy_loss(new, prox, rollout, batch["advantages"][part], mask) / n_tokens
            loss.backward()
            total += loss.item()
        stats["grad_norm"].append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
        stats["loss"].append(total)
    return {name: sum(values) / len(values) for name, values in stats.items() if values}
