"""Reads the JSON objects of a file, one by one, whatever became of the file: lines, an array, or one that is all of it.

Only one object is in memory at a time. A line is never longer there than `MAX_LINE`, a broken line never ends the
file, and a last line without its line break is what a writer has not finished yet.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import itertools
import math
import re
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import orjson

from rollout_traces.errors import extra
from rollout_traces.model.bounded_reading import MOST_RATIO, check_values
from rollout_traces.model.units import KB, MB
from rollout_traces.sources.problems import Problems

MAX_LINE = 128 * MB
"""Bytes of a line above which it is passed over."""


class Line(NamedTuple):
    """One record.

    Attributes:
        number: 1-based line of the file; of a file that has no line a record, the how-many-th record.
        offset: byte of the (uncompressed) file where the line begins.
        stop: byte behind it.
        value: the record.
    """

    number: int
    offset: int
    stop: int
    value: dict[str, Any]


PACKED = (".gz", ".zst")
"""Endings of files that are packed."""
_JSON = (".jsonl", ".json", ".ndjson")


def is_json_by_name(path: Path) -> bool:
    """Tells whether a file's name ends as that of JSON, packed or not."""
    return path.name.removesuffix(path.suffix if path.suffix in PACKED else "").endswith(_JSON)


def json_lines(path: Path, problems: Problems, start: int = 0, number: int = 0) -> Iterator[Line]:
    """Reads the objects of a JSON Lines file, or of a file that holds an array of them or spreads them over lines.

    Args:
        path: the file; `.gz` is read as gzip, `.zst` as Zstandard.
        problems: where broken, overlong and unfinished lines are noted.
        start: byte to begin at, the start of a line.
        number: lines before it.

    Yields:
        Each record that is an object; `stop` is 0 where the file has no line a record.
    """
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(opened(path, start))
            if not start and is_no_lines(head_of(path)):
                yield from _objects(file, path, problems)
                return
        except OSError as error:
            problems.add(path, "unreadable_files", f"cannot be read ({error}).")
            return
        offset = start
        while True:
            try:
                raw = file.readline(MAX_LINE)
            except (OSError, EOFError, zlib.error) as error:
                text = f"cannot be read further ({error}); what came before is imported."
                problems.add(path, "damaged_files", text, number + 1)
                return
            if not raw:
                return
            number += 1
            length = len(raw)
            if length == MAX_LINE and not raw.endswith(b"\n"):
                length += _skip_line(file, _most_of(path) - offset)
                text = f"a line of {length:,} bytes, more than {MAX_LINE:,}; it is passed over."
                problems.add(path, "overlong_lines", text, number)
                raw = b""
            if _is_bomb(path, offset + length, problems, number):
                return
            if offset == 0:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            value = _parsed(raw, path, number, problems) if raw.strip() else None
            if value is not None:
                yield Line(number, offset, offset + length, value)
            offset += length


def _objects(file: IO[bytes], path: Path, problems: Problems) -> Iterator[Line]:
    try:
        for number, (offset, raw) in enumerate(objects(file, MAX_LINE), 1):
            if _is_bomb(path, offset + len(raw), problems, number):
                return
            value = _parsed(raw if not raw.endswith(b"}") else raw + b"\n", path, number, problems)
            if value is not None:
                yield Line(number, offset, 0, value)
    except TooLong as error:
        problems.add(path, "overlong_lines", f"holds {error}; it is not read further.")
    except (OSError, EOFError, zlib.error) as error:
        text = f"cannot be read further ({error}); what came before is imported."
        problems.add(path, "damaged_files", text)


def _most_of(path: Path) -> float:
    """Bytes that a file may unpack to; of one that is not packed, any."""
    return path.stat().st_size * MOST_RATIO + MAX_LINE if path.suffix in PACKED else math.inf


def _is_bomb(path: Path, n_bytes: int, problems: Problems, line: int) -> bool:
    if n_bytes <= _most_of(path):
        return False
    problems.add(path, "bombs", _grown(), line)
    return True


def _grown() -> str:
    return f"grows to more than {MOST_RATIO} times its size: taken for a bomb, not read further."


def _parsed(raw: bytes, path: Path, number: int, problems: Problems) -> dict[str, Any] | None:
    try:
        value = loads(raw)
    except ValueError as error:
        if not raw.endswith(b"\n"):
            text = "the last line is cut off: its writer may still be at it. It is read when it is complete."
            problems.add(path, "unfinished_lines", text, number)
        else:
            problems.add(path, "broken_lines", f"is no JSON ({error}); it is passed over.", number)
        return None
    if not isinstance(value, dict):
        text = f"holds a {type(value).__name__}. Expected a JSON object; it is passed over."
        problems.add(path, "broken_lines", text, number)
        return None
    return value


def loads(raw: bytes) -> Any:
    """JSON, with the NaN and Infinity that Python's writer puts into it.

    Raises:
        ValueError: it is none, or it holds more values than its size accounts for.
    """
    check_values(raw)
    try:
        return orjson.loads(raw)
    except ValueError:
        if b"NaN" not in raw and b"Infinity" not in raw and b"\\ud" not in raw.lower():
            raise
        import json

        try:
            return json.loads(raw)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error


def head_of(path: Path, size: int = 64 * KB) -> bytes:
    """The first bytes of a file, unpacked where it is packed, as far as they can be read."""
    data = b""
    with contextlib.suppress(OSError, EOFError, zlib.error), opened(path) as file:
        while len(data) < size and (part := file.read1(size - len(data))):  # type: ignore[attr-defined]
            data += part
    return data


