"""What is shown as one HTML file that anybody can open from disk."""

from __future__ import annotations

import re
from typing import Any

from rollout_traces.errors import StoreError
from rollout_traces.inspector.workspace import Request, Workspace

LARGEST = 64 << 20
"""Bytes of a file that a browser is sent."""


def share(workspace: Workspace, request: Request) -> dict[str, Any]:
    """The file of a rollout (`id`), of two (`a` and `b`), of a group (`step`, `group`) or of the run's report.

    `what` says which: `rollout`, `compare`, `group` or `explain`. The texts of `hide` are hidden in it.

    Returns:
        `html`, and `name` for the file.

    Raises:
        StoreError: `what` is something else, it is not there, or the file is too large.
    """
    from rollout_traces.inspector.share import shared_contents, shared_page

    what = request.text("what")
    page = shared_page(shared_contents(workspace, _wanted(what, request)))
    size = len(page.encode())
    if size > LARGEST:
        raise StoreError(
            f"the file has {size:,} bytes; a browser is sent at most {LARGEST:,}. Use `rollout-traces share`."
        )
    return {"html": page, "name": f"{what}.html"}


def _wanted(what: str, request: Request) -> Any:
    from rollout_traces.inspector.share import Shared

    patterns = tuple(re.escape(text) for text in request.names("hide") if text)
    common: dict[str, Any] = {"run": request.run, "split": request.split, "patterns": patterns}
    if what == "rollout":
        return Shared(request.project, rollouts=(request.text("id"),), **common)
    if what == "compare":
        return Shared(request.project, compared=(request.text("a"), request.text("b")), **common)
    if what == "group":
        return Shared(request.project, group=(request.step, request.number("group") or 0), **common)
    if what == "explain":
        return Shared(request.project, explained=True, step=request.number("step"), **common)
    raise StoreError(f"what: seen {what[:40]!r}, expected rollout, compare, group or explain.")
