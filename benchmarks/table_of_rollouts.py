"""The table of every rollout of a run, none traced: filling, opening, asking, beside a plain DuckDB table.

Part of `python -m benchmarks.store --rows 1000000`.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fresh_process import in_fresh_process
from benchmarks.plain_duckdb import plain_duckdb
from benchmarks.spent import spent

PROJECT, RUN, RUN_ID = "bench", "run-001", "a" * 32
STEP_ROWS = 512
GROUP_SIZE = 8
ANSWER = "s.count(where='reward > 0.99 and source = math', rows='all')"
MOST_WHOLE = 2_000_000
"""Rows up to which the whole table is asked for at once."""


def measure(folder: Path, n_rows: int) -> dict[str, Any]:
    """All figures, milliseconds of processor time where not said otherwise.

    Args:
        folder: Trackio's folder.
        n_rows: rollouts.
    """
    from rollout_traces import open_store

    n_steps = -(-n_rows // STEP_ROWS)
    if not (folder / f"{PROJECT}.db").exists():
        for first in range(0, n_steps, 100):
            write_steps(range(first, min(first + 100, n_steps)))
    figures: dict[str, Any] = {"rows": n_steps * STEP_ROWS}
    started = time.process_time()
    store = open_store(PROJECT, refresh=False)
    if store.refresh():
        figures["index, cpu s"] = round(time.process_time() - started, 2)
        figures["peak memory MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    size = sum(path.stat().st_size for path in store.index_path.rglob("*") if path.is_file())
    figures["index MB"] = round(size / 1e6, 1)
    store.close()
    figures["the same in a new process, imports included, ms"] = in_fresh_process(ANSWER, refresh=True)[
        "cpu ms"
    ]
    started = time.process_time()
    store = open_store(PROJECT)
    store.count(where="reward > 0.99 and source = math", rows="all")
    figures["open warm and first answer, ms"] = round((time.process_time() - started) * 1000, 1)
    label_rollouts(store)
    asked: dict[str, Callable[[], Any]] = {
        "filter by one of 10,000 labels": lambda: store.count(where="label = odd", rows="all"),
        "count by label": lambda: store.facets("label", rows="all"),
        "filter": lambda: store.count(where="reward > 0.99 and source = math", rows="all"),
        "count by source": lambda: store.facets("source", rows="all"),
        "flags has": lambda: store.count(where="truncated", rows="all"),
        "histogram": lambda: store.histogram("advantage", rows="all"),
        "sort and first page": lambda: store.query(order_by="-reward", rows="all"),
        "sort without ties, first page": lambda: store.query(order_by="-advantage", rows="all"),
        "newest page": lambda: store.query(rows="all"),
        "groups of a step": lambda: store.groups(RUN, "rollout", 5),
        "figures by step": lambda: store.table().sql("select step, avg(reward) from rollouts group by 1"),
        "one step as Arrow": lambda: store.rollouts(steps=7),
        "refresh, nothing new": store.refresh,
    }
    figures["the table"] = {name: spent(ask, store.forget_answers) for name, ask in asked.items()}
    figures["peak memory after these, MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    if n_rows <= MOST_WHOLE:
        figures["the table"]["all as Arrow"] = spent(store.rollouts, store.forget_answers, repeats=2)
    figures["the table"]["append a live step"] = appended(store, n_steps)
    figures["peak memory of all, MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    figures["trackio"] = trackio_figures()
    if n_rows <= MOST_WHOLE:
        figures["a plain DuckDB table"] = plain_duckdb(store.index_path / "segments")
    return figures


def trackio_figures() -> dict[str, dict[str, float]]:
    """What Trackio itself answers: it has no rollouts, so that any question reads every step summary."""
    from trackio.sqlite_storage import SQLiteStorage

    asked: dict[str, Callable[[], Any]] = {
        "first page of 50 summaries": lambda: SQLiteStorage.get_traces(PROJECT, RUN, limit=50),
        "read every summary (SQL)": lambda: SQLiteStorage.query_project(
            PROJECT, "SELECT max(spans) FROM traces"
        ),
    }
    return {name: spent(ask, lambda: None, repeats=3) for name, ask in asked.items()}


def label_rollouts(store: Any, n: int = 10_000) -> None:
    """Labels rollouts of all steps, half of them `odd`, as lines of the file that people's labels are in."""
    if len(store.labels.now().entries) >= n:
        return
    known = store.rollouts(columns=["uid"])["uid"]
    uids = known.take(np.arange(n) * len(known) // n).to_pylist()
    store.labels.add("label", uids[0], "odd", "bench")
    [first] = store.labels.of(uids[0])
    lines = [
        replace(first, id=f"{at:016x}", rollout=uid, text="odd" if at % 2 else "good").line()
        for at, uid in enumerate(uids)
    ]
    with store.labels.log.path.open("ab") as file:
        file.write(b"".join(lines))


def write_steps(steps: range) -> None:
    """Stores step summaries with Trackio's own table code."""
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    from rollout_traces.trace.conversion import step_summary_trace

    path = SQLiteStorage.init_db(PROJECT)
    SQLiteStorage.bulk_log(PROJECT, RUN, [{"loss": 1.0}], steps=[0], run_id=RUN_ID, config={})
    rows: list[dict[str, Any]] = []
    for step in steps:
        record = step_summary_trace(
            make_ledger(step),
            summary=[{"role": "user", "content": f"step {step}"}],
            metadata={"step": step, "split": "rollout", "population": STEP_ROWS},
        )
        trace = trackio.Trace(list(record.messages), dict(record.metadata), list(record.spans))
        _, new = SQLiteStorage._split_trace_metrics(
            {"rollout/steps": [trace._to_dict(PROJECT, RUN, step)]},
            run=RUN,
            run_id=RUN_ID,
            step=step,
            timestamp="2026-01-01T00:00:00",
            log_id=f"log-{step}",
            space_id=None,
        )
        rows += new
    with SQLiteStorage._get_connection(path) as connection:
        SQLiteStorage._insert_trace_rows(connection.cursor(), rows)


def make_ledger(step: int) -> Any:
    """The ledger of one step: 30 columns."""
    from rollout_traces.ledger.columns import Ledger

    rng = np.random.default_rng(step)
    n = STEP_ROWS

    def floats(scale: float) -> np.ndarray:
        return rng.normal(0, scale, n).astype(np.float32).astype(np.float64)

    def chosen(values: list[Any], shares: list[float]) -> np.ndarray:
        column = np.empty(n, object)
        column[:] = [values[at] for at in rng.choice(len(values), n, p=shares)]
        return column

    def texts(values: list[str]) -> np.ndarray:
        column = np.empty(n, object)
        column[:] = values
        return column

    reward = (rng.random(n) < 0.5).astype(np.float64)
    prompts = [f"{key:016x}" for key in rng.integers(0, 7000, n // GROUP_SIZE) * 2654435761]
    whole = {
        "n_prompt": 900, "n_sampled": 4000, "n_environment": 300, "n_turns": 5, "n_tool_calls": 4,
        "n_tool_errors": 2, "staleness_max": 3,
    }  # fmt: skip
    return Ledger(
        {
            "uid": texts([f"{step:012x}-{row}" for row in range(n)]),
            "group": np.arange(n) // GROUP_SIZE,
            "sample": np.arange(n) % GROUP_SIZE,
            "prompt_key": texts([prompts[row // GROUP_SIZE] for row in range(n)]),
            "source": chosen(["math", "code", "search"], [0.4, 0.3, 0.3]),
            "stop_reason": chosen(["stop", "length", "tool"], [0.8, 0.1, 0.1]),
            "flags": chosen(
                [(), ("truncated",), ("tied_group",), ("truncated", "repetition")], [0.7, 0.1, 0.15, 0.05]
            ),
            "trained": np.ones(n, np.int64),
            "success": reward.astype(np.int64),
            "reward": reward,
            "component/correct": reward,
            "component/format": (rng.random(n) < 0.9).astype(np.float64),
            "version_min": np.full(n, max(step - 1, 0)),
            "version_max": np.full(n, step),
            **{name: rng.integers(0, most, n) for name, most in whole.items()},
            "advantage": floats(1.0),
            "mean_logprob": floats(0.1) - 0.5,
            "mismatch_k1": floats(1e-3),
            "mismatch_k3": np.abs(floats(1e-3)),
            "mismatch_abs_max": np.abs(floats(0.3)),
            "log_ratio_sum": floats(1.0),
            "update_share": np.abs(floats(1e-3)),
            "selected_probability": np.full(n, 0.0625),
        }
    )


def appended(store: Any, first: int) -> dict[str, float]:
    """What a refresh takes that finds one new step."""
    walls, cpus = [], []
    for step in range(first, first + 8):
        write_steps(range(step, step + 1))
        wall, cpu = time.perf_counter(), time.process_time()
        store.refresh()
        walls.append((time.perf_counter() - wall) * 1000)
        cpus.append((time.process_time() - cpu) * 1000)
    return {"wall": round(statistics.median(walls), 2), "cpu": round(statistics.median(cpus), 2)}
