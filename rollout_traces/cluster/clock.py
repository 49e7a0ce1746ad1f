"""The clock of a node against rank 0's, and a record's spans of time put on rank 0's clock."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rollout_traces.cluster.connection import NodeConnection
from rollout_traces.model.spans import OF_TIME
from rollout_traces.spool.batch_record import ROLLOUTS
from rollout_traces.spool.record import Record

AGREE = 0.1
"""Seconds by which the clocks of two nodes may differ: those that a network keeps in step differ by less."""


class NodeClock:
    """This node's clock, as far as rank 0's answers tell.

    Args:
        node: this node's name.

    Attributes:
        behind: seconds by which it is behind rank 0's; 0 where they agree.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self.behind = 0.0

    @property
    def said(self) -> str:
        """What a step says whose spans were put right."""
        way = "behind" if self.behind > 0 else "ahead of"
        return (
            f"{OF_TIME} of node {self._node}: its clock is {abs(self.behind):.1f} s {way} rank 0's; "
            "they are put right by that."
        )

    def ask(self, link: NodeConnection, message: dict[str, Any]) -> None:
        """Sends a message, and compares the clock with the time that the answer gives."""
        sent, began = time.time(), time.monotonic()
        answer = link.ask(message)
        took = time.monotonic() - began
        if isinstance(theirs := answer.get("time"), float):
            behind = theirs - sent - took / 2
            self.behind = behind if abs(behind) > AGREE + took else 0.0

    def put_right(self, record: Record) -> Record:
        """A record with its spans of time on rank 0's clock; the same where they are, or where it has none."""
        lists = record.meta.get("row_lists") or {}
        if not self.behind or record.kind != ROLLOUTS or not lists.get("timings"):
            return record
        timings = [_moved(row, self.behind) for row in lists["timings"]]
        notes = [*record.meta.get("notes", ()), self.said]
        return replace(
            record, meta={**record.meta, "row_lists": {**lists, "timings": timings}, "notes": notes}
        )


def _moved(value: Any, seconds: float) -> Any:
    """A row's spans, or its seconds with their `start`; what is no time is left as it came."""
    if isinstance(value, list):
        return [_moved(span, seconds) for span in value]
    if not isinstance(value, Mapping):
        return value
    times = {
        key: at + seconds
        for key in ("start", "end")
        if isinstance(at := value.get(key), (int, float)) and not isinstance(at, bool)
    }
    return {**value, **times}
