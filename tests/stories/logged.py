"""A story logged through `RolloutLogger` into Trackio, as a trainer would: what is stored, not what is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import rollout_traces as rt
from rollout_traces.model.batch import RolloutBatch
from tests.generator import tiny_tokenizer
from tests.stories.world import Story

TOKENS = 24
"""Most sampled tokens of a row: lengths are scaled down to it."""


def log_story(story: Story, project: str, *, cap: int = 8, config: Mapping[str, Any] | None = None) -> None:
    """Logs every step of a story, with its metrics.

    Args:
        story: a run of few steps.
        project: the Trackio project.
        cap: traces a step.
        config: stored with the run.
    """
    tokenizer = tiny_tokenizer()
    logger = rt.RolloutLogger(
        project,
        story.run,
        tokenizer,
        worker="thread",
        max_rollout_traces_per_step=cap,
        selection="random",
        config=config,
    )
    rollouts = story.rollouts.to_pydict()
    logged: dict[int, dict[str, float]] = {}
    for step, key, value in zip(
        *(story.metrics.column(n).to_pylist() for n in ("step", "key", "value")), strict=True
    ):
        logged.setdefault(step, {})[key] = value
    places = sorted(
        {
            (s, sp)
            for s, sp, old in zip(rollouts["step"], rollouts["split"], rollouts["superseded"], strict=True)
            if not old
        }
    )
    for step, split in places:
        rows = [
            i
            for i, (s, sp, old) in enumerate(
                zip(rollouts["step"], rollouts["split"], rollouts["superseded"], strict=True)
            )
            if s == step and sp == split and not old
        ]
        logger.log_rollouts(
            batch_of(rollouts, rows, [story.replies[i] for i in rows], step, tokenizer),
            step=step,
            split=split,
        )
        logger.close_step(step, split=split)
        if split == "rollout":
            logger.log_scalars(logged.get(step, {}), step=step)
    logger.flush(timeout=120)
    logger.finish()


def batch_of(
    rollouts: dict[str, list[Any]], rows: list[int], texts: list[str], step: int, tokenizer: Any
) -> RolloutBatch:
    """The rows of a step as a trainer's batch: prompt, reply, logprobs that differ by the planted mismatch."""
    rng = np.random.default_rng([step, len(rows)])

    def column(name: str) -> list[Any]:
        return [rollouts[name][i] for i in rows]

    prompts = [_prompt(tokenizer, key) for key in column("prompt_key")]
    replies = [_reply(tokenizer, text) for text in texts]
    lengths = [len(p) + len(r) for p, r in zip(prompts, replies, strict=True)]
    width = max(lengths)
    ids = np.zeros((len(rows), width), np.int64)
    attention, loss = np.zeros((len(rows), width), bool), np.zeros((len(rows), width), bool)
    versions = np.full((len(rows), width), -1)
    logprobs, prox = np.zeros((len(rows), width), np.float32), np.zeros((len(rows), width), np.float32)
    k3 = [value if value is not None else 0.001 for value in column("mismatch_k3")]
    mean_logprob, version = column("mean_logprob"), column("version_max")
    for b, (prompt, reply) in enumerate(zip(prompts, replies, strict=True)):
        start, stop = len(prompt), lengths[b]
        ids[b, :stop] = [*prompt, *reply]
        attention[b, :stop] = True
        loss[b, start:stop] = True
        versions[b, start:stop] = version[b]
        logprobs[b, start:stop] = mean_logprob[b] * rng.uniform(0.5, 1.5, stop - start)
        prox[b, start:stop] = logprobs[b, start:stop] + rng.normal(0, np.sqrt(2 * k3[b]), stop - start)
    components = {
        n.removeprefix("component/"): np.asarray(column(n), float)
        for n in rollouts
        if n.startswith("component/")
    }
    return RolloutBatch(
        input_ids=ids,
        attention_mask=attention,
        loss_mask=loss,
        versions=versions,
        logprobs=logprobs,
        prox_logprobs=prox,
        rewards=np.asarray([np.nan if r is None else r for r in column("reward")], float),
        reward_components=components or None,
        group_ids=column("group"),
        prompt_keys=column("prompt_key"),
        sources=column("source"),
        engine_ids=column("engine"),
        successes=column("success"),
        reward_statuses=column("reward_status"),
        stop_reasons=column("stop_reason"),
        train_version=step,
    )


def _prompt(tokenizer: Any, key: str) -> list[int]:
    return tokenizer.encode(f"<|im_start|>user\nQuestion {key}<|im_end|>\n<|im_start|>assistant\n")


def _reply(tokenizer: Any, text: str) -> list[int]:
    return [*tokenizer.encode(text)[-TOKENS:], *tokenizer.encode("<|im_end|>")]
