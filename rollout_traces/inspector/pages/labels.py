"""Labels and notes: those of a rollout, the names in use, and adding or taking one back."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal, cast

from rollout_traces.errors import StoreError
from rollout_traces.inspector.label_lines import check_taking_back
from rollout_traces.inspector.visitor import who_asks
from rollout_traces.inspector.workspace import Request, Workspace

TAKES_NONE = "This inspector takes no labels: it was started with --no-labels, or on a host without ROLLOUT_TRACES_LABELS=1."
MOST_NAMES = 30
"""Names that are offered, the most frequent first."""


def labels(workspace: Workspace, request: Request) -> dict[str, Any]:
    """The labels and notes of the rollout `id`, each with whether its reader may take it back; the names in use."""
    store, visitor = workspace.store(request.project), who_asks()
    found = store.labels.of(store.uid(request.text("id")))
    return {
        "entries": [
            asdict(entry) | {"may_remove": visitor.owner or entry.author == visitor.name} for entry in found
        ],
        "names": list(store.labels.names())[:MOST_NAMES],
        "author": visitor.name,
        "may_label": workspace.may_label,
    }


def annotate(workspace: Workspace, request: Request) -> dict[str, Any]:
    """Puts a label or a note (`kind`, `text`, `turn` or `start` and `stop`) on the rollout `id`, or takes one back.

    Taking back is `kind` `removed` with the entry's id as `text`. It is signed with the name that the visitor's token
    has, and dated here.

    Raises:
        StoreError: this server does not take labels; it is not there, another's or cannot be kept.
    """
    if not workspace.may_label:
        raise StoreError(TAKES_NONE)
    store = workspace.store(request.project)
    trace_id, kind, text = request.text("id"), request.text("kind"), request.text("text")
    visitor = who_asks()
    start, stop = request.number("start"), request.number("stop")
    tokens = None if start is None or stop is None else (start, stop)
    if kind == "removed":
        uid = store.uid(trace_id)
        known = {entry.id: entry.author for entry in store.labels.of(uid)}
        check_taking_back(known.get(text), visitor)
        store.labels.remove(uid, text, visitor.name)
    elif kind in ("label", "note"):
        store.label(
            trace_id,
            text,
            visitor.name,
            kind=cast("Literal['label', 'note']", kind),
            turn=request.number("turn"),
            tokens=tokens,
        )
    else:
        raise StoreError(f"kind: seen {kind[:40]!r}, expected label, note or removed.")
    return labels(workspace, request)
