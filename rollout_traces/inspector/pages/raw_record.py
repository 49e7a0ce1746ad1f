"""The record that an imported rollout was read from, for its page."""

from __future__ import annotations

from dataclasses import dataclass

from rollout_traces.inspector.view import ProjectView
from rollout_traces.store.raw_record import raw_record_of

SHOWN = 200_000
"""Characters that a page shows."""


@dataclass(frozen=True)
class RawRecordAnswer:
    """The text of the record, as its file has it today.

    Attributes:
        text: its beginning.
        n_left_out: characters behind that.
    """

    text: str
    n_left_out: int


def raw_record(view: ProjectView, id: str) -> RawRecordAnswer:
    """The record that a rollout was imported from."""
    text = raw_record_of(view.store, id)
    return RawRecordAnswer(text[:SHOWN], max(len(text) - SHOWN, 0))
