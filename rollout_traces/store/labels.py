"""Labels and notes that people put on rollouts, in a file of their own beside the project: its lines, and what is labelled now.

Lines are added to its end under a lock, and go only with the rollouts that they are about.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import stat
import threading
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import orjson
import pyarrow as pa

from rollout_traces.errors import StoreError
from rollout_traces.model.plain_values import from_json
from rollout_traces.model.private_files import open_file, replace_file, take_folder, why_not_believed
from rollout_traces.model.text import BRIEF
from rollout_traces.model.transcript import Transcript
from rollout_traces.model.units import MB
from rollout_traces.store.columns import LABELLED, type_of

Kind = Literal["label", "note", "removed"]
KINDS: tuple[Kind, ...] = ("label", "note", "removed")
MOST_LABEL = 64
"""Characters of a label, and of an author's name."""
MOST_NOTE = 4_000
LARGEST = 32_768
"""Bytes of a line."""
_NEVER = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


@dataclass(frozen=True)
class Entry:
    """A label or a note on a rollout, one of its turns, or a range of its tokens.

    Attributes:
        id: its own, unique.
        kind: `label`, `note`, or `removed` where it takes another entry back.
        rollout: the rollout's uid; its trace id where it has none.
        text: the label or the note; of `removed` the id of the entry that it takes back.
        author: who wrote it, as he called himself.
        time: when, ISO 8601, UTC.
        turn: which turn; None for the whole rollout.
        start: first token of a range; None for none.
        stop: the token behind its last.
    """

    id: str
    kind: Kind
    rollout: str
    text: str
    author: str
    time: str
    turn: int | None = None
    start: int | None = None
    stop: int | None = None

    def line(self) -> bytes:
        """The entry as one line of JSON."""
        return orjson.dumps({k: v for k, v in asdict(self).items() if v is not None}) + b"\n"


def new_entry(
    kind: Kind,
    rollout: str,
    text: str,
    author: str,
    *,
    turn: int | None = None,
    tokens: tuple[int, int] | None = None,
) -> Entry:
    """A checked entry with a new id and the time.

    Args:
        kind: see `Entry`.
        rollout: see `Entry`.
        text: see `Entry`; blanks around it are taken off.
        author: who writes it.
        turn: which turn.
        tokens: first token and the one behind the last.

    Raises:
        StoreError: text or author are empty, too long, or hold signs that are not shown; or the place is none.
    """
    start, stop = tokens if tokens is not None else (None, None)
    if turn is not None and turn < 0:
        raise StoreError(f"turn: seen {turn}, expected 0 or more.")
    if start is not None and stop is not None and not 0 <= start < stop:
        raise StoreError(f"tokens: seen {start}:{stop}, expected a first token and, behind it, the end.")
    return Entry(
        os.urandom(8).hex(),
        kind,
        rollout,
        _checked(kind, text, MOST_NOTE if kind == "note" else MOST_LABEL, lines=kind == "note"),
        _checked("author", author, MOST_LABEL, lines=False),
        datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        turn,
        start,
        stop,
    )


def check_entry(entry: Entry) -> None:
    """Refuses an entry that somebody else made and that this package would not have made.

    Raises:
        StoreError: as for `new_entry`, or its id, rollout or time are none.
    """
    tokens = None if entry.start is None or entry.stop is None else (entry.start, entry.stop)
    made = new_entry(entry.kind, entry.rollout, entry.text, entry.author, turn=entry.turn, tokens=tokens)
    _checked("rollout", entry.rollout, MOST_LABEL * 4, lines=False)
    try:
        known = datetime.fromisoformat(entry.time).tzinfo is not None and len(entry.time) <= MOST_LABEL
    except ValueError:
        known = False
    if (
        not known
        or not re.fullmatch(r"[0-9a-f]{16}", entry.id)
        or replace(entry, id=made.id, time=made.time) != made
    ):
        raise StoreError(
            f"labels: the entry {entry.id[:BRIEF]!r} of {entry.time[:BRIEF]!r} is none that can be kept."
        )


def read_entry(line: bytes) -> Entry | None:
    """The entry of a line; None where it is none, such as one that a full disk cut."""
    if len(line) > LARGEST:
        return None
    found = from_json(line)
    return _entry(found) if isinstance(found, Mapping) else None


