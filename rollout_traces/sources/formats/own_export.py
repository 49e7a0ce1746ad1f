"""The files of `rollout-traces export`: JSONL and parquet, with or without token tracks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rollout_traces.errors import FileRefused, extra
from rollout_traces.ledger.columns import COLUMNS
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.bounded_reading import batches, read, schema_of
from rollout_traces.model.spans import Span, read_packed
from rollout_traces.model.transcript import FLOAT_TRACKS, INT_TRACKS
from rollout_traces.sources.base import TRAIN, Claim, Fields, FileReading, Found, Head, LinesFormat
from rollout_traces.sources.lines import loads
from rollout_traces.sources.problems import said_of
from rollout_traces.sources.rows import Record, RolloutRow, batch_of, number

TOKENS_LEFT_OUT = ("token ids", "loss mask", "logprobs (export with --tokens)")
_MARK = ("run_id", "run", "split", "step")
_NUMERIC = tuple(
    column.name for column in COLUMNS if column.kind in ("float", "int") and "/" not in column.name
)
_STORED = (*_NUMERIC, "flags", "selected_by")
"""Columns that a copied row keeps as they were stored."""


class OwnExport(LinesFormat):
    """A record a rollout: `id, run_id, run, split, step`, its metadata, `messages`, and token columns if asked for."""

    name = "export"
    title = "rollout-traces export"
    tokens = "where --tokens was given"

    def claim(self, head: Head) -> Claim | None:
        if head.raw.startswith(b"PAR1"):
            columns = parquet_columns(head)
            if not set(_MARK) <= columns:
                return None
            run = _first_run(head)
        elif not head.has(*_MARK) or not head.keys & {"uid", "schema", "messages"}:
            return None
        else:
            columns = set(head.keys)
            run = str(head.record["run"]) if head.record is not None else None
        lacks = [] if "input_ids" in columns else list(TOKENS_LEFT_OUT)
        if "messages" not in columns:
            lacks.append("conversations (export traces for those)")
        return Claim(head.path.parent, None, TRAIN, lacks, run=run)

    def rows(self, reading: FileReading) -> Iterator[tuple[RolloutRow, int, int]]:
        if reading.path.suffix != ".parquet":
            yield from super().rows(reading)
            return
        for n, value in enumerate(parquet_rows(reading), 1):
            if is_current(reading.fields(value, n)):
                yield row_of(value, n), 0, n

    def read(self, fields: Fields, found: Found) -> Iterator[RolloutRow]:
        if is_current(fields):
            yield row_of(fields.record, fields.line)


def is_current(fields: Fields) -> bool:
    """Tells whether no later attempt of the run superseded the row; one that is superseded is noted."""
    if not fields.record.get("superseded"):
        return True
    fields.note("superseded_rows", "is of an attempt that a later one superseded; it is passed over.")
    return False


def row_of(value: Record, line: int) -> RolloutRow:
    """A rollout of an exported record.

    Args:
        line: the record's line or row in its file.
    """
    extras = _under(value, "extra/")
    row = RolloutRow(
        step=int(value["step"]),
        split=str(value["split"]),
        run=str(value["run"]),
        line=line,
        messages=_messages(value.get("messages")),
        reward=number(value.get("reward")),
        raw_reward=number(value.get("raw_reward")),
        components={k: number(v) for k, v in _under(value, "component/").items()},
        metrics={k: number(v) for k, v in _under(value, "sample/").items()},
        group=value.get("group"),
        prompt_key=value.get("prompt_key"),
        episode=value.get("episode"),
        parent=value.get("parent"),
        sample_id=value.get("sample_id") or value.get("uid"),
        source=value.get("source"),
        engine=value.get("engine"),
        success=None if value.get("success") is None else bool(value["success"]),
        parsed_answer=value.get("parsed_answer", value.get("answer")),
        ground_truth=value.get("ground_truth"),
        reward_status=value.get("reward_status"),
        stop_reason=value.get("stop_reason"),
        discard_reason=value.get("discard_reason"),
        timings=_timings(value),
        extras={k: v for k, v in extras.items() if isinstance(v, (str, int, float))},
        train_version=value.get("train_version"),
        messages_are_given=value.get("decoded_from") == "messages",
        ledger_row={name: value[name] for name in _STORED if value.get(name) is not None},
    )
    if value.get("input_ids") is not None:
        row.input_ids = value["input_ids"]
        row.loss_mask = value.get("loss_mask")
        if value.get("response_mask_from") != "loss_mask":
            row.response_mask = value.get("response_mask")
        row.tracks = {k: value[k] for k in (*INT_TRACKS, *FLOAT_TRACKS) if isinstance(value.get(k), list)}
    if "advantages" not in row.tracks:
        row.advantage = number(value.get("advantage"))
    return row


def _timings(value: Record) -> list[Span] | dict[str, float] | None:
    if isinstance(value.get("timings"), str):
        return read_packed(value["timings"])
    return {k: v for k, v in _under(value, "timing/").items() if isinstance(v, (int, float))} or None


def _under(value: Record, prefix: str) -> dict[str, Any]:
    return {k.removeprefix(prefix): v for k, v in value.items() if k.startswith(prefix) and v is not None}


def _messages(given: Any) -> list[dict[str, Any]] | None:
    """Messages as they were stored; parquet has all but text as JSON, and nulls for what is not there."""
    if not isinstance(given, list):
        return None
    found = []
    for item in given:
        message = {key: value for key, value in item.items() if value is not None}
        if isinstance(message.get("tool_calls"), str):
            try:
                message["tool_calls"] = loads(message["tool_calls"].encode())
            except ValueError:
                message.pop("tool_calls")
        if message.get("is_error") == "true":
            message["is_error"] = True
        found.append(message)
    return found


def parquet_columns(head: Head) -> set[str]:
    """The columns of a parquet file; none where it is damaged, or pyarrow is not installed."""
    try:
        return set(schema_of(head.path).names)
    except (ImportError, FileRefused, OSError):
        return set()


def _first_run(head: Head) -> str | None:
    table = read(head.path, ["run"], at=[0])
    return str(table["run"][0]) if table.num_rows else None


def parquet_rows(reading: FileReading) -> Iterator[dict[str, Any]]:
    """The rows of a parquet file; what of it cannot be read is noted."""
    try:
        with extra("reading", "reading parquet"):
            for part in batches(reading.path):
                yield from part.to_pylist()
    except (FileRefused, OSError) as error:
        reading.note("unreadable_files", said_of(reading.path, error))


def batch_of_records(records: Iterable[Record]) -> RolloutBatch:
    """A batch of at least one record of one step and split."""
    rows = [row_of(record, line) for line, record in enumerate(records, 1)]
    for row in rows:
        row.ledger_row = {}
    return batch_of(rows, decodes_tokens=True)
