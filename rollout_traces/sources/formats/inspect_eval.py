"""Inspect: `.eval` logs, an archive with one JSON file a sample, and `.json` logs, one for all. An evaluation is step 0; the epochs of a sample are a group."""

from __future__ import annotations

import copy
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from rollout_traces.errors import FileRefused
from rollout_traces.model.units import MB
from rollout_traces.sources.base import EVAL, MOST_BYTES, Claim, FileFormat, FileReading, Head
from rollout_traces.sources.chat import Record, messages_of
from rollout_traces.sources.lines import loads
from rollout_traces.sources.rows import RolloutRow, scalars

MAX_RATIO = 500
SMALL = 16 * MB
"""A sample that unpacks to more than this, and to more than so many times its packed size, is a bomb."""
_DAMAGED = (zlib.error, lzma.LZMAError, struct.error, RuntimeError, ValueError, EOFError)
"""Errors of reading an archive that is damaged, or asks for a password, beside its reader's own."""
_NO_SAMPLES = "holds no samples: the evaluation failed before its first, or is still at it."
_ZSTANDARD = 93
"""Zip's number of it."""
GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
"""Inspect's grades of a scorer."""


class InspectEval(FileFormat):
    """`EvalSample: id, epoch, input, target, messages, output, scores`."""

    name = "inspect"
    title = "Inspect AI, .eval or .json log"

    def claim(self, head: Head) -> Claim | None:
        is_archive = head.path.suffix == ".eval" and head.raw.startswith(b"PK\x03\x04")
        if not is_archive and not (head.path.suffix == ".json" and head.has("version", "status", "eval")):
            return None
        lacks = (
            "token ids",
            "loss mask",
            "logprobs by token id",
            "the training step (an evaluation is step 0)",
        )
        return Claim(head.path.with_suffix(""), 0, EVAL, lacks)

    def read(self, reading: FileReading) -> Iterator[RolloutRow]:
        if reading.path.suffix == ".json":
            log = reading.whole() or {}
            samples = reading.mappings(None, "samples", log.get("samples"))
            if not samples:
                reading.note("logs_without_samples", _NO_SAMPLES)
            for n, each in enumerate(samples, 1):
                with reading.refusing(n, "the sample"):
                    yield _row(each, log.get("eval") or {}, n)
            return
        try:
            with zipfile.ZipFile(reading.path) as archive:
                names = [i for i in archive.infolist() if i.filename.startswith("samples/")]
                header = _header(archive)
                if not names:
                    reading.note("logs_without_samples", _NO_SAMPLES)
                for n, info in enumerate(sorted(names, key=lambda i: i.filename), 1):
                    sample = _sample(archive, info, reading, n)
                    with reading.refusing(n, "the sample"):
                        if sample is not None:
                            yield _row(sample, header, n)
        except (zipfile.BadZipFile, NotImplementedError, OSError, *_DAMAGED) as error:
            text = f"is no whole archive ({error}); its writer may still be at it."
            reading.note("unreadable_files", text)


def _sample(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, reading: FileReading, n: int
) -> dict[str, Any] | None:
    try:
        value = loads(unpacked(archive, info))
    except FileRefused as error:
        reading.note("bombs", f"{error}, passed over.", n)
        return None
    except NotImplementedError as error:
        text = f"{info.filename} cannot be unpacked ({error}); it is passed over."
        reading.note("unreadable_samples", text, n)
        return None
    except (ValueError, zipfile.BadZipFile, OSError) as error:
        reading.note("unreadable_samples", f"{info.filename} cannot be read ({error}); it is passed over.", n)
        return None
    return value if isinstance(value, dict) else None


