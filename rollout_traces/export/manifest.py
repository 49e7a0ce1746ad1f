"""The manifest of an exported file: where it came from, which question it answers, how much it holds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from rollout_traces.model.units import MB

if TYPE_CHECKING:
    from rollout_traces.export.rows import ExportQuery
    from rollout_traces.store import RunInfo, Store

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
    from rollout_traces import __version__
    from rollout_traces.ledger import columns as ledger
    from rollout_traces.model import transcript
    from rollout_traces.trace import conversion as trace

    runs = store.runs() if query.run is None else [store.run(query.run)]
    return ExportManifest(
        schema=SCHEMA_VERSION,
        written_by=f"rollout-traces {__version__}",
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


def write_manifest(manifest: ExportManifest, path: Path) -> Path:
    """Writes a manifest beside its file, as `<file>.manifest.json`.

    Args:
        manifest: what to write.
        path: the exported file.

    Returns:
        The manifest's path.
    """
    beside = path.with_name(path.name + ".manifest.json")
    beside.write_bytes(orjson.dumps(asdict(manifest), option=orjson.OPT_INDENT_2))
    return beside


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
