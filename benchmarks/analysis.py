"""Processor time of the analysis over 1,000,000 rollouts, beside a plain count and a sort of the same table.

python -m benchmarks.analysis --steps 2000 --rows 512
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from rollout_traces.analysis.evaluations import flips
from rollout_traces.analysis.explanation import explain
from rollout_traces.analysis.prompts import list_prompts
from rollout_traces.analysis.run_report import diagnose
from rollout_traces.analysis.selections import Selection
from rollout_traces.analysis.timeline import first_seen

GOALS = {
    "explain a step": 0.5,
    "explain two halves": 2.0,
    "first seen of everything": 0.5,
    "flips of 1,000 prompts": 0.3,
    "list of prompts": 0.2,
}
"""Seconds of processor time on two cores."""


def table(n_steps: int, n_rows: int, group_size: int = 8, seed: int = 0) -> pa.Table:
    """A run of steps of equal size, with two evaluations of 1,000 prompts."""
    rng = np.random.default_rng(seed)
    train, n = n_steps * n_rows, n_steps * n_rows + 2000
    step = np.r_[np.repeat(np.arange(n_steps), n_rows), np.repeat([0, n_steps - 1], 1000)]
    group = np.r_[
        np.tile(np.repeat(np.arange(n_rows // group_size), group_size), n_steps), np.tile(np.arange(1000), 2)
    ]
    split = np.asarray(["rollout", "eval-rollout"], object)[np.r_[np.zeros(train, int), np.ones(2000, int)]]
    source = (group + step) % 3
    key = np.r_[
        (np.repeat(np.arange(train // group_size), group_size) * 7) % 20_000, np.tile(np.arange(1000), 2)
    ]
    traced = (np.arange(n) % 32 == 0) | (split == "eval-rollout")
    success = (rng.random(n) < 0.3 + 0.4 * step / n_steps).astype(np.int64)
    names = {"source": ["math", "code", "search"], "engine": ["vllm-0", "vllm-1", "sglang-0", "sglang-1"]}

    def coded(codes: np.ndarray, values: list[str]) -> pa.Array:
        return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(values)).cast(
            pa.string()
        )

    flags = np.where(rng.random(n) < 0.05, 1, 0)
    columns: dict[str, Any] = {
        "run": coded(np.zeros(n), ["run"]),
        "id": pa.array([str(i) for i in range(n)]),
        "split": pa.array(split),
        "step": pa.array(step),
        "group": pa.array(group),
        "prompt_key": coded(key + 20_000 * (split != "rollout"), [f"p{i:05d}" for i in range(21_000)]),
        "source": coded(source, names["source"]),
        "engine": coded(rng.integers(0, 4, n), names["engine"]),
        "reward": pa.array(success + rng.normal(0, 0.1, n)),
        "reward_status": coded((rng.random(n) < 0.01).astype(int), ["ok", "timeout"]),
        "success": pa.array(success),
        "stop_reason": coded((rng.random(n) < 0.1).astype(int), ["stop", "length"]),
        "n_sampled": pa.array(np.exp(rng.normal(6, 0.5, n)).astype(np.int64)),
        "n_turns": pa.array(rng.integers(1, 6, n)),
        "traced": pa.array(traced),
        "superseded": pa.array(np.zeros(n, bool)),
        "selected_by": pa.array(np.where(traced, "random", None)),
        "selected_probability": pa.array(np.where(traced, 1 / 32, np.nan), from_pandas=True),
        "flags": pa.array([["truncated"] if f else [] for f in flags], pa.list_(pa.string())),
        "tool_names": pa.array([["python"] if t else None for t in traced], pa.list_(pa.string())),
        "error_signatures": pa.array([[] if t else None for t in traced], pa.list_(pa.string())),
        "reply": pa.array(np.where(traced, "The answer is forty two, as computed step by step.", None)),
        "prompt": pa.array(np.where(traced, "What is six times seven?", None)),
    }
    for name in [
        "advantage",
        "n_prompt",
        "n_environment",
        "staleness_max",
        "mean_logprob",
        "mismatch_k1",
        "mismatch_k3",
        "mismatch_abs_max",
        "log_ratio_sum",
        "clip_share",
        "update_share",
        "component/correct",
        "component/format",
    ]:
        columns[name] = pa.array(np.abs(rng.normal(0, 1, n)))
    return pa.table(columns)


class Database:
    """The table inside DuckDB, as the store loads it."""

    def __init__(self, rollouts: pa.Table) -> None:
        self._connection = duckdb.connect(config={"threads": 2})
        self._connection.register("given", rollouts)
        self._connection.execute("create table rollouts as select * from given")
        self._connection.execute(
            "create table metrics (run varchar, split varchar, step bigint, key varchar, value double,"
            " attempt varchar, superseded boolean)"
        )

    def sql(self, query: str, params: Any = ()) -> pa.Table:
        """The rows of a query."""
        return self._connection.sql(query, params=list(params)).to_arrow_table()


def measured(question: Callable[[], Any], times: int) -> float:
    """Median processor time of a question, in seconds."""
    spent = []
    for _ in range(times):
        began = time.process_time()
        question()
        spent.append(time.process_time() - began)
    return median(spent)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--times", type=int, default=3)
    asked = parser.parse_args()
    data = Database(table(asked.steps, asked.rows))
    half, late = asked.steps // 2, asked.steps - 15
    whole = Selection("run", "rollout")
    evaluations = [Selection("run", "eval-rollout", (s, s)) for s in (0, asked.steps - 1)]
    questions: dict[str, Callable[[], Any]] = {
        "baseline: count by source": lambda: data.sql(
            "select source, count(*) from rollouts group by source"
        ),
        "baseline: sort by reward": lambda: data.sql("select reward from rollouts order by reward"),
        "explain a step": lambda: explain(data, Selection("run", "rollout", (late, late))),
        "explain two halves": lambda: explain(
            data, Selection("run", "rollout", (half, None)), Selection("run", "rollout", (None, half - 1))
        ),
        "first seen of everything": lambda: first_seen(data, "run"),
        "flips of 1,000 prompts": lambda: flips(data, *evaluations),
        "list of prompts": lambda: list_prompts(data, whole),
        "diagnoses of the run": lambda: diagnose(data, "run"),
    }
    print(
        f"{asked.steps * asked.rows:,} rollouts, {asked.steps:,} steps; seconds of processor time, median of {asked.times}"
    )
    for name, question in questions.items():
        question()
        goal = f"goal {GOALS[name]}" if name in GOALS else ""
        print(f"{name:30} {measured(question, asked.times):8.3f}  {goal}", flush=True)


if __name__ == "__main__":
    main()
