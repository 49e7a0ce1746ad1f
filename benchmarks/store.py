"""How fast the read side is, beside Trackio's own reads of the same project and a plain DuckDB table of its rows.

    python -m benchmarks.store --traces 10000
    python -m benchmarks.store --traces 50000 --folder bench-data   # keeps and reuses the project
    python -m benchmarks.store --rows 1000000                        # every rollout of a run, none traced

Traces carry 16 KB of text, our metadata and a stand-in for a packed token track. They are written with
Trackio's own table code, without its session files. Times are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.fresh_process import in_fresh_process
from benchmarks.plain_duckdb import plain_duckdb
from benchmarks.spent import spent

PROJECT = "bench"
RUN = "run-001"
GROUP_SIZE = 8
STEP_SIZE = 32
RARE = "xylophonist"


def main() -> None:
    """Makes the project where it is missing, and measures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=int, default=10_000)
    parser.add_argument("--rows", type=int, help="measure the table of so many rollouts, none traced")
    parser.add_argument("--text-kb", type=int, default=16)
    parser.add_argument("--track-kb", type=int, default=8)
    parser.add_argument("--folder", type=Path, help="keep the project here; a temporary folder otherwise")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["TRACKIO_DIR"] = str(folder.resolve())
        if asked.rows is not None:
            from benchmarks import table_of_rollouts

            figures = table_of_rollouts.measure(folder, asked.rows)
            print(json.dumps(figures, indent=2) if asked.json else as_table(figures))
            return
        if not (folder / f"{PROJECT}.db").exists():
            write_project(asked.traces, asked.text_kb * 1024, asked.track_kb * 1024)
        figures = measure(asked.json)
    print(json.dumps(figures, indent=2) if asked.json else as_table(figures))


