"""A job on Ray: looks for a pattern in every transcript, and writes how often it occurs as a column.

    python -m rollout_traces.export.scan_job gsm8k --pattern "I (think|believe)" --column hedges
    python -m rollout_traces.export.scan_job s3://bucket/rollouts --pattern "Traceback" --column tracebacks

Afterwards `hedges > 0` is a filter of the project like any other.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from rollout_traces.errors import ConfigError, RolloutTracesError
from rollout_traces.export.partitioned import ROW_GROUP
from rollout_traces.export.ray_data import ray_dataset, write_side_table

if TYPE_CHECKING:
    from rollout_traces.store import Store


def scan(store: Store, pattern: str, column: str, where: str = "") -> dict[str, Any]:
    """Counts a pattern in every transcript, and writes the counts as a side table of the column's name.

    Args:
        store: whose transcripts.
        pattern: a regular expression of RE2, which matches in linear time.
        column: the name of the new column.
        where: look at these rollouts alone.

    Returns:
        `scanned`, `matched`, `table`: rollouts looked at, those with a match, and the file.

    Raises:
        ConfigError: the pattern is none, the column is there already, or Ray is not installed.
    """
    try:
        pc.count_substring_regex(pa.array([""]), pattern)
    except pa.ArrowInvalid as error:
        raise ConfigError(f"pattern {pattern!r}: {error}") from error
    taken = {info.name: info.meaning for info in store.columns("all")}
    meaning = f"how often the transcript matches {pattern}"
    if column in taken and not taken[column].startswith("how often the transcript matches"):
        raise ConfigError(f"column {column!r}: there is one of this name; choose another.")
    found = ray_dataset(store, where, columns=["id"]).map_batches(
        _Counter(pattern, column), batch_format="pyarrow", batch_size=None
    )
    seen = {"scanned": 0, "matched": 0}

    def tables() -> Iterator[pa.Table]:
        batches: Any = found.iter_batches(batch_format="pyarrow", batch_size=ROW_GROUP)
        for table in batches:
            seen["scanned"] += table.num_rows
            seen["matched"] += int(pc.sum(pc.greater(table[column], 0)).as_py() or 0)
            yield table

    path = write_side_table(store, column, tables(), {column: meaning})
    return {**seen, "table": path}


class _Counter:
    """Counts the pattern in each text of a batch."""

    def __init__(self, pattern: str, column: str) -> None:
        self._pattern = pattern
        self._column = column

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Id and count of each row."""
        counts = pc.count_substring_regex(rows["text"], self._pattern).cast(pa.int64())
        return pa.table({"id": rows["id"].cast(pa.string()), self._column: counts})


def main() -> None:
    """Runs the job on this machine, or on the cluster that `RAY_ADDRESS` names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("project", help="a project, or the address of a partitioned export")
    parser.add_argument("--pattern", required=True, help="a regular expression")
    parser.add_argument("--column", required=True, help="name of the new column")
    parser.add_argument("--where", default="", help="look at these rollouts alone")
    parser.add_argument("--cpus", type=int, help="cores of this machine; all by default")
    asked = parser.parse_args()
    from rollout_traces.store import open_store

    try:
        import ray

        if not ray.is_initialized():
            ray.init(num_cpus=asked.cpus, include_dashboard=False, log_to_driver=False)
        started = time.perf_counter()
        store = open_store(asked.project)
        found = scan(store, asked.pattern, asked.column, asked.where)
    except ImportError as error:
        parser.exit(1, f"{error}. pip install 'rollout-traces[ray]'\n")
    except RolloutTracesError as error:
        parser.exit(1, f"{error}\n")
    print(json.dumps({**found, "seconds": round(time.perf_counter() - started, 1)}))


if __name__ == "__main__":
    main()
