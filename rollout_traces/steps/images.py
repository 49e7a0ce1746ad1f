"""Reads and checks the images of a row that becomes a trace; a file that is no image is left out with a sentence."""

from __future__ import annotations

import base64
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rollout_traces.packed_batch import PackedBatch
from rollout_traces.steps.redact import Redact
from rollout_traces.trace.images import TraceImage, image_suffix, read_file

log = logging.getLogger("rollout_traces")


def images_of(
    batch: PackedBatch, row: int, counters: Counter[str], redact: Redact | None = None
) -> Sequence[TraceImage]:
    """The images of a row.

    Args:
        batch: B rollouts.
        row: the row.
        counters: `images_left_out`, `images_redacted`, `redact_errors`.
        redact: sees each image as a message of the role `image` whose content is its path, empty for bytes; an image
            for which it names anything, or fails, is left out.

    Returns:
        The images in order, with a sentence in place of each that was left out.
    """
    given = batch.row_value("images", row)
    if not isinstance(given, list):
        return ()
    found = []
    for number, image in enumerate(given, 1):
        taken = _hidden(image, counters, redact) or _read(image)
        if taken.left_out:
            counters["images_left_out"] += 1
            log.warning("image %d of %s was left out: %s", number, batch.uid(row), taken.left_out)
        found.append(taken)
    return found


def _hidden(image: Any, counters: Counter[str], redact: Redact | None) -> TraceImage | None:
    if redact is None:
        return None
    path = image.get("path", "") if isinstance(image, Mapping) else ""
    try:
        if not any(redact({"role": "image", "content": str(path)})):
            return None
        counters["images_redacted"] += 1
    except Exception:  # noqa: BLE001  a hook that fails must not let anything through; counted
        counters["redact_errors"] += 1
    return TraceImage(left_out="hidden by the run's redact hook.")


def _read(image: Any) -> TraceImage:
    if not isinstance(image, Mapping):
        return TraceImage(left_out=f"seen {type(image).__name__}. Expected a path or bytes.")
    try:
        if "left_out" in image:
            return TraceImage(left_out=str(image["left_out"]))
        data = (
            read_file(str(image["path"]))
            if "path" in image
            else base64.b64decode(image["data"], validate=True)
        )
        return TraceImage(data, image_suffix(data))
    except (OSError, ValueError, KeyError, TypeError) as error:
        return TraceImage(left_out=str(error) or type(error).__name__)
