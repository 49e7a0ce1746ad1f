"""What a step's metrics cost: ledger, metrics and population flags of 512 rollouts of 4k tokens.

    python -m benchmarks.metrics

The step is the flags benchmark's: random ids, every track that trainers have, half of the tokens sampled.
Times are processor time on one core. The baseline is the ledger-free way: the mismatch and entropy means of
each rollout in a Python loop over rows, numpy inside, as loggers in a training step commonly do it; it gives
eleven of the keys.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.flags import random_step
from rollout_traces.flags.detect import Population, flag_population
from rollout_traces.ledger.build import build_ledger
from rollout_traces.metrics import FAMILIES, rollout_metrics
from rollout_traces.metrics.compute import step_view
from rollout_traces.metrics.registry import families_off
from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.settings.run_settings import RunSettings

BUDGET_MS = 500
SETTINGS = RunSettings(clip_low=0.2, clip_high=0.2)


def row_by_row(batch: PackedBatch) -> dict[str, float]:
    """The baseline: a loop over rows."""
    columns: dict[str, list[float]] = {}
    for row in range(batch.n_rows):
        at = batch.row(row)
        mask = batch.response_mask[at]
        rollout, prox = batch.tracks["logprobs"][at][mask], batch.tracks["prox_logprobs"][at][mask]
        d = np.clip(prox - rollout, -20, 20)
        values = {
            "k1": -d.mean(),
            "k3": np.mean(np.exp(d) - d - 1),
            "prob_abs_diff": np.abs(np.exp(prox) - np.exp(rollout)).mean(),
            "mult_prob_error": np.exp(np.abs(d)).mean(),
            "entropy": batch.tracks["entropies"][at][mask].mean(),
            "ppo_ratio": np.exp(batch.tracks["new_logprobs"][at][mask] - prox).mean(),
            "advantage": batch.tracks["advantages"][at][mask].mean(),
            "sampled": mask.sum(),
            "staleness": (10 - batch.tracks["versions"][at][mask]).mean(),
            "distinct": len(set(batch.input_ids[at][mask][:512].tolist())) / 512,
            "reward": batch.row_floats["rewards"][row],
        }
        for name, value in values.items():
            columns.setdefault(name, []).append(float(value))
    return {name: float(np.mean(values)) for name, values in columns.items()}


def full_step(n_rows: int, n_tokens: int, group_size: int) -> PackedBatch:
    """The flags benchmark's step with a reference model, so that every built-in family can run."""
    batch = random_step(n_rows, n_tokens, group_size)
    reference = (batch.tracks["logprobs"] - np.float32(0.05)).astype(np.float32)
    return replace(
        batch,
        tracks={**batch.tracks, "ref_logprobs": reference},
        row_lists={**batch.row_lists, "successes": [row % 3 == 0 for row in range(n_rows)]},
    )


def milliseconds(action: Callable[[], Any], repeats: int) -> float:
    """Median processor time of an action."""
    action()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return statistics.median(times) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--families", action="store_true", help="time every family apart")
    options = parser.parse_args()
    batch = full_step(options.rows, options.tokens, options.group_size)
    ledger = build_ledger(batch, SETTINGS)
    print(f"{options.rows} rollouts x {options.tokens} tokens, {int(batch.response_mask.sum())} sampled")
    parts = {
        "ledger": lambda: build_ledger(batch, SETTINGS),
        "metrics, default keys": lambda: rollout_metrics(batch, ledger, settings=SETTINGS),
        "flags, population": lambda: flag_population(Population(batch, ledger)),
    }
    times = {name: milliseconds(action, options.repeats) for name, action in parts.items()}
    for name, taken in times.items():
        print(f"  {name:28} {taken:7.1f} ms")
    total = sum(times.values())
    print(
        f"  {'together':28} {total:7.1f} ms   budget {BUDGET_MS} ms: {'met' if total <= BUDGET_MS else 'MISSED'}"
    )
    found = rollout_metrics(batch, ledger, keys="full", settings=SETTINGS)
    full = milliseconds(
        lambda: rollout_metrics(batch, ledger, keys="full", settings=SETTINGS), options.repeats
    )
    print(f"  {f'metrics, all {len(found)} keys':28} {full:7.1f} ms")
    baseline = milliseconds(lambda: row_by_row(batch), options.repeats)
    print(f"  {'baseline: 11 keys by a loop':28} {baseline:7.1f} ms")
    if options.families:
        time_families(batch, options.repeats)


def time_families(batch: PackedBatch, repeats: int) -> None:
    """Prints every family that takes over a millisecond, on a view of its own."""
    for spec in FAMILIES.values():
        view = step_view(batch, None, "rollout", SETTINGS, None, None)
        if not families_off((spec,), view):
            taken = milliseconds(lambda: spec.function(view), repeats)  # noqa: B023  called at once
            if taken >= 1:
                print(f"    {spec.name:26} {taken:7.1f} ms, its tracks gathered already")


if __name__ == "__main__":
    main()
