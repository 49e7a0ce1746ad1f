"""The images of a rollout: what counts as one, and how they go with a trace."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from rollout_traces.model.units import MB

MAX_BYTES = 16 * MB
"""Bytes of one image."""
MAX_PIXELS = 64_000_000
"""Pixels of one image: what a browser would unpack."""
MEDIA_TYPES = {"png": "image/png", "jpg": "image/jpeg", "gif": "image/gif", "webp": "image/webp"}
"""File suffix -> media type of what is taken for an image; nothing that can hold a script is."""
IMAGES_KEY = "images"
"""In a trace's details: its images in order, as Trackio stores them, or `{"left_out": sentence}`."""


@dataclass(frozen=True)
class TraceImage:
    """One image of a rollout.

    Attributes:
        data: its bytes; empty where it was left out.
        suffix: a key of `MEDIA_TYPES`; empty where it was left out.
        left_out: why there is none, a sentence; empty where there is one.
    """

    data: bytes = b""
    suffix: str = ""
    left_out: str = ""


def image_suffix(data: bytes) -> str:
    """Finds the kind of an image from its bytes.

    Returns:
        A key of `MEDIA_TYPES`.

    Raises:
        ValueError: they are none, or too large; the text says what was seen.
    """
    if len(data) > MAX_BYTES:
        raise ValueError(f"{len(data):,} bytes; at most {MAX_BYTES:,} are kept.")
    for suffix, begins, size in (
        ("png", b"\x89PNG\r\n\x1a\n", _png),
        ("gif", b"GIF8", _gif),
        ("jpg", b"\xff\xd8\xff", _jpeg),
        ("webp", b"RIFF", _webp),
    ):
        if not data.startswith(begins):
            continue
        try:
            width, height = size(data)
        except (struct.error, IndexError) as error:
            raise ValueError(f"a damaged {suffix} file of {len(data):,} bytes.") from error
        if not 0 < width * height <= MAX_PIXELS:
            raise ValueError(f"{width:,} x {height:,} pixels; 1 to {MAX_PIXELS:,} are kept.")
        return suffix
    raise ValueError(f"{len(data):,} bytes that are no PNG, JPEG, GIF or WebP file.")


def read_file(path: str) -> bytes:
    """The bytes of an image's file.

    Raises:
        ValueError: it is no regular file, or larger than an image may be.
        OSError: it cannot be read.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("its path is no regular file.")
        if status.st_size > MAX_BYTES:
            raise ValueError(f"{status.st_size:,} bytes; at most {MAX_BYTES:,} are kept.")
        return file.read(MAX_BYTES + 1)


_PNG = struct.Struct(">8sI4sII")
"""The signature, length and kind of the first chunk, width, height."""
_GIF = struct.Struct("<6sHH")
"""The signature, width, height."""
_SEGMENT = struct.Struct(">BBH")
"""Of a JPEG: the mark, the kind of the segment, its length with these two bytes."""
_MARK = 0xFF
_FRAME = struct.Struct(">BHH")
"""Bits of a sample, height, width."""
_FRAMES = frozenset(range(0xC0, 0xD0)) - frozenset(b"\xc4\xc8\xcc")
"""Kinds of segments that begin with a frame's size."""
_WEBP = struct.Struct("<4sI4s4sI")
"""`RIFF`, its length, `WEBP`, kind and length of the first chunk."""
_CANVAS = struct.Struct("<4s3s3s")
"""Of a chunk `VP8X`: flags, width and height, less one each."""
_LOSSLESS = struct.Struct("<BI")
"""Of a chunk `VP8L`: a mark, width and height, less one each, in so many bits as `_SIDE`."""
_LOSSY = struct.Struct("<3s3sHH")
"""Of a chunk `VP8 `: a tag, a mark, width and height, above whose bits stands a scale."""
_SIDE = 14


def _png(data: bytes) -> Sequence[int]:
    return _PNG.unpack_from(data)[-2:]


def _gif(data: bytes) -> Sequence[int]:
    return _GIF.unpack_from(data)[-2:]


def _jpeg(data: bytes) -> Sequence[int]:
    at = 2
    while True:
        mark, kind, length = _SEGMENT.unpack_from(data, at)
        if mark != _MARK:
            raise IndexError("no marker")
        if kind in _FRAMES:
            _, height, width = _FRAME.unpack_from(data, at + _SEGMENT.size)
            return width, height
        at += 2 + length if kind != _MARK else 1


def _webp(data: bytes) -> Sequence[int]:
    *_, kind, _ = _WEBP.unpack_from(data)
    most = (1 << _SIDE) - 1
    if kind == b"VP8X":
        _, *sides = _CANVAS.unpack_from(data, _WEBP.size)
        return [int.from_bytes(side, "little") + 1 for side in sides]
    if kind == b"VP8L":
        _, bits = _LOSSLESS.unpack_from(data, _WEBP.size)
        return (bits & most) + 1, (bits >> _SIDE & most) + 1
    if kind == b"VP8 ":
        *_, width, height = _LOSSY.unpack_from(data, _WEBP.size)
        return width & most, height & most
    raise IndexError("no such chunk")
