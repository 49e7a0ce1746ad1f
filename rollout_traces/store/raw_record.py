"""What an imported rollout was read from: the record in its file, on the machine that imported it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_traces.errors import StoreError
from rollout_traces.sources.raw_record import raw_record
from rollout_traces.store.local_source import LocalSource
from rollout_traces.store.query.lexer import literal

if TYPE_CHECKING:
    from rollout_traces.store.store import Store


def raw_record_of(store: Store, trace_id: str) -> str:
    """The text of the record that a rollout was read from.

    Args:
        store: where the rollout is.
        trace_id: its trace's id or uid, or the beginning of one; of a rollout without a trace its uid.

    Raises:
        StoreError: it was not imported, not on this machine, or the record cannot be read any more.
    """
    origin = _origin_of(store, trace_id)
    if not isinstance(origin, str):
        raise StoreError(f"{trace_id!r} was not imported from a file: it has no raw record.")
    if not isinstance(store.source, LocalSource):
        raise StoreError(f"{origin}: read on the machine that imported it, from its own project.")
    return raw_record(store.source.path.parent, store.project, origin).decode("utf-8", "replace")


def _origin_of(store: Store, trace_id: str) -> Any:
    """Where a rollout was read from: its trace says it, and its row, also where it has no trace."""
    try:
        return store.record(trace_id).metadata.get("origin")
    except StoreError:
        found = store.query(where=f"uid = {literal(trace_id)}", rows="all", limit=1).rows
        if not found:
            raise
        return found[0].get("origin")
