"""Labels and notes: those of a rollout, the names in use, and adding or taking one back."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal, cast

from rollout_traces.errors import StoreError
from rollout_traces.inspector.workspace import Request, Workspace

MOST_NAMES = 30
"""Names that are offered, the most frequent first."""


def labels(workspace: Workspace, request: Request) -> dict[str, Any]:
    """The labels and notes of the rollout `id`, and the names in use in its project."""
    store = workspace.store(request.project)
    found = store.labels.of(store.uid(request.text("id")))
    return {
        "entries": [asdict(entry) for entry in found],
        "names": list(store.labels.names())[:MOST_NAMES],
        "may_label": workspace.may_label,
    }


def annotate(workspace: Workspace, request: Request) -> dict[str, Any]:
    """Puts a label or a note (`kind`, `text`, `turn` or `start` and `stop`) on the rollout `id`, or takes one back.

    Taking back is `kind` `removed` with the entry's id as `text`.

    Raises:
        StoreError: this server does not take labels, or it is not there or cannot be kept.
    """
    if not workspace.may_label:
        raise StoreError("This inspector was started with --no-labels: it takes none.")
    store = workspace.store(request.project)
    trace_id, kind, text = request.text("id"), request.text("kind"), request.text("text")
    author = request.text("author") or "unknown"
    start, stop = request.number("start"), request.number("stop")
    tokens = None if start is None or stop is None else (start, stop)
    if kind == "removed":
        store.labels.remove(store.uid(trace_id), text, author)
    elif kind in ("label", "note"):
        store.label(
            trace_id,
            text,
            author,
            kind=cast("Literal['label', 'note']", kind),
            turn=request.number("turn"),
            tokens=tokens,
        )
    else:
        raise StoreError(f"kind: seen {kind[:40]!r}, expected label, note or removed.")
    return labels(workspace, request)
