"""Zstandard files as bytes, a frame at a time: a seekable file's table tells where a place lies, so that no more is unpacked.

The table is a frame that decoders skip, at the end of the file: sizes of every frame, packed and unpacked.
"""

from __future__ import annotations

import bisect
import io
import itertools
import struct
from pathlib import Path
from typing import IO, Any, cast

from rollout_traces.errors import extra
from rollout_traces.model.units import MB

MOST_FRAME = 64 * MB
"""Bytes that one frame may unpack to."""
_FOOTER = struct.Struct("<IBI")
_SKIPPED = struct.Struct("<II")
"""The beginning of a frame that is skipped: its magic and its size."""
_SEEKABLE = 0x8F92EAB1
_HAS_CHECKSUMS = 0x80


def open_zstd(path: Path) -> IO[bytes]:
    """A file's unpacked bytes, to read on and, where it is seekable, to seek in.

    Raises:
        OSError: the file is no whole Zstandard file, or a frame of it is larger than it may be.
    """
    with extra("reading", "reading Zstandard files"):
        import pyarrow as pa
    frames = _frames(path)
    if frames is None:
        return cast("IO[bytes]", io.BufferedReader(cast("Any", pa.CompressedInputStream(str(path), "zstd"))))
    return cast("IO[bytes]", io.BufferedReader(_Seekable(path, frames)))


def _frames(path: Path) -> list[tuple[int, int]] | None:
    """Packed and unpacked size of each frame; None where the file has no table of them."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(size - _FOOTER.size, 0))
        tail = file.read()
        if len(tail) < _FOOTER.size:
            return None
        n, descriptor, magic = _FOOTER.unpack(tail)
        entry = struct.Struct("<III" if descriptor & _HAS_CHECKSUMS else "<II")
        table = n * entry.size
        if magic != _SEEKABLE or table + _FOOTER.size + _SKIPPED.size > size:
            return None
        file.seek(size - _FOOTER.size - table)
        found = [(packed, unpacked) for packed, unpacked, *_ in entry.iter_unpack(file.read(table))]
    if sum(packed for packed, _ in found) != size - table - _FOOTER.size - _SKIPPED.size:
        raise OSError("its table of frames does not fit its size")
    return found


class _Seekable(io.RawIOBase):
    """The unpacked bytes; the frame that was read last stays in memory."""

    def __init__(self, path: Path, frames: list[tuple[int, int]]) -> None:
        self._file = path.open("rb")
        self._frames = frames
        self._packed = [0, *itertools.accumulate(packed for packed, _ in frames)]
        self._starts = [0, *itertools.accumulate(unpacked for _, unpacked in frames)]
        self._at = 0
        self._held: tuple[int, memoryview] | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._starts[-1]}[whence]
        self._at = max(base + offset, 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        if self._at >= self._starts[-1]:
            return 0
        number = bisect.bisect_right(self._starts, self._at) - 1
        if self._held is None or self._held[0] != number:
            self._held = number, self._unpacked(number)
        start = self._at - self._starts[number]
        part = self._held[1][start : start + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)

    def close(self) -> None:
        self._file.close()
        super().close()

    def _unpacked(self, number: int) -> memoryview:
        import pyarrow as pa

        packed, unpacked = self._frames[number]
        if unpacked > MOST_FRAME:
            raise OSError(f"a frame unpacks to {unpacked:,} bytes. Expected at most {MOST_FRAME:,}")
        self._file.seek(self._packed[number])
        return memoryview(pa.decompress(self._file.read(packed), unpacked, "zstd", asbytes=True))
