"""The files of `rollout-traces export --partition-by`: parquet in folders `column=value`, texts as Trackio stored them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from rollout_traces.errors import StoreError
from rollout_traces.model.plain_values import of_folders
from rollout_traces.model.transcript import columns_of
from rollout_traces.sources.base import TRAIN, Claim, FileFormat, FileReading, Head
from rollout_traces.sources.formats.own_export import (
    TOKENS_LEFT_OUT,
    is_current,
    parquet_columns,
    parquet_rows,
    row_of,
)
from rollout_traces.sources.lines import loads
from rollout_traces.sources.problems import NOT_UNDERSTOOD
from rollout_traces.sources.rows import RolloutRow
from rollout_traces.trace.conversion import TraceRecord, read_transcript

_PLACE = {"run_id", "run", "split", "step"}
_TEXTS = ("messages", "metadata", "spans")


class PartitionedExport(FileFormat):
    """A row a rollout of every column; `messages`, `metadata` and `spans` as JSON text where they were exported."""

    name = "partitioned-export"
    title = "rollout-traces export --partition-by"
    tokens = "where --tokens was given"

    def claim(self, head: Head) -> Claim | None:
        above = _above(head.path)
        if not above or not head.raw.startswith(b"PAR1"):
            return None
        columns = parquet_columns(head)
        if not {*columns, *above} >= _PLACE or "traced" not in columns:
            return None
        lacks = [] if "spans" in columns else list(TOKENS_LEFT_OUT)
        if "messages" not in columns:
            lacks.append("conversations")
        step = int(above["step"]) if above.get("step", "").isdigit() else None
        return Claim(head.path.parents[len(above)], step, TRAIN, lacks, str(head.path), above.get("run"))

    def read(self, reading: FileReading) -> Iterator[RolloutRow]:
        above = _above(reading.path)
        for n, value in enumerate(parquet_rows(reading), 1):
            whole = {**above, **value}
            if not is_current(reading.fields(whole, n)):
                continue
            try:
                yield row_of(_with_texts(whole), n)
            except (StoreError, *NOT_UNDERSTOOD) as error:
                reading.note("rows_refused", f"cannot be understood ({error!r}).", n)


def _with_texts(value: dict[str, Any]) -> dict[str, Any]:
    """A row with its conversation, what its trace says of it, and its tokens in place of their JSON texts."""
    messages, metadata, spans = (
        None if value.get(name) is None else loads(str(value[name]).encode()) for name in _TEXTS
    )
    record = {name: item for name, item in value.items() if name not in _TEXTS and item is not None}
    if isinstance(metadata, Mapping):
        record = {**metadata, **record}
    if not isinstance(messages, list):
        return record
    record["messages"] = messages
    own = [span for span in spans if isinstance(span, dict)] if isinstance(spans, list) else []
    transcript = read_transcript(TraceRecord(messages, dict(metadata or {}), own))
    if transcript is not None and len(transcript.tokens):
        record |= columns_of(transcript.tokens)
    return record


def _above(path: Path) -> dict[str, str]:
    """The known columns that the folders right above a file say."""
    names = takewhile(lambda name: "=" in name, (parent.name for parent in path.parents))
    return {column: text for column, text in of_folders(names).items() if text is not None}