def write_project(n: int, text_size: int, track_size: int) -> None:
    """Fills a project through Trackio's own table code."""
    from trackio.sqlite_storage import SQLiteStorage

    path = SQLiteStorage.init_db(PROJECT)
    words = vocabulary()
    SQLiteStorage.bulk_log(PROJECT, RUN, [{"loss": 1.0}], steps=[0], run_id="a" * 32, config={})
    for first in range(0, n, 1000):
        rows: list[dict[str, Any]] = []
        for step in range(first // STEP_SIZE, (min(first + 1000, n) + STEP_SIZE - 1) // STEP_SIZE):
            traces = [make_trace(step, i, words, text_size, track_size) for i in range(STEP_SIZE)]
            traces = [t for i, t in enumerate(traces) if first <= step * STEP_SIZE + i < min(first + 1000, n)]
            _, new = SQLiteStorage._split_trace_metrics(
                {"rollout/trajectories": traces},
                run=RUN,
                run_id="a" * 32,
                step=step,
                timestamp=f"2026-01-01T00:00:{step % 60:02d}",
                log_id=f"log-{first}-{step}",
                space_id=None,
            )
            rows += new
        with SQLiteStorage._get_connection(path) as connection:
            SQLiteStorage._insert_trace_rows(connection.cursor(), rows)


def vocabulary() -> list[str]:
    """Twenty thousand made-up words."""
    rng = random.Random(1)
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    return ["".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(20_000)]


def make_trace(step: int, index: int, words: list[str], text_size: int, track_size: int) -> dict[str, Any]:
    """One rollout as Trackio stores it."""
    rng = random.Random(step * STEP_SIZE + index)
    chosen = [words[min(int(rng.paretovariate(0.55)) - 1, len(words) - 1)] for _ in range(text_size // 6)]
    if step % 200 == 7 and index == 3:
        chosen[50] = RARE
    texts = [" ".join(chosen[at::4]) for at in range(4)]
    texts[3] += f" so the answer is \\boxed{{{rng.randint(0, 99)}}}. 完成了"
    roles = ("system", "user", "assistant", "assistant")
    reward = round(rng.random(), 4)
    flags = [
        name
        for name, share in (("truncated", 0.05), ("tied_group", 0.2), ("repetition", 0.02))
        if rng.random() < share
    ]
    metadata = {
        "status": f"reward {reward}", "schema": 1, "kind": "rollout", "uid": f"b{step}-{index}", "split": "rollout",
        "step": step, "group": index // GROUP_SIZE, "sample": index % GROUP_SIZE, "group_size": GROUP_SIZE,
        "prompt_key": f"{rng.randrange(2**40):016x}", "reward": reward, "component/format": float(rng.random() < 0.8),
        "component/correct": float(rng.random() < 0.5), "advantage": rng.gauss(0, 1), "n_tokens": 4000,
        "n_prompt": 300, "n_sampled": rng.randint(100, 4000), "n_environment": 200, "n_turns": 2, "n_tool_calls": 1,
        "stop_reason": rng.choice(["stop", "stop", "stop", "length"]), "trained": 1, "version_min": step - 1,
        "version_max": step, "train_version": step, "staleness_max": rng.randint(0, 3), "mean_logprob": -rng.random(),
        "update_share": rng.random() / 100, "decoded_from": "template", "response_mask_from": "versions",
        "flags": flags, "selected_by": "random", "selected_probability": 0.1, "population": 512,
    }  # fmt: skip
    return {
        "_type": "trackio.trace",
        "messages": [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)],
        "metadata": metadata,
        "spans": [
            {
                "id": "rollout",
                "name": "rollout",
                "kind": "span",
                "token_track": rng.randbytes(track_size * 3 // 4).hex()[:track_size],
            }
        ],
    }


def measure(quiet: bool) -> dict[str, Any]:
    """All figures of the project in the current Trackio folder."""
    from rollout_traces import open_store

    n_traces = int(in_fresh_process("s.source.count()", refresh=False)["answer"])
    figures: dict[str, Any] = {"traces": n_traces}
    started, started_cpu = time.perf_counter(), time.process_time()
    store = open_store(PROJECT, refresh=False)
    seen = store.refresh() if quiet else with_progress(store.refresh)
    if seen:
        figures["index traces/s"] = round(seen / (time.perf_counter() - started))
        figures["index traces/cpu s"] = round(seen / (time.process_time() - started_cpu))
    index = sum(path.stat().st_size for path in store.index_path.rglob("*") if path.is_file())
    sizes = {"database": Path(store.source.path).stat().st_size, "index": index}  # type: ignore[attr-defined]
    figures |= {f"{name} MB": round(size / 1e6) for name, size in sizes.items()}
    figures["warm start, cpu ms, new process"] = in_fresh_process("s.count()", refresh=True)["cpu ms"]
    some_id = store.query(limit=1).rows[0].id
    ours: dict[str, Callable[[], Any]] = {
        "sort by reward": lambda: store.query(run=RUN, order_by="-reward"),
        "sort by n_sampled": lambda: store.query(run=RUN, order_by="n_sampled"),
        "filter": lambda: store.query(
            run=RUN, where="reward < 0.5 and flags has 'truncated'", order_by="-reward"
        ),
        "filter, component": lambda: store.query(run=RUN, where="component/format >= 1 and n_sampled > 3000"),
        "count": lambda: store.count(run=RUN, where="staleness_max >= 2"),
        "facets of flags": lambda: store.facets("flags", run=RUN),
        "histogram of reward": lambda: store.histogram("reward", run=RUN),
        "search rare word": lambda: store.query(run=RUN, text=RARE),
        "search frequent phrase": lambda: store.query(
            run=RUN, text='"the answer is"'.replace("the", "so the")
        ),
        "search CJK": lambda: store.query(run=RUN, text="完成"),
        "search code": lambda: store.query(run=RUN, text="boxed{42}"),
        "search code, prefix": lambda: store.query(run=RUN, text="boxed{4"),
        "search with snippets": lambda: store.search(RARE, run=RUN),
        "scan, one step": lambda: store.query(run=RUN, text="}.", steps=(3, 3)),
        "steps": lambda: store.steps(RUN, "rollout"),
        "groups of a step": lambda: store.groups(RUN, "rollout", 5),
        "one record": lambda: store.record(some_id or ""),
        "refresh, nothing new": store.refresh,
    }
    figures["ours"] = {name: spent(ask, store.forget_answers) for name, ask in ours.items()}
    figures["trackio"] = trackio_figures(some_id or "")
    figures["a plain DuckDB table"] = plain_duckdb(store.index_path / "segments")
    return figures


def trackio_figures(some_id: str) -> dict[str, dict[str, float]]:
    """The same questions as far as Trackio can be asked them."""
    from trackio.sqlite_storage import SQLiteStorage

    select = "SELECT id, step, json_extract(metadata, '$.reward') AS r FROM traces"
    asked: dict[str, Callable[[], Any]] = {
        "first page of 50 (get_traces)": lambda: SQLiteStorage.get_traces(PROJECT, RUN, limit=50),
        "sort by reward (SQL)": lambda: SQLiteStorage.query_project(PROJECT, f"{select} ORDER BY r DESC LIMIT 50"),
        "filter (SQL)": lambda: SQLiteStorage.query_project(
            PROJECT, f"{select} WHERE r < 0.5 AND json_extract(metadata, '$.flags') LIKE '%truncated%' ORDER BY r DESC LIMIT 50"
        ),
        "search rare word (get_traces)": lambda: SQLiteStorage.get_traces(PROJECT, RUN, search=RARE, limit=50),
        "one trace (SQL)": lambda: SQLiteStorage.query_project(PROJECT, f"SELECT * FROM traces WHERE id = '{some_id}'"),
    }  # fmt: skip
    return {name: spent(ask, lambda: None, repeats=3) for name, ask in asked.items()}


def with_progress(refresh: Callable[..., int]) -> int:
    """A refresh with a progress bar on standard error."""
    from rollout_traces.cli.options import progress_bar

    with progress_bar("indexing") as report:
        return refresh(report)


def as_table(figures: dict[str, Any]) -> str:
    """The figures for a person."""
    return "\n".join(lines_of(figures))


def lines_of(figures: dict[str, Any]) -> Iterator[str]:
    """One line a figure."""
    for name, value in figures.items():
        if not isinstance(value, dict):
            yield f"{name:<36}{value:>10}"
            continue
        yield f"\n{name + ', milliseconds':<36}{'wall':>10}{'cpu':>10}"
        for question, took in value.items():
            yield f"  {question:<34}{took['wall']:>10}{took['cpu']:>10}"


if __name__ == "__main__":
    main()