def _entry(found: Mapping[str, Any]) -> Entry | None:
    texts = [found.get(name) for name in ("id", "kind", "rollout", "text", "author", "time")]
    numbers = [found.get(name) for name in ("turn", "start", "stop")]
    whole = all(isinstance(text, str) for text in texts) and texts[1] in KINDS
    placed = all(number is None or (type(number) is int and 0 <= number < 1 << 40) for number in numbers)
    return Entry(*texts, *numbers) if whole and placed else None  # type: ignore[arg-type]


def _checked(name: str, text: str, most: int, *, lines: bool) -> str:
    text = text.strip() if lines else re.sub(r"\s+", " ", text).strip()
    if not text:
        raise StoreError(f"{name}: empty. Expected a text.")
    if len(text) > most:
        raise StoreError(f"{name}: {len(text):,} characters; at most {most:,}.")
    odd = next((c for c in text if unicodedata.category(c) in _NEVER and not (lines and c in "\n\t")), None)
    if odd is not None:
        raise StoreError(f"{name}: holds U+{ord(odd):04X}, a sign that is not shown. Leave it out.")
    return text


def checked_place(transcript: Transcript | None, turn: int | None, tokens: tuple[int, int] | None) -> None:
    """Refuses a place that a rollout does not have.

    Args:
        transcript: the rollout; None where another tool wrote it, without tokens.
        turn: a turn's number.
        tokens: the first token and the one behind the last.

    Raises:
        StoreError: there is no such turn, or there are no such tokens.
    """
    if transcript is None:
        raise StoreError("This rollout has no turns and tokens of ours; only the whole of it can be named.")
    if turn is not None and not 0 <= turn < len(transcript.turns):
        raise StoreError(f"turn {turn}: this rollout has {len(transcript.turns)} turns, from 0.")
    if tokens is not None and not 0 <= tokens[0] < tokens[1] <= len(transcript.tokens):
        n = len(transcript.tokens)
        has = f"has {n}, from 0" if n else "was logged as text, without tokens"
        raise StoreError(f"tokens {tokens[0]}:{tokens[1]}: this rollout {has}.")


MOST_BYTES = 64 * MB
"""Bytes of a project's file."""
logger = logging.getLogger("rollout_traces")


