"""The file of labels and notes, and what is labelled now: its lines, folded.

Lines are added to its end under a lock, and go only with the rollouts that they are about.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import stat
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from rollout_traces.errors import StoreError
from rollout_traces.model.private_files import open_file, take_folder, why_not_believed, write_file
from rollout_traces.store.columns.schema import LABELLED, type_of
from rollout_traces.store.labels.entry import Entry, Kind, check_entry, new_entry, read_entry

MOST_BYTES = 64 << 20
"""Bytes of a project's file."""
logger = logging.getLogger("rollout_traces")


class LabelLog:
    """The lines of one project's file.

    Args:
        path: the file; it is made with the first line, mode 0600, its folder 0700.

    Attributes:
        unreadable: lines that are no entry.
        problem: why the file is not read; empty where it is, or is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unreadable = 0
        self.problem = ""
        self._read: tuple[int, int] | None = None
        self._offset = 0

    def append(self, entry: Entry) -> None:
        """Adds a line: one write, at the end, while nobody else writes; it is on the disk when this returns.

        Raises:
            StoreError: the folder is not this user's, the file is full, or it cannot be written.
        """
        line = entry.line()
        try:
            fd = self._locked()
        except OSError as error:
            raise StoreError(f"labels: {self.path} cannot be written ({error.strerror}).") from error
        try:
            size = os.fstat(fd).st_size
            if size + len(line) > MOST_BYTES:
                raise StoreError(f"labels: {self.path} has {size:,} bytes; at most {MOST_BYTES:,} are kept.")
            if size and os.pread(fd, 1, size - 1) != b"\n":
                line = b"\n" + line
            if os.write(fd, line) != len(line):
                os.ftruncate(fd, size)
                raise StoreError(f"labels: {self.path}: the disk is full; nothing was written.")
            os.fsync(fd)
        except OSError as error:
            raise StoreError(f"labels: {self.path} cannot be written ({error.strerror}).") from error
        finally:
            os.close(fd)

    def forget(self, rollouts: Collection[str]) -> int:
        """Takes every line about some rollouts out of the file, for good: nothing says that it was there.

        Args:
            rollouts: what their labels are kept under.

        Returns:
            How many lines went.

        Raises:
            StoreError: the file cannot be written; then it is as it was.
        """
        if not self.path.exists():
            return 0
        rest = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        try:
            fd = self._locked()
            try:
                lines = self.path.read_bytes().splitlines(keepends=True)
                kept = [
                    line for line in lines if (e := read_entry(line)) is None or e.rollout not in rollouts
                ]
                if len(kept) < len(lines):
                    write_file(rest, b"".join(kept))
                    rest.replace(self.path)
            finally:
                os.close(fd)
        except OSError as error:
            rest.unlink(missing_ok=True)
            raise StoreError(f"labels: {self.path} cannot be written ({error.strerror}).") from error
        return len(lines) - len(kept)

    def _locked(self) -> int:
        """The file, open for writing while nobody else writes; it is closed to unlock it."""
        take_folder(self.path.parent, self.path.parent)
        while True:
            fd = open_file(self.path, os.O_RDWR | os.O_APPEND)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(fd), self.path.stat()):
                        return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def news(self) -> tuple[bool, list[Entry]]:
        """The entries that came since the last time; none where the file cannot be read or believed.

        Returns:
            Whether it is another file than before, so that these are all there are; and the entries.
        """
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            known, self._read, self._offset = self._read, None, 0
            return known is not None, []
        except OSError as error:
            return self._not_read(f"{self.path} cannot be read ({error.strerror}).")
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(fd)
            return self._not_read(f"{self.path} is no file.")
        with os.fdopen(fd, "rb") as file:
            identity = (found.st_dev, found.st_ino)
            anew = identity != self._read or found.st_size < self._offset
            if anew and self._read is not None:
                self._offset = self.unreadable = 0
            foreign = why_not_believed(self.path.parent, self.path.parent, (self.path,)) if anew else None
            if foreign is not None:
                return self._not_read(foreign)
            self._read, self.problem = identity, ""
            if found.st_size == self._offset:
                return anew, []
            file.seek(self._offset)
            data = file.read(min(found.st_size, MOST_BYTES) - self._offset)
        whole, _, _ = data.rpartition(b"\n")
        self._offset += len(whole) + 1 if whole or data.startswith(b"\n") else 0
        entries = [read_entry(line) for line in whole.split(b"\n") if line]
        self.unreadable += sum(entry is None for entry in entries)
        return anew, [entry for entry in entries if entry is not None]

    def _not_read(self, why: str) -> tuple[bool, list[Entry]]:
        """Says once why there are no labels; reading goes on without them."""
        if why != self.problem:
            logger.warning("rollout-traces: labels are left out: %s", why)
        known, self._read, self._offset, self.problem = self._read, None, 0, why
        return known is not None, []


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
    """The labels and notes of a project."""

    def __init__(self, path: Path) -> None:
        self.log = LabelLog(path)
        self._now = Labelled()
        self._lock = threading.Lock()

    def now(self) -> Labelled:
        """Reads what others wrote since the last time, and gives all that is labelled."""
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
