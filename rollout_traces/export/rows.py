"""The content of an export: the rows of any query, page by page, each as one plain record; its file; and its manifest, which says where they come from.

JSONL: an object a line, UTF-8; unknown values are null, infinite ones "Infinity" and "-Infinity". Parquet: a column a
metadata name, messages as a list of structs.
"""

from __future__ import annotations

import hashlib
import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from rollout_traces.errors import StoreError
from rollout_traces.ledger import columns as ledger
from rollout_traces.ledger.columns import is_column
from rollout_traces.model import transcript
from rollout_traces.model.names import VERSION
from rollout_traces.model.plain_values import INFINITE, INT64_MAX, INT64_MIN, finite_or_text
from rollout_traces.model.transcript import Transcript, columns_of
from rollout_traces.model.units import MB
from rollout_traces.model.whole_files import unfinished
from rollout_traces.store.rows import PLACE, every_row
from rollout_traces.trace import conversion as trace
from rollout_traces.trace.conversion import TraceRecord

if TYPE_CHECKING:
    from rollout_traces.store import RunInfo, Store, TraceRow
    from rollout_traces.store.asking import Attempts


PAGE = 500
"""Records in memory at once, and in one row group of a file."""
ALWAYS_KNOWN = ("traced", "superseded")
"""True or False of every rollout."""


@dataclass(frozen=True)
class ExportQuery:
    """The choice of rollouts to export.

    Attributes:
        run: id or name of the run; all when None.
        split: the split; all when None.
        steps: first and last step, both included, None for an open end.
        where: a filter in the query language.
        text: words and quoted phrases that the conversation must hold.
        order_by: sort keys; the oldest step first when None.
        rows: `traces`, or `all` for every rollout there was.
        limit: most rows; all when None.
        attempts: `newest` leaves out what a later attempt superseded, unless the filter speaks of `superseded`.
    """

    run: str | None = None
    split: str | None = None
    steps: tuple[int | None, int | None] = (None, None)
    where: str = ""
    text: str | None = None
    order_by: str | None = None
    rows: Any = "traces"
    limit: int | None = None
    attempts: Attempts = "all"


def matched(store: Store, query: ExportQuery) -> int:
    """Counts the rows that match, whatever the limit."""
    return store.count(**_which(query))


def _which(query: ExportQuery) -> dict[str, Any]:
    """The arguments of a store that say which rows match."""
    names = ("run", "split", "where", "text", "steps", "rows", "attempts")
    return {name: getattr(query, name) for name in names}


def found(store: Store, query: ExportQuery) -> Iterator[TraceRow]:
    """The rows of a query, up to its limit, read page by page."""
    order = query.order_by or "run, step, group, sample"
    most = None if query.limit is None else max(query.limit, 0)
    rows = every_row(store, min(PAGE, most or PAGE), **_which(query), order_by=order)
    return itertools.islice(rows, most)


def as_stored(record: TraceRecord) -> list[Any]:
    """The conversation of a trace as it is stored, thinking inside the content."""
    return list(record.messages)


def records(
    store: Store,
    query: ExportQuery,
    *,
    tokens: bool,
    conversation: Callable[[TraceRecord], list[Any]] = as_stored,
) -> Iterator[dict[str, Any]]:
    """The rows of a query: place, metadata, and for traced rollouts the conversation.

    Args:
        store: where from.
        query: which.
        tokens: add the token track of each traced rollout.
        conversation: gives the messages of a trace; where it raises `StoreError`, they are as they are stored.

    Yields:
        One record a row; `unreadable` says why a conversation or token track is missing.
    """
    for row in found(store, query):
        yield _record(store, row, tokens, conversation)


def decoded(text: str | bytes | None) -> str | None:
    """JSON text as text, which a source may give as bytes."""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text


