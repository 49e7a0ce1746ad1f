"""The bytes of an image of a rollout, from the local store."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from rollout_traces.errors import StoreError
from rollout_traces.inspector.view import ProjectView
from rollout_traces.trace.images import MEDIA_TYPES, image_suffix


@dataclass(frozen=True)
class ImageAnswer:
    """An image of a rollout: its media type, and its bytes in base64."""

    type: str
    data: str


def image(view: ProjectView, id: str, number: int = 0) -> ImageAnswer:
    """An image of a rollout, base64."""
    data = view.store.image(view.store.find(id), number)
    try:
        suffix = image_suffix(data)
    except ValueError as error:
        raise StoreError(f"The stored file is no image that is shown: {error}") from error
    return ImageAnswer(MEDIA_TYPES[suffix], base64.b64encode(data).decode("ascii"))
