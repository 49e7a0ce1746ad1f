"""The images of a rollout: what counts as one, and how they go with a trace."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass

MAX_BYTES = 16 << 20
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


def _png(data: bytes) -> Sequence[int]:
    return struct.unpack(">II", data[16:24])


def _gif(data: bytes) -> Sequence[int]:
    return struct.unpack("<HH", data[6:10])


def _jpeg(data: bytes) -> Sequence[int]:
    at = 2
    while True:
        if data[at] != 0xFF:
            raise IndexError("no marker")
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        at += 2 + int(struct.unpack(">H", data[at + 2 : at + 4])[0]) if marker != 0xFF else 1


def _webp(data: bytes) -> Sequence[int]:
    kind = data[8:16]
    if kind == b"WEBPVP8X":
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if kind == b"WEBPVP8L":
        bits = struct.unpack("<I", data[21:25])[0]
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"WEBPVP8 ":
        width, height = struct.unpack("<HH", data[26:30])
        return width & 0x3FFF, height & 0x3FFF
    raise IndexError("no such chunk")