def _record(
    store: Store, row: TraceRow, tokens: bool, conversation: Callable[[TraceRecord], list[Any]]
) -> dict[str, Any]:
    record: dict[str, Any] = {name: row[name] for name in PLACE}
    record |= {name: bool(row[name]) for name in ALWAYS_KNOWN}
    if row.id is None:
        return record | row.as_dict() | _labelled(store, row)
    try:
        stored = store.record(row.id)
    except StoreError as error:
        return record | row.as_dict() | {"unreadable": str(error)}
    record |= {k: _as_in_the_table(k, v) for k, v in stored.metadata.items() if k not in record}
    if row["kind"] == "rollout":
        record |= {k: v for k, v in row.as_dict().items() if k not in record and is_column(k)}
    record |= _labelled(store, row)
    try:
        record["messages"] = conversation(stored)
    except StoreError as error:
        record |= {"messages": as_stored(stored), "unreadable": str(error)}
    if tokens:
        try:
            transcript = store.transcript(row.id)
        except StoreError as error:
            record["unreadable"] = str(error)
        else:
            record |= _token_columns(transcript) if transcript is not None else {}
    return record


def _as_in_the_table(name: str, value: Any) -> Any:
    """A value of a trace's metadata as the table has it: infinities are numbers, yes and no of a column 1 and 0."""
    if isinstance(value, str):
        return INFINITE.get(value, value)
    return int(value) if isinstance(value, bool) and is_column(name) else value


def _labelled(store: Store, row: TraceRow) -> dict[str, Any]:
    """The names of a row's labels, and every label and note with its place, author and time."""
    entries = store.labels.of(str(row["uid"] or row.id))
    if not entries:
        return {}
    names = dict.fromkeys(entry.text for entry in entries if entry.kind == "label")
    kept = [{k: v for k, v in asdict(entry).items() if k != "rollout" and v is not None} for entry in entries]
    return {"labels": list(names), "annotations": kept}


def _token_columns(transcript: Transcript) -> dict[str, list[Any]]:
    return {
        name: [None if value != value else value for value in values]
        for name, values in columns_of(transcript.tokens).items()
    }


SCHEMA_VERSION = 1
TOKENIZER_KEYS = ("tokenizer", "tokenizer_name", "tokenizer_path", "tokenizer_name_or_path")
"""Keys of a run's configuration that may name its tokenizer."""


@dataclass(frozen=True)
class ExportManifest:
    """The manifest that is written beside an exported file.

    Attributes:
        schema: version of these fields.
        written_by: this package and its version.
        written_at: when, ISO 8601, UTC.
        file: the file's name.
        format: its format.
        bytes: its size.
        sha256: its checksum.
        rows: records in it.
        matched: rows of the query, before a limit.
        project: Trackio's project.
        source: where it was read from.
        runs: the runs it was read from: id, name, first entry, traces, rollouts, tokenizer where known.
        query: the question.
        schemas: versions of trace, transcript and ledger that this package reads.
    """

    schema: int
    written_by: str
    written_at: str
    file: str
    format: str
    bytes: int
    sha256: str
    rows: int
    matched: int
    project: str
    source: str
    runs: tuple[Mapping[str, Any], ...]
    query: Mapping[str, Any]
    schemas: Mapping[str, int]


def describe(
    store: Store, query: ExportQuery, path: Path, *, file_format: str, rows: int, matched: int
) -> ExportManifest:
    """The manifest of a file that has just been written.

    Args:
        store: where the rows came from.
        query: which rows.
        rows: records in the file.
        matched: rows of the query, before a limit.
    """
    runs = store.runs() if query.run is None else [store.run(query.run)]
    return ExportManifest(
        schema=SCHEMA_VERSION,
        written_by=f"rollout-traces {VERSION}",
        written_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        file=path.name,
        format=file_format,
        bytes=path.stat().st_size,
        sha256=_checksum(path),
        rows=rows,
        matched=matched,
        project=store.project,
        source=store.source.label,
        runs=tuple(_about(store, run) for run in runs),
        query=asdict(query),
        schemas={
            "trace": trace.SCHEMA_VERSION,
            "transcript": transcript.SCHEMA_VERSION,
            "ledger": ledger.SCHEMA_VERSION,
        },
    )


def write_manifest(manifest: ExportManifest, path: Path) -> None:
    """Writes a manifest beside its file, as `<file>.manifest.json`.

    Args:
        manifest: what to write.
        path: the exported file.
    """
    beside = path.with_name(path.name + ".manifest.json")
    with unfinished(beside) as made:
        made.write_bytes(orjson.dumps(asdict(manifest), option=orjson.OPT_INDENT_2))


