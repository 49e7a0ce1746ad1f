"""Reading a partitioned parquet export, on this machine or in object storage, without Trackio.

`export.export_partitioned` writes it:

    run=run-001/step=12/part-0.parquet     a row a rollout
    _rollout_traces/about.json             project, runs, their configurations and attempts
    _rollout_traces/metrics.arrow          the logged scalars as they were stored
    _columns/<name>/*.parquet              further columns by trace id, see `store.columns.side`

Names that begin with `_` are no data to readers of hive folders.
"""

from __future__ import annotations

ABOUT = "_rollout_traces/about.json"
METRICS = "_rollout_traces/metrics.arrow"
SIDE = "_columns"
SCHEMA_VERSION = 1

MESSAGES, METADATA, SPANS = "messages", "metadata", "spans"
TEXTS = (MESSAGES, METADATA, SPANS)
"""Columns of traced rollouts that hold JSON text as Trackio stored it; `spans` hold the packed token track."""
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""In place of an unknown value in a folder's name."""
