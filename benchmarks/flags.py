"""What flags cost: all population flags of a step of 512 rollouts of 4k tokens, and row flags on 32 traced rows.

    python -m benchmarks.flags

The step is made up of ids drawn at random, so that nothing repeats by accident and no detector leaves early;
half of the tokens are sampled. The traced rows are transcripts of the tests' generator of about 4k tokens and 40 turns. Times are processor time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from rollout_traces.flags import REGISTRY
from rollout_traces.flags.detect import FlagErrors, Population, TracedRow, flag_population, flag_row
from rollout_traces.ledger.build import build_ledger
from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.model.transcript import Transcript

BUDGET_POPULATION_MS = 150
BUDGET_ROWS_MS = 150


def random_step(n_rows: int, n_tokens: int, group_size: int, seed: int = 0) -> PackedBatch:
    """A healthy hand-over of `n_rows` rollouts of `n_tokens` tokens with all the tracks that trainers have."""
    rng = np.random.default_rng(seed)
    N = n_rows * n_tokens
    turn = np.arange(n_tokens) // 256
    sampled = np.tile(turn % 2 == 1, n_rows)
    logprobs = np.where(sampled, -rng.exponential(0.35, N), 0).astype(np.float32)
    drift = rng.normal(0, 0.01, N).astype(np.float32)
    advantages = np.repeat(rng.normal(size=n_rows), n_tokens) * sampled
    return PackedBatch(
        batch_id="0" * 12,
        step=10,
        split="rollout",
        offsets=np.arange(n_rows + 1) * n_tokens,
        input_ids=rng.integers(0, 150_000, N),
        loss_mask=sampled.copy(),
        response_mask=sampled,
        response_mask_source="versions",
        tracks={
            "versions": np.where(sampled, 10, -1).astype(np.int32),
            "turn_ids": np.where(sampled, np.tile(turn, n_rows), -1).astype(np.int32),
            "logprobs": logprobs,
            "prox_logprobs": np.where(sampled, logprobs + drift, 0).astype(np.float32),
            "new_logprobs": np.where(sampled, logprobs - drift, 0).astype(np.float32),
            "advantages": advantages.astype(np.float32),
            "entropies": np.where(sampled, 0.4, 0).astype(np.float32),
        },
        n_tokens=np.full(n_rows, n_tokens),
        has_tokens=np.ones(n_rows, bool),
        group_ids=np.arange(n_rows) // group_size,
        row_floats={"rewards": rng.random(n_rows)},
        row_lists={"stop_reasons": ["stop"] * n_rows},
        train_version=10,
    )


def decoded_rows(n_rows: int, n_tokens: int) -> tuple[PackedBatch, list[Transcript], Any]:
    """Rollouts of at least `n_tokens` tokens by the tests' generator, decoded, and their tokenizer."""
    from rollout_traces.capture.host_copy import capture
    from rollout_traces.decode import TranscriptDecoder
    from rollout_traces.model.batch import RolloutBatch
    from tests import generator

    tokenizer = generator.tiny_tokenizer("qwen3")
    rollout = generator.encode(tokenizer, _long_conversation(n_tokens))
    n = len(rollout.input_ids)
    rng = np.random.default_rng(0)
    logprobs = -rng.exponential(0.35, (n_rows, n)).astype(np.float32)
    batch = capture(
        [
            RolloutBatch(
                input_ids=np.tile(rollout.input_ids, (n_rows, 1)),
                attention_mask=np.ones((n_rows, n), bool),
                loss_mask=np.tile(rollout.sampled, (n_rows, 1)),
                versions=np.tile(np.where(rollout.sampled, 10, -1), (n_rows, 1)),
                logprobs=logprobs,
                prox_logprobs=logprobs + 0.01,
                stop_reasons=["stop"] * n_rows,
                train_version=10,
            )
        ],
        step=10,
        split="rollout",
    )
    return batch, TranscriptDecoder(tokenizer).decode_batch(batch, range(n_rows)), tokenizer


def _long_conversation(n_tokens: int) -> Any:
    """A tool call, then sixteen questions and answers, all together of about `n_tokens` tokens."""
    from tests.generator import Conversation, conversation

    sentences = [str(conversation(seed).messages[-1]["content"]) for seed in range(400)]
    words = n_tokens // 36 // 18
    messages = [dict(message) for message in conversation(1, n_calls=2, n_retries=16).messages]
    for index, message in enumerate(messages):
        if message["role"] in ("user", "assistant"):
            message["content"] += " " + " ".join(sentences[index * words : (index + 1) * words])
    return Conversation(tuple(messages), 1.0)


def milliseconds(work: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Median and largest processor time of a call; other processes do not count."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(1000 * (time.process_time() - start))
    return statistics.median(times), max(times)


def main() -> None:
    """Prints the durations against their budgets, and each flag's own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--traced", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()

    batch = random_step(args.rows, args.tokens, args.group)
    ledger = build_ledger(batch)
    parameters = {"stale.limit": 2}
    errors = FlagErrors()
    all_of_them = milliseconds(
        lambda: flag_population(Population(batch, ledger, parameters), errors=errors), args.repeats
    )
    print(f"{args.rows} rollouts of {args.tokens} tokens, groups of {args.group}; milliseconds")
    print(f"{'all population flags':32}{all_of_them[0]:8.1f} median {all_of_them[1]:8.1f} largest", end="")
    print(f"   (aim {BUDGET_POPULATION_MS})")
    for spec in REGISTRY.values():
        if spec.population is not None:
            alone = milliseconds(
                lambda name=spec.name: flag_population(Population(batch, ledger, parameters), only=[name]),
                args.repeats,
            )
            print(f"  {spec.name:30}{alone[0]:8.1f}")

    rows, transcripts, tokenizer = decoded_rows(args.traced, args.tokens)
    traced = [TracedRow(t, rows, i, tokenizer=tokenizer) for i, t in enumerate(transcripts)]
    every = milliseconds(lambda: [flag_row(row, errors=errors) for row in traced], args.repeats)
    length = len(transcripts[0].tokens)
    print(f"{args.traced} decoded rows of {length} tokens, {len(transcripts[0].turns)} turns each")
    print(f"{'all row flags':32}{every[0]:8.1f} median {every[1]:8.1f} largest   (budget {BUDGET_ROWS_MS})")
    for spec in REGISTRY.values():
        if spec.row is not None:
            alone = milliseconds(
                lambda name=spec.name: [flag_row(replace(row), only=[name]) for row in traced], args.repeats
            )
            note = "   on request" if spec.on_request else ""
            print(f"  {spec.name:30}{alone[0]:8.1f}{note}")
    print(f"detectors that raised: {dict(errors.counts) or 'none'}")


if __name__ == "__main__":
    main()
