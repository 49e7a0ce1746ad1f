"""What is labelled now: the lines of the file, folded."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from rollout_traces.errors import StoreError
from rollout_traces.store.columns.kinds import type_of
from rollout_traces.store.columns.schema import LABELLED
from rollout_traces.store.labels.entry import Entry, Kind, check_entry, new_entry
from rollout_traces.store.labels.log import LabelLog

_TABLE = pa.schema([("rollout", pa.string()), *((name, type_of(kind)) for name, kind in LABELLED.items())])


@dataclass(frozen=True)
class Labelled:
    """The labels and notes of one moment.

    Attributes:
        stamp: changes with every change.
        entries: by rollout, in order of time; what was taken back is not among them.
        taken_back: ids of what was: a line that comes again, or late, does not put it back on.
    """

    stamp: int = 0
    entries: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)
    taken_back: frozenset[str] = frozenset()

    def table(self, key: str) -> pa.Table:
        """The columns `labels`, `notes` and `labelled_by` of the rollouts that have any.

        Args:
            key: what the column of rollouts is called.
        """
        return self._columns.rename_columns([key, *LABELLED])

    @cached_property
    def _columns(self) -> pa.Table:
        rows = self.entries.values()
        columns = [
            list(self.entries),
            [_of(row, "label") or None for row in rows],
            ["\n".join(_of(row, "note")) or None for row in rows],
            [list(dict.fromkeys(entry.author for entry in row)) for row in rows],
        ]
        return pa.table(
            [pa.array(values, kind) for values, kind in zip(columns, _TABLE.types, strict=True)],
            schema=_TABLE,
        )


class LabelBook:
    """The labels and notes of a project.

    Args:
        path: their file.
    """

    def __init__(self, path: Path) -> None:
        self.log = LabelLog(path)
        self._now = Labelled()
        self._lock = threading.Lock()

    def now(self) -> Labelled:
        """What is labelled, with what others wrote since the last time."""
        with self._lock:
            anew, news = self.log.news()
            if anew or news:
                before, gone = ({}, frozenset()) if anew else (self._now.entries, self._now.taken_back)
                gone |= {entry.text for entry in news if entry.kind == "removed"}
                self._now = Labelled(self._now.stamp + 1, _folded(before, news, gone), gone)
            return self._now

    def of(self, rollout: str) -> tuple[Entry, ...]:
        """The labels and notes of a rollout, by uid."""
        return self.now().entries.get(rollout, ())

    def names(self) -> dict[str, int]:
        """Every label and how many rollouts have it, most frequent first."""
        counts: dict[str, int] = {}
        for row in self.now().entries.values():
            for name in _of(row, "label"):
                counts[name] = counts.get(name, 0) + 1
        return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))

    def add(
        self,
        kind: Kind,
        rollout: str,
        text: str,
        author: str,
        *,
        turn: int | None = None,
        tokens: tuple[int, int] | None = None,
    ) -> Entry:
        """Writes a label or a note.

        Args:
            kind: `label` or `note`.
            rollout: the rollout's uid.
            text: the label or note.
            author: who writes it.
            turn: on this turn alone.
            tokens: on these tokens alone: the first and the one behind the last.

        Returns:
            What was written; the same label on the same place by anybody is written once.

        Raises:
            StoreError: it cannot be understood or written.
        """
        entry = new_entry(kind, rollout, text, author, turn=turn, tokens=tokens)
        same = next(
            (known for known in self.of(rollout) if kind == "label" and _place(known) == _place(entry)), None
        )
        if same is not None:
            return same
        self.log.append(entry)
        return entry

    def lines(self) -> list[Entry]:
        """Every line of the file, what was taken back and the taking back included."""
        return LabelLog(self.log.path).news()[1]

    def take(self, entries: Sequence[Entry]) -> int:
        """Adds lines that were written elsewhere, with their authors and times; those that are here are passed over.

        Returns:
            How many were added.

        Raises:
            StoreError: one of them is none that can be kept; then none of them is added.
        """
        for entry in entries:
            check_entry(entry)
        here = {entry.id for entry in self.lines()}
        new = [entry for entry in {entry.id: entry for entry in entries}.values() if entry.id not in here]
        for entry in new:
            self.log.append(entry)
        return len(new)

    def remove(self, rollout: str, entry_id: str, author: str) -> Entry:
        """Takes a label or a note back; the line stays in the file.

        Raises:
            StoreError: the rollout has no such entry.
        """
        if not any(entry.id == entry_id for entry in self.of(rollout)):
            raise StoreError("This label or note is not there any more.")
        entry = new_entry("removed", rollout, entry_id, author)
        self.log.append(entry)
        return entry


def _folded(
    before: Mapping[str, tuple[Entry, ...]], news: list[Entry], gone: frozenset[str]
) -> dict[str, tuple[Entry, ...]]:
    found = dict(before)
    for entry in news:
        row = found.get(entry.rollout, ())
        if entry.kind == "removed":
            row = tuple(known for known in row if known.id != entry.text)
        elif entry.id not in gone and all(known.id != entry.id for known in row):
            row = (*row, entry)
        found[entry.rollout] = row
    return {rollout: row for rollout, row in found.items() if row}


def _of(row: tuple[Entry, ...], kind: Kind) -> list[str]:
    return list(dict.fromkeys(entry.text for entry in row if entry.kind == kind))


def _place(entry: Entry) -> tuple[object, ...]:
    return (entry.kind, entry.text, entry.turn, entry.start, entry.stop)
