"""The bytes of an image of a rollout, from the local store."""

from __future__ import annotations

import base64
from typing import Any

from rollout_traces.errors import StoreError
from rollout_traces.inspector.workspace import Request, Workspace
from rollout_traces.trace.images import MEDIA_TYPES, image_suffix


def image(workspace: Workspace, request: Request) -> dict[str, Any]:
    """One image of a rollout, by the trace's `id` and its `number`, as base64."""
    number = request.number("number")
    data = workspace.store(request.project).image(request.text("id"), -1 if number is None else number)
    try:
        suffix = image_suffix(data)
    except ValueError as error:
        raise StoreError(f"The stored file is no image that is shown: {error}") from error
    return {"type": MEDIA_TYPES[suffix], "data": base64.b64encode(data).decode("ascii")}
