"""A store's answers on one kept rollout: its trace, transcript, details, images, conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from rollout_traces.errors import StoreError
from rollout_traces.model.packed_arrays import damage_said
from rollout_traces.model.text import encodable
from rollout_traces.store import steps
from rollout_traces.store.rows import StoredTrace
from rollout_traces.store.tables import StoreTables
from rollout_traces.trace.images import IMAGES_KEY

if TYPE_CHECKING:
    from rollout_traces.model.transcript import Transcript
    from rollout_traces.trace.conversion import TraceRecord


class StoreTraces(StoreTables):
    """The kept rollouts of one project, by trace id or uid."""

    def uid(self, trace_id: str) -> str:
        """Looks up the id that a rollout's labels are kept under: its uid; its trace id where it has none."""
        return str(self.record(trace_id).metadata.get("uid") or trace_id)

    def find(self, wanted: str) -> str:
        """The id of the trace that is meant.

        Args:
            wanted: a trace id or uid, or the beginning of one that no other shares.

        Raises:
            StoreError: there is none, or there are several.
        """
        with self._index.snapshot() as connection:
            return steps.find_trace(connection, encodable(wanted))

    def record(self, trace_id: str) -> TraceRecord:
        """One whole trace.

        Args:
            trace_id: its id or uid, or the beginning of one.

        Raises:
            StoreError: there is none, or its JSON is damaged.
        """
        from rollout_traces.store.other_tools import shown_record
        from rollout_traces.trace.conversion import TraceRecord

        stored = self._stored(encodable(trace_id))
        with damage_said(f"trace {trace_id!r}: its stored JSON"):
            messages, metadata, spans = (
                orjson.loads(text) for text in (stored.messages, stored.metadata, stored.spans or b"[]")
            )
            spans = [span for span in spans if isinstance(span, dict)]
            return shown_record(stored, TraceRecord(list(messages), dict(metadata), spans))

    def _stored(self, wanted: str) -> StoredTrace:
        """Reads the trace of an id; else of the id that a uid, or the beginning of either, means."""
        try:
            return self.source.trace(wanted)
        except StoreError:
            found = self.find(wanted)
            if found == wanted:
                raise
            return self.source.trace(found)

    def transcript(self, trace_id: str) -> Transcript | None:
        """The transcript of a trace, None where another tool wrote it.

        Args:
            trace_id: its id or uid, or the beginning of one.

        Raises:
            StoreError: there is no such trace, or its packed data is damaged or of a newer schema.
        """
        from rollout_traces.trace.conversion import read_transcript

        record = self.record(trace_id)
        with damage_said(f"trace {trace_id!r}: its token track"):
            return read_transcript(record)

    def details(self, trace_id: str) -> dict[str, Any]:
        """Reads what is kept beside a trace: flags with their sentences, warnings, timings.

        Args:
            trace_id: its id or uid, or the beginning of one.

        Raises:
            StoreError: there is no such trace, or it is damaged.
        """
        from rollout_traces.trace.conversion import read_details

        record = self.record(trace_id)
        with damage_said(f"trace {trace_id!r}: its details"):
            return read_details(record)

    def image(self, trace_id: str, number: int) -> bytes:
        """An image of a rollout.

        Args:
            trace_id: its trace's id.
            number: which of its images, from 0.

        Raises:
            StoreError: there is none, or its file cannot be read.
        """
        images = self.details(trace_id).get(IMAGES_KEY)
        named = images[number] if isinstance(images, list) and 0 <= number < len(images) else None
        path = named.get("file_path") if isinstance(named, dict) else None
        if not isinstance(path, str):
            raise StoreError(f"trace {trace_id!r} has no image {number}.")
        return self.source.media(path)

    def messages(self, trace_id: str) -> list[dict[str, Any]]:
        """The conversation of a traced rollout.

        Args:
            trace_id: its id or uid, or the beginning of one.

        Raises:
            StoreError: there is none, or its JSON is damaged.
        """
        return [dict(message) for message in self.record(trace_id).messages]
