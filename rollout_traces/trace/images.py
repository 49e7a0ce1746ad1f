"""The images of a rollout: what counts as one, and how they go with a trace."""

from __future__ import annotations

import io
import os
import stat
from dataclasses import dataclass

from rollout_traces.model.packed_arrays import MADE_UP
from rollout_traces.model.units import MB

MAX_BYTES = 16 * MB
"""Bytes of one image."""
MAX_PIXELS = 64_000_000
"""Pixels of one image: what a browser would unpack."""
MEDIA_TYPES = {"png": "image/png", "jpg": "image/jpeg", "gif": "image/gif", "webp": "image/webp"}
"""File suffix -> media type of what is taken for an image; nothing that can hold a script is."""
_SUFFIXES = {"PNG": "png", "JPEG": "jpg", "GIF": "gif", "WEBP": "webp", "MPO": "jpg"}
"""Pillow's name of a kind -> file suffix; MPO is a JPEG with further pictures behind it."""
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
    """Finds the kind of an image from its bytes; its pixels are not unpacked.

    Returns:
        A key of `MEDIA_TYPES`.

    Raises:
        ValueError: It is too large, damaged, or none of these kinds.
    """
    from PIL import Image

    if len(data) > MAX_BYTES:
        raise ValueError(f"{len(data):,} bytes; at most {MAX_BYTES:,} are kept.")
    try:
        with Image.open(io.BytesIO(data), formats=tuple(_SUFFIXES)) as image:
            (width, height), kind = image.size, str(image.format)
    except Image.DecompressionBombError as error:
        raise ValueError(f"too many pixels; {MAX_PIXELS:,} are kept at most.") from error
    except (OSError, SyntaxError, *MADE_UP) as error:
        raise ValueError(
            f"{len(data):,} bytes that are no PNG, JPEG, GIF or WebP file that is whole."
        ) from error
    if width * height > MAX_PIXELS:
        raise ValueError(f"{width:,} x {height:,} pixels; {MAX_PIXELS:,} are kept at most.")
    return _SUFFIXES[kind]


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