def unpacked(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """A file of an archive, also where it was packed with zstandard, which `zipfile` does not know everywhere.

    Args:
        info: the file; no more than the size that it states is unpacked.

    Raises:
        FileRefused: it states more than `MOST_BYTES`, or far more than it is packed in.
        NotImplementedError: its packing is not known here.
        BadZipFile: it unpacks to another size than it states.
    """
    stated = info.file_size
    if stated > MOST_BYTES or (stated > SMALL and stated > MAX_RATIO * max(info.compress_size, 1)):
        raise FileRefused(
            f"{info.filename} unpacks from {info.compress_size:,} to {stated:,} bytes: taken for a bomb"
        )
    try:
        if info.compress_type == _ZSTANDARD:
            return _unpacked_zstandard(archive, info)
        with archive.open(info) as file:
            return file.read(info.file_size + 1)
    except NotImplementedError:
        raise
    except _DAMAGED as error:
        raise zipfile.BadZipFile(str(error) or "it ends before its stated size") from error


def _unpacked_zstandard(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise NotImplementedError("zstandard needs pyarrow: pip install 'rollout-traces[reading]'") from error
    stored = copy.copy(info)  # as if it were not packed: its bytes as they lie there
    stored.compress_type, stored.file_size = zipfile.ZIP_STORED, info.compress_size
    stored.CRC = None  # type: ignore[assignment]
    with archive.open(stored) as file:
        packed = file.read()
    with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
        data = stream.read(info.file_size + 1)
    if len(data) != info.file_size:
        raise zipfile.BadZipFile(f"{len(data)} bytes in place of {info.file_size}")
    return bytes(data)


def _header(archive: zipfile.ZipFile) -> Record:
    for name in ("header.json", "_journal/start.json"):
        try:
            info = archive.getinfo(name)
            value = loads(unpacked(archive, info))
            return value.get("eval", value) if isinstance(value, dict) else {}
        except (KeyError, ValueError, FileRefused, NotImplementedError, zipfile.BadZipFile, OSError):
            continue
    return {}


def _row(sample: Record, header: Record, n: int) -> RolloutRow:
    messages = messages_of(sample.get("messages")) or []
    given = sample.get("input")
    n_prompt = 1 if isinstance(given, str) else len(given or [])
    if not messages:
        messages = messages_of(given) or []
    scores = {name: s for name, s in (sample.get("scores") or {}).items() if isinstance(s, Mapping)}
    components = {name: value for name, s in scores.items() if (value := _score(s.get("value"))) is not None}
    choices = (sample.get("output") or {}).get("choices") or []
    stop = choices[0].get("stop_reason") if choices and isinstance(choices[0], Mapping) else None
    limit = sample.get("limit")
    extras: dict[str, Any] = {"epoch": sample.get("epoch"), "model": header.get("model")}
    for name, s in scores.items():
        if isinstance(s.get("explanation"), str):
            extras[f"explanation/{name}"] = s["explanation"][:1000]
    answers = [s.get("answer") for s in scores.values() if s.get("answer") is not None]
    return RolloutRow(
        step=0,
        split=EVAL,
        line=n,
        messages=messages or None,
        n_prompt_messages=n_prompt,
        reward=next(iter(components.values()), None),
        components=components,
        group=f"sample {sample.get('id')}",
        prompt_key=f"{header.get('task', '')}-{sample.get('id')}",
        sample_id=f"{sample.get('id')}-{sample.get('epoch')}",
        source=header.get("task"),
        ground_truth=sample.get("target"),
        parsed_answer=answers[0] if answers else None,
        reward_status="error" if sample.get("error") else None,
        stop_reason=str(limit["type"])
        if isinstance(limit, Mapping) and "type" in limit
        else _STOPS.get(str(stop), stop),
        timings=_times(sample),
        extras=scalars(sample.get("metadata")) | {k: v for k, v in extras.items() if v is not None},
    )


_STOPS = {"max_tokens": "length", "model_length": "length"}


def _score(value: Any) -> float | None:
    if isinstance(value, str):
        return GRADES.get(value)
    return float(value) if isinstance(value, (bool, int, float)) else None


def _times(sample: Record) -> dict[str, float] | None:
    found = {
        name: float(sample[f"{name}_time"])
        for name in ("total", "working")
        if isinstance(sample.get(f"{name}_time"), (int, float))
    }
    return found or None
