"""What an imported rollout was read from: the record in its file, on the machine that imported it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_traces.errors import StoreError
from rollout_traces.sources.raw_record import raw_record
from rollout_traces.store.local_source import LocalSource

if TYPE_CHECKING:
    from rollout_traces.store.store import Store


def raw_record_of(store: Store, trace_id: str) -> str:
    """The text of the record that a rollout was read from.

    Args:
        store: where the rollout is.
        trace_id: its trace's id or uid, or the beginning of one.

    Raises:
        StoreError: it was not imported, not on this machine, or the record cannot be read any more.
    """
    origin = store.record(trace_id).metadata.get("origin")
    if not isinstance(origin, str):
        raise StoreError(f"trace {trace_id!r} was not imported from a file: it has no raw record.")
    if not isinstance(store.source, LocalSource):
        raise StoreError(f"{origin}: read on the machine that imported it, from its own project.")
    return raw_record(store.source.path.parent, store.project, origin).decode("utf-8", "replace")
