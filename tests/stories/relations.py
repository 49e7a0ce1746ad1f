"""The two relations over tables in memory, as the analysis asks them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from tests.stories.world import Story

TEXTS = pa.schema(
    [
        (n, pa.string())
        for n in ("uid", "written", "tool_results", "prompt", "system", "tools", "ground_truth")
    ]
)


@functools.cache
def database() -> duckdb.DuckDBPyConnection:
    """The DuckDB of this process: one takes longer to open than a small table to fill; temporary tables are a cursor's own."""
    opened = duckdb.connect(config={"threads": 2})
    opened.execute("set preserve_insertion_order=true")
    return opened


class TableRelations:
    """`rollouts` and `metrics` in a DuckDB of this process.

    Args:
        rollouts: one row a rollout.
        metrics: logged numbers; none by default.
        texts: what kept rollouts hold in full, with `uid`; none by default, which leaves it unobserved.
    """

    def __init__(
        self, rollouts: pa.Table, metrics: pa.Table | None = None, texts: pa.Table | None = None
    ) -> None:
        self._texts = texts
        self._connection = database().cursor()
        if metrics is None:
            metrics = pa.table(
                {
                    "run": pa.array([], pa.string()),
                    "split": pa.array([], pa.string()),
                    "step": pa.array([], pa.int64()),
                    "key": pa.array([], pa.string()),
                    "value": pa.array([], pa.float64()),
                    "attempt": pa.array([], pa.string()),
                }
            )
        self._connection.register("given_rollouts", rollouts)
        self._connection.register("given_metrics", metrics)
        self._connection.execute("create temp table rollouts as select * from given_rollouts")
        self._connection.execute(
            "create temp table metrics as select *, cast(null as boolean) as superseded from given_metrics"
        )

    def sql(self, query: str, params: Sequence[Any] = ()) -> pa.Table:
        """The rows of a query."""
        return self._connection.sql(query, params=list(params)).to_arrow_table()

    def texts(self, uids: Sequence[str]) -> pa.Table:
        """The texts of some rollouts; those that were not kept are left out."""
        if self._texts is None:
            return TEXTS.empty_table()
        return self._texts.filter(pc.is_in(self._texts["uid"], pa.array(list(uids), pa.string())))


def texts_of(story: Story) -> pa.Table:
    """What the kept rollouts of a story hold."""
    rows = story.rollouts.select(["uid", "prompt", "traced"]).to_pylist()
    return pa.Table.from_pylist(
        [
            {"uid": row["uid"], "written": reply, "prompt": row["prompt"]}
            for row, reply in zip(rows, story.replies, strict=True)
            if row["traced"]
        ],
        TEXTS,
    )


def of_story(*stories: Story) -> TableRelations:
    """The relations of one or more finished runs."""
    return TableRelations(
        pa.concat_tables([s.rollouts for s in stories], promote_options="default"),
        pa.concat_tables([s.metrics for s in stories], promote_options="default"),
        pa.concat_tables([texts_of(s) for s in stories]),
    )
