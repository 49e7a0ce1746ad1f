"""A batch's images as plain values for the record: paths stay paths, bytes become base64."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MAX_IMAGES = 32
"""Images of a row."""
MAX_BYTES = 8 << 20
"""Bytes of images that a hand-over copies; those of paths are read by the worker."""


def plain_images(rows: Sequence[Any]) -> list[list[dict[str, str]] | None]:
    """The images of B rows.

    Args:
        rows: for each row a list of paths or bytes, one of them alone, or None.

    Returns:
        For each row None or its images, each `{"path": absolute path}`, `{"data": base64}` or, for what cannot be
        taken along, `{"left_out": a sentence}`.
    """
    budget = _Budget(MAX_BYTES)
    return [None if row is None else _images(row, budget) for row in rows]


class _Budget:
    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, size: int) -> bool:
        fits = size <= self.left
        self.left -= size if fits else 0
        return fits


def _images(row: Any, budget: _Budget) -> list[dict[str, str]]:
    given = [row] if isinstance(row, (str, os.PathLike, bytes, bytearray, memoryview)) else row
    if not isinstance(given, Sequence):
        return [{"left_out": f"images: seen {type(row).__name__}. Expected a list of paths or bytes."}]
    found = [_image(image, budget) for image in given[:MAX_IMAGES]]
    beyond = len(given) - MAX_IMAGES
    if beyond > 0:
        found.append({"left_out": f"{beyond} further images: a row keeps {MAX_IMAGES} at most."})
    return found


def _image(image: Any, budget: _Budget) -> dict[str, str]:
    if isinstance(image, (str, os.PathLike)):
        path = os.fspath(image)
        if isinstance(path, str):
            return {"path": str(Path.cwd() / path)}
    if isinstance(image, (bytes, bytearray, memoryview)):
        size = len(image) if not isinstance(image, memoryview) else image.nbytes
        if budget.take(size):
            return {"data": base64.b64encode(image).decode("ascii")}
        return {
            "left_out": f"an image of {size:,} bytes: a hand-over copies {MAX_BYTES:,} bytes of images. Give paths."
        }
    return {"left_out": f"an image: seen {type(image).__name__}. Expected a path or bytes."}
