"""One trace as Trackio stores it."""

from __future__ import annotations

from dataclasses import dataclass

NO_STEP = -1
"""In place of a step that is no whole number."""


@dataclass(frozen=True, slots=True)
class StoredTrace:
    """One row of Trackio's `traces` table.

    Attributes:
        rowid: its place in the order of arrival.
        trace_id: Trackio's id of it.
        run_id: the run's id.
        run_name: the run's name when it was logged.
        step: the step it was logged at.
        key: the key it was logged under.
        trace_index: its place in the list it was logged in, None for a single trace.
        timestamp: when Trackio stored it.
        messages: JSON text of the messages.
        metadata: JSON text of the metadata.
        spans: JSON text of the spans; None where they were not asked for.
    """

    rowid: int
    trace_id: str
    run_id: str
    run_name: str
    step: int
    key: str
    trace_index: int | None
    timestamp: str
    messages: str | bytes
    metadata: str | bytes
    spans: str | bytes | None

    def __post_init__(self) -> None:
        """SQLite keeps whatever was put into a column: a step that is no whole number becomes -1."""
        if type(self.step) is not int:
            object.__setattr__(self, "step", NO_STEP)

    def without_texts(self) -> StoredTrace:
        """The same trace, its texts let go."""
        return StoredTrace(
            self.rowid, self.trace_id, self.run_id, self.run_name, self.step, self.key, self.trace_index,
            self.timestamp, b"", b"", None,
        )  # fmt: skip