def _about(store: Store, run: RunInfo) -> dict[str, Any]:
    config = store.config(run.id)
    ours = config.get("rollout_traces")
    places = (ours if isinstance(ours, Mapping) else {}, config)
    tokenizer = next((place[key] for place in places for key in TOKENIZER_KEYS if place.get(key)), None)
    return {
        "id": run.id,
        "name": run.name,
        "started": run.started,
        "traces": run.n_traces,
        "rollouts": run.n_rollouts,
        "tokenizer": tokenizer if isinstance(tokenizer, str) else None,
    }


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(MB):
            digest.update(block)
    return digest.hexdigest()


_MESSAGE = ("role", "content", "name", "tool_call_id", "tool_calls", "is_error")


def write_parquet(path: Path, records: Iterable[Mapping[str, Any]]) -> int:
    """Writes records; a column's type is the narrowest that holds all its values, else JSON as text.

    The types are known only at the end, so the records wait in a temporary file.

    Args:
        records: plain values.

    Returns:
        How many were written.
    """
    n = 0
    kinds: dict[str, set[str]] = {}
    with tempfile.TemporaryFile(dir=path.parent) as waiting:
        for record in records:
            flat = _flat(record)
            for name, value in flat.items():
                kinds.setdefault(name, set()).update(_kinds_of(value))
            stated = {name: finite_or_text(value) for name, value in flat.items()}
            waiting.write(orjson.dumps(stated, option=orjson.OPT_APPEND_NEWLINE, default=str))
            n += 1
        schema = pa.schema([(name, _type_of(name, found)) for name, found in kinds.items()])
        waiting.seek(0)
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            for rows in _groups(waiting):
                columns = [
                    pa.array([_fit(row.get(field.name), field.type) for row in rows], field.type)
                    for field in schema
                ]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema))
    return n


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    flat = dict(record)
    if isinstance(flat.get("messages"), list):
        flat["messages"] = [_message(message) for message in flat["messages"] if isinstance(message, Mapping)]
    return flat


def _message(message: Mapping[str, Any]) -> dict[str, str | None]:
    """The fields every data set viewer knows, and whether a call failed; what is no text becomes JSON."""
    return {name: _as_text(message.get(name)) for name in _MESSAGE}


def _as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else orjson.dumps(value, default=str).decode()


def _kinds_of(value: Any) -> set[str]:
    if isinstance(value, list):
        return {"list", *(f"item {kind}" for item in value for kind in _kinds_of(item))}
    if value is None:
        return set()
    if isinstance(value, bool):
        return {"bool"}
    if isinstance(value, int) and INT64_MIN <= value <= INT64_MAX:
        return {"int"}
    return {"float"} if isinstance(value, float) else {"text"}


def _type_of(name: str, kinds: set[str]) -> Any:
    if name == "messages" and kinds != {"text"}:
        return pa.list_(pa.struct([(field, pa.string()) for field in _MESSAGE]))
    items = {kind.removeprefix("item ") for kind in kinds if kind.startswith("item ")}
    if "list" in kinds and kinds == {"list", *(f"item {kind}" for kind in items)}:
        return pa.list_(_scalar_type(items))
    return _scalar_type(kinds)


def _scalar_type(kinds: set[str]) -> Any:
    if kinds in ({"bool"}, {"int"}):
        return pa.bool_() if kinds == {"bool"} else pa.int64()
    return pa.float64() if kinds and kinds <= {"int", "float"} else pa.string()


def _fit(value: Any, kind: Any) -> Any:
    if value is None:
        return None
    if pa.types.is_string(kind):
        return _as_text(value)
    if pa.types.is_floating(kind):
        return float(value)
    if pa.types.is_list(kind) and not pa.types.is_struct(kind.value_type):
        return [_fit(item, kind.value_type) for item in value]
    return value


def _groups(lines: IO[bytes]) -> Iterator[list[dict[str, Any]]]:
    return iter(lambda: [orjson.loads(line) for line in itertools.islice(lines, PAGE)], [])


def write_jsonl(path: Path, records: Iterable[Mapping[str, Any]]) -> int:
    """Writes records.

    Args:
        records: plain values.

    Returns:
        How many were written.
    """
    n = 0
    with path.open("wb") as file:
        for record in records:
            stated = {name: finite_or_text(value) for name, value in record.items()}
            file.write(orjson.dumps(stated, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY))
            n += 1
    return n
