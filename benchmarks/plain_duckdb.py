"""The baseline of reading: the same rows in a plain DuckDB table, asked by SQL, in the same process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.spent import spent

QUESTIONS: Mapping[str, str] = {
    "filter": "SELECT count(*) FROM rollouts WHERE reward > 0.99 AND source = 'math'",
    "count by source": "SELECT source, count(*) FROM rollouts GROUP BY source",
    "flags has": "SELECT count(*) FROM rollouts WHERE list_contains(flags, 'truncated')",
    "histogram": "SELECT CAST((advantage + 6) * 2 AS INTEGER) AS bin, count(*) FROM rollouts GROUP BY bin",
    "sort and first page": "SELECT * FROM rollouts ORDER BY reward DESC LIMIT 50",
    "sort without ties, first page": "SELECT * FROM rollouts ORDER BY advantage DESC LIMIT 50",
    "newest page": 'SELECT * FROM rollouts ORDER BY step DESC, "group", sample LIMIT 50',
    "figures by step": "SELECT step, avg(reward) FROM rollouts GROUP BY 1",
    "one step as Arrow": "SELECT * FROM rollouts WHERE step = 7",
}


def plain_duckdb(segments: Path) -> dict[str, Any]:
    """What loading and asking takes, as `spent` gives it.

    Args:
        segments: a folder of parquet files with the rows.
    """
    import duckdb

    with duckdb.connect(":memory:") as database:
        wall, cpu = time.perf_counter(), time.process_time()
        database.execute(
            "CREATE TABLE rollouts AS SELECT * FROM read_parquet(?, union_by_name = true)",
            [f"{segments}/*.parquet"],
        )
        loading = {
            "wall": round((time.perf_counter() - wall) * 1000, 1),
            "cpu": round((time.process_time() - cpu) * 1000, 1),
        }
        known = {name for name, *_ in database.execute("DESCRIBE rollouts").fetchall()}
        asked = {
            name: spent(lambda sql=sql: database.sql(sql).to_arrow_table(), lambda: None)
            for name, sql in QUESTIONS.items()
            if known.issuperset({"flags", "source", "advantage"}) or "source" not in sql
        }
    return {"load": loading, **asked}
