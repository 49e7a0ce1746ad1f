"""Saves images as Trackio's media, one by one, so that a failing image does not lose its trace."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollout_traces.trace.images import TraceImage

log = logging.getLogger("rollout_traces")


def saved_images(images: Sequence[TraceImage], run: Any, step: int) -> list[Any]:
    """Images in Trackio's media folder of the run.

    Args:
        images: the images.
        run: a `trackio.Run`.
        step: the step that they are of.

    Returns:
        A `trackio.Image` each, or `{"left_out": sentence}`.
    """
    return [{"left_out": image.left_out} if image.left_out else _saved(image, run, step) for image in images]


def _saved(image: TraceImage, run: Any, step: int) -> Any:
    import trackio

    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"image.{image.suffix}"
            path.write_bytes(image.data)
            media = trackio.Image(path)
            media._save(run.project, run.name, step)
    except Exception as error:  # noqa: BLE001  a full disk or a changed Trackio must not take the trace; said in it
        log.warning("an image of step %d was not saved: %r", step, error)
        return {"left_out": f"it could not be saved: {error}"}
    return media