class LineLog:
    """The lines that people added to one project's file.

    Args:
        path: the file; it is made with the first line, mode 0600, its folder 0700.
        what: what they are called.
        most: bytes of the file.

    Attributes:
        problem: why the file is not read; empty where it is, or is not there.
    """

    def __init__(self, path: Path, what: str, most: int) -> None:
        self.path = path
        self.problem = ""
        self._what = what
        self._most = most

    def append(self, line: bytes) -> None:
        """Adds a line: one write, at the end, while nobody else writes; it is on the disk when this returns.

        Raises:
            StoreError: the folder is not this user's, the file is full, or it cannot be written.
        """
        with self.locked() as fd:
            size = os.fstat(fd).st_size
            if size + len(line) > self._most:
                raise StoreError(
                    f"{self._what}: {self.path} has {size:,} bytes; at most {self._most:,} are kept."
                )
            if size and os.pread(fd, 1, size - 1) != b"\n":
                line = b"\n" + line
            if os.write(fd, line) != len(line):
                os.ftruncate(fd, size)
                raise StoreError(f"{self._what}: {self.path}: the disk is full; nothing was written.")
            os.fsync(fd)

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Lends the file, open for writing while nobody else writes.

        Raises:
            StoreError: the folder is not this user's, or the file cannot be written.
        """
        try:
            take_folder(self.path.parent, self.path.parent)
            is_newest = False
            while not is_newest:
                fd = open_file(self.path, os.O_RDWR | os.O_APPEND)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX)
                    with suppress(FileNotFoundError):
                        is_newest = os.path.samestat(os.fstat(fd), self.path.stat())
                    if is_newest:
                        yield fd
                finally:
                    os.close(fd)
        except OSError as error:
            raise StoreError(f"{self._what}: {self.path} cannot be written ({error.strerror}).") from error

    def lines(self) -> list[bytes]:
        """Its whole lines; none where the file cannot be read or believed, which is said once."""
        data, why = b"", None
        try:
            with os.fdopen(os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
                if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    why = why_not_believed(self.path.parent, self.path.parent, (self.path,))
                    data = b"" if why else file.read(self._most)
                else:
                    why = f"{self.path} is no file."
        except FileNotFoundError:
            pass
        except OSError as error:
            why = f"{self.path} cannot be read ({error.strerror})."
        if why and why != self.problem:
            logger.warning("rollout-traces: %s are left out: %s", self._what, why)
        self.problem = why or ""
        return [line for line in data.split(b"\n")[:-1] if line]

    def stamp(self) -> tuple[int, ...]:
        """Reads numbers that change with the file; where it cannot be read, they say nothing."""
        try:
            found = self.path.lstat()
        except OSError:
            return ()
        return () if self.problem else (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


_TABLE = pa.schema([("rollout", pa.string()), *((name, type_of(kind)) for name, kind in LABELLED.items())])


@dataclass(frozen=True)
class Labelled:
    """The labels and notes of one moment.

    Attributes:
        stamp: changes with every change.
        entries: by rollout, in order of time; what was taken back is not among them.
    """

    stamp: int = 0
    entries: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)

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
        return pa.table(columns, schema=_TABLE)


class LabelBook:
    """The labels and notes of a project."""

    def __init__(self, path: Path) -> None:
        self.log = LineLog(path, "labels", MOST_BYTES)
        self._now = Labelled()
        self._read: tuple[int, ...] = ()
        self._lock = threading.Lock()

    def now(self) -> Labelled:
        """Reads what others wrote since the last time, and gives all that is labelled."""
        with self._lock:
            stamp = self.log.stamp()
            if not stamp or stamp != self._read:
                entries = _standing(self.lines())
                if entries != self._now.entries:
                    self._now = Labelled(self._now.stamp + 1, entries)
                self._read = stamp
            return self._now

    def of(self, rollout: str) -> tuple[Entry, ...]:
        """The labels and notes of a rollout, by uid."""
        return self.now().entries.get(rollout, ())

    def names(self) -> dict[str, int]:
        """Every label and how many rollouts have it, most frequent first."""
        counts = Counter(name for row in self.now().entries.values() for name in _of(row, "label"))
        return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))

    def add(self, kind: Kind, rollout: str, text: str, author: str, **place: Any) -> Entry:
        """Writes a label or a note; arguments as of `new_entry`.

        Returns:
            What was written; the same label on the same place by anybody is written once.

        Raises:
            StoreError: it cannot be understood or written.
        """
        entry = new_entry(kind, rollout, text, author, **place)
        same = next(
            (known for known in self.of(rollout) if kind == "label" and _place(known) == _place(entry)), None
        )
        if same is not None:
            return same
        self.log.append(entry.line())
        return entry

    def lines(self) -> list[Entry]:
        """Every line of the file, what was taken back and the taking back included."""
        return [entry for line in self.log.lines() if (entry := read_entry(line)) is not None]

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
            self.log.append(entry.line())
        return len(new)

    def remove(self, rollout: str, entry_id: str, author: str) -> Entry:
        """Takes a label or a note back; the line stays in the file.

        Raises:
            StoreError: the rollout has no such entry.
        """
        if not any(entry.id == entry_id for entry in self.of(rollout)):
            raise StoreError("This label or note is not there any more.")
        entry = new_entry("removed", rollout, entry_id, author)
        self.log.append(entry.line())
        return entry

    def forget(self, rollouts: Collection[str]) -> int:
        """Takes every line about some rollouts out of the file, for good: nothing says that it was there.

        Args:
            rollouts: what their labels are kept under.

        Returns:
            How many lines went.

        Raises:
            StoreError: the file cannot be written; then it is as it was.
        """
        if not self.log.path.exists():
            return 0
        with self.log.locked():
            lines = self.log.path.read_bytes().splitlines(keepends=True)
            kept = [line for line in lines if (e := read_entry(line)) is None or e.rollout not in rollouts]
            if len(kept) < len(lines):
                replace_file(self.log.path, b"".join(kept))
        return len(lines) - len(kept)


def _standing(lines: list[Entry]) -> dict[str, tuple[Entry, ...]]:
    """The labels and notes by rollout; what was taken back is none, also where its line comes late or again."""
    gone = {entry.text for entry in lines if entry.kind == "removed"}
    found: dict[str, dict[str, Entry]] = {}
    for entry in lines:
        if entry.kind != "removed" and entry.id not in gone:
            found.setdefault(entry.rollout, {}).setdefault(entry.id, entry)
    return {rollout: tuple(row.values()) for rollout, row in found.items()}


def _of(row: tuple[Entry, ...], kind: Kind) -> list[str]:
    return list(dict.fromkeys(entry.text for entry in row if entry.kind == kind))


def _place(entry: Entry) -> tuple[object, ...]:
    return (entry.kind, entry.text, entry.turn, entry.start, entry.stop)
