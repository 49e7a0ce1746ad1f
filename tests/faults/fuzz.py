"""Batches that no trainer should hand over: `python -m tests.faults.fuzz --batches 10000`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.worker.readback import ledger_uids, trace_uids

KEYS = ("versions", "turn_ids", "logprobs", "prox_logprobs", "advantages", "entropies", "response_mask")


def random_batch(rng: np.random.Generator) -> Any:
    """Something handed over, valid or not."""
    kind = rng.random()
    if kind < 0.03:
        return [None, 3, "rollouts", {}, [], object(), float("nan")][int(rng.integers(7))]
    if kind < 0.2:
        return [random_arrays(rng) if rng.random() > 0.15 else None for _ in range(int(rng.integers(0, 4)))]
    return random_arrays(rng)


def random_arrays(rng: np.random.Generator) -> dict[str, Any]:
    """Arrays of one batch, some of them wrong."""
    B, T = int(rng.integers(0, 5)), int(rng.integers(0, 40))
    arrays: dict[str, Any] = {
        "input_ids": rng.integers(0, 2000, (B, T)),
        "attention_mask": rng.random((B, T)) < rng.random(),
        "loss_mask": (rng.random((B, T)) < 0.5).astype(rng.choice(["bool", "int32", "int64", "float32"])),
        "rewards": rng.normal(size=B),
    }
    for key in KEYS:
        if rng.random() < 0.4:
            is_int = key in ("versions", "turn_ids")
            arrays[key] = rng.integers(-1, 9, (B, T)) if is_int else rng.normal(size=(B, T)).astype("float32")
    if rng.random() < 0.3:
        arrays["stop_reasons"] = [
            ["stop", "length", None, 3, "\ud800"][int(i)] for i in rng.integers(5, size=B)
        ]
    if rng.random() < 0.2:
        arrays["messages"] = [[{"role": "user", "content": "x" * int(rng.integers(9))}] for _ in range(B)]
    if rng.random() < 0.2:
        arrays["extras"] = [{"a": float("nan"), "b": 2**70, "c": {1, 2}, "d": b"\xff"} for _ in range(B)]
    if rng.random() < 0.5:
        spoil(arrays, rng)
    return arrays


def spoil(arrays: dict[str, Any], rng: np.random.Generator) -> None:
    """Breaks one thing, or makes it strange."""
    key = str(rng.choice(list(arrays)))
    value = arrays[key]
    how = int(rng.integers(12))
    if how == 0:
        del arrays[key]
    elif how == 1:
        arrays[key] = None
    elif how == 2:
        arrays[key] = value[:-1]
    elif how == 3 and isinstance(value, np.ndarray):
        arrays[key] = np.concatenate([value, value], axis=-1)
    elif how == 4 and isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size:
        value.flat[int(rng.integers(value.size))] = rng.choice([np.nan, np.inf, -np.inf, 1e30])
    elif how == 5:
        arrays[key] = [[1, 2], [3]]
    elif how == 6:
        arrays[key] = "text"
    elif how == 7:
        arrays["a key nobody knows"] = object()
    elif how == 8 and isinstance(value, np.ndarray):
        arrays[key] = value.astype(str)
    elif how == 9 and isinstance(value, np.ndarray) and value.dtype.kind == "i" and value.size:
        arrays[key] = value = value.astype(np.int64)
        value.flat[0] = rng.choice([-1, -(2**40), 2**40])
    elif how == 10 and isinstance(value, np.ndarray):
        arrays[key] = value.tolist()
    elif how == 11:
        arrays["sample_ids"] = [object() for _ in range(3)]


def random_step(rng: np.random.Generator, step: int) -> Any:
    """A step, wrong now and then."""
    if rng.random() > 0.03:
        return step
    return [None, "soon", float("nan"), -1, 2**80, True, np.int64(step)][int(rng.integers(7))]


def main() -> int:
    """Hands the batches over and compares what was accepted with what is stored."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollout-traces-fuzz-") as folder:
        os.environ["TRACKIO_DIR"] = folder
        import rollout_traces as rt
        from tests.generator import tiny_tokenizer

        rng = np.random.default_rng(options.seed)
        logger = rt.RolloutLogger("p", "run", tiny_tokenizer(), max_rollout_traces_per_step=2)
        accepted = 0
        refused = 0
        for index in range(options.batches):
            batch, step = random_batch(rng), random_step(rng, index // 4)
            before = logger._counters["rollouts_handed_over"]
            handle = logger.log_rollouts(batch, step=step)
            accepted += logger._counters["rollouts_handed_over"] - before
            refused += handle.batch_id is None
            if rng.random() < 0.1:
                handle.join(advantages=np.zeros(int(rng.integers(1, 5))))
            if rng.random() < 0.1:
                logger.log_scalars({"x": rng.choice([1.0, np.nan]), "y": object()}, step=step)
        done = logger.finish(1800)
        counters = logger.counters
        stored, traced = ledger_uids(Path(folder)), trace_uids(Path(folder))
    report = {
        "batches": options.batches,
        "calls refused": refused,
        "elements refused": counters["batches_refused"],
        "rows accepted": accepted,
        "rows stored": len(stored),
        "rows doubled": sum(count - 1 for count in stored.values()),
        "traces": len(traced),
    }
    errors = {
        key: value for key, value in counters.items() if "error" in key or "damaged" in key or "drop" in key
    }
    print(", ".join(f"{value} {what}" for what, value in {**report, **errors}.items()))
    good = (
        done and len(stored) == accepted and not report["rows doubled"] and not errors.get("process_errors")
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