def first_object(head: bytes) -> dict[str, Any] | None:
    """The first JSON object that a head holds whole, within its first lines; None where it holds none."""
    return next(head_objects(head, 5), None)


def head_objects(head: bytes, most: int) -> Iterator[dict[str, Any]]:
    """The JSON objects that a head holds whole.

    Args:
        head: the first bytes of a file of lines, or of an array.
        most: lines, or objects of an array, that are looked at.
    """
    if is_no_lines(head):
        raws = [raw for _, raw in itertools.islice(objects(io.BytesIO(head), len(head)), most)]
    else:
        raws = head.removeprefix(codecs.BOM_UTF8).split(b"\n", most)[:most]
    for raw in raws:
        try:
            value = loads(raw)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def opened(path: Path, at: int = 0) -> IO[bytes]:
    """A file's bytes from a place on, unpacked where it is gzip or Zstandard."""
    if path.suffix not in PACKED:
        file = path.open("rb")
        file.seek(at)
        return file
    unpacking = _unpacking(path)
    while at and (part := unpacking.read(min(at, CHUNK))):
        at -= len(part)
    return unpacking


def _unpacking(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast("IO[bytes]", gzip.open(path, "rb"))
    with extra("reading", "reading Zstandard files"):
        import pyarrow as pa
    return cast("IO[bytes]", io.BufferedReader(cast("Any", pa.CompressedInputStream(str(path), "zstd"))))


def with_places(path: Path) -> IO[bytes]:
    """A file's unpacked bytes, any place of which can be sought.

    Raises:
        OSError: it cannot be unpacked, or grows to more than a file of its size does.
    """
    if path.suffix not in PACKED:
        return path.open("rb")
    unpacked, most = tempfile.TemporaryFile(), _most_of(path)  # noqa: SIM115  its reader closes it
    with opened(path) as file:
        while part := file.read(CHUNK):
            unpacked.write(part)
            if unpacked.tell() > most:
                raise OSError(_grown())
    unpacked.seek(0)
    return cast("IO[bytes]", unpacked)


def _skip_line(file: IO[bytes], most: float) -> int:
    """Reads to the line's end, or until it has more than `most` bytes, and gives how many these were."""
    skipped = 0
    while skipped <= most and (chunk := file.readline(CHUNK)):
        skipped += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return skipped


_MARK = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*("|\\?\Z)|[{}\[\]]', re.DOTALL)
_LOOKS_CUT = re.compile(rb'\{\s*("(?:[^"\\]|\\.)*"\s*:.*[,{\[])?\s*', re.DOTALL)
CHUNK = MB


class TooLong(Exception):
    """An object is longer than it may be."""


def is_no_lines(head: bytes) -> bool:
    """Tells whether a text begins with an array, or with an object whose first line is not all of it."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    first, line_break, _ = text.partition(b"\n")
    return text.startswith(b"[") or bool(line_break and _LOOKS_CUT.fullmatch(first.strip()))


def objects(file: IO[bytes], most: int) -> Iterator[tuple[int, bytes]]:
    """The outermost objects, or those of the outermost array.

    Args:
        file: a JSON text.
        most: bytes of one object above which reading ends.

    Yields:
        The byte that it begins at, and its text; the last one may be cut off.

    Raises:
        TooLong: an object has more than `most` bytes.
    """
    buffer, at, offset = b"", 0, 0
    depth, base, start = 0, None, None
    while chunk := file.read(max(CHUNK, len(buffer))):
        buffer += chunk
        for match in _MARK.finditer(buffer, at):
            mark = match[0]
            if mark[:1] == b'"':
                if match[1] != b'"':  # the text goes on behind what was read
                    at = match.start()
                    break
            elif mark in b"{[":
                if base is None:
                    base = int(mark == b"[")
                if mark == b"{" and depth == base:
                    start = match.start()
                depth += 1
            else:
                depth -= 1
                if depth == base and start is not None:
                    yield offset + start, buffer[start : match.end()]
                    start = None
            at = match.end()
        else:
            at = len(buffer)
        done = at if start is None else start
        if len(buffer) - done > most:
            raise TooLong(f"an object of more than {most:,} bytes")
        buffer, at, offset = buffer[done:], at - done, offset + done
        start = None if start is None else 0
    if start is not None:
        yield offset, buffer


def read_object(path: Path, problems: Problems, most: int) -> dict[str, Any] | None:
    """Reads a file that is one JSON object; None, and a problem noted, where it is too large, cut off or no object.

    Args:
        problems: where that is noted.
        most: bytes of a file above which it is not read.
    """
    try:
        size = path.stat().st_size
        if size > most:
            problems.add(path, "overlong_records", f"has {size:,} bytes, more than {most:,}.")
            return None
        value = loads(path.read_bytes().removeprefix(codecs.BOM_UTF8))
    except OSError as error:
        problems.add(path, "unreadable_files", f"cannot be read ({error}).")
        return None
    except ValueError as error:
        text = (
            f"is no complete JSON ({error}); its writer may still be at it. It is read when it is complete."
        )
        problems.add(path, "unfinished_files", text)
        return None
    if not isinstance(value, dict):
        problems.add(path, "unreadable_files", f"holds a {type(value).__name__}. Expected a JSON object.")
        return None
    return value
