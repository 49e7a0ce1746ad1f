"""Recognises a file as one of a format, and reads its rollouts: what all formats share, and a record by key."""

from __future__ import annotations

import abc
import contextlib
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rollout_traces.model.plain_values import INFINITE
from rollout_traces.model.text import MOST
from rollout_traces.model.units import KB, LARGEST_EXACT, MB
from rollout_traces.sources.chat import Record, messages_of
from rollout_traces.sources.lines import Line, first_object, head_objects, head_of, json_lines, read_object
from rollout_traces.sources.problems import Problems
from rollout_traces.sources.rows import RolloutRow, number

TRAIN = "rollout"
EVAL = "eval-rollout"
SQLITE = b"SQLite format 3\0"
"""The first bytes of a SQLite file."""
HEAD = 256 * KB
"""Bytes of a file that recognition looks at."""
MOST_BYTES = 256 * MB
"""Bytes of a file that is read whole, and of a file that an archive unpacks to."""
FIRST_RECORDS = 64
"""Records that say which keys a file has."""

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:,]', re.DOTALL)
PATIENCE = 10
"""Seconds that a SQLite file is waited for while its writer has it."""
_EVAL_WORD = re.compile(
    r"(?:^|[_\-./])(?:eval|evals|val|valid|validation|test)(?:[_\-./]|\d|$)", re.IGNORECASE
)


class Head:
    """The beginning of a file, as recognition sees it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def raw(self) -> bytes:
        """Its first bytes, uncompressed where it is gzip."""
        return head_of(self.path, HEAD)

    @cached_property
    def record(self) -> dict[str, Any] | None:
        """The first JSON object on a line, where the head holds all of it."""
        return first_object(self.raw)

    @cached_property
    def keys(self) -> frozenset[str]:
        """Keys of the first JSON object, as many as the head holds, also of one that it holds a part of."""
        return frozenset(self.record) if self.record is not None else frozenset(top_keys(self.raw))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the folders above the file, the nearest first, and of the file itself first of all."""
        return (self.path.name, *(parent.name for parent in self.path.parents))

    def above(self, *names: str) -> Path:
        """The folder of the file, or the one above those that say what lies in them and not which run it is of.

        Args:
            names: a pattern for the whole name of each such folder, the nearest first; one that does not fit is none.
        """
        folder = self.path.parent
        for name in names:
            folder = folder.parent if re.fullmatch(name, folder.name) else folder
        return folder

    def has(self, *keys: str) -> bool:
        """True when the first object has all of these keys."""
        return self.keys.issuperset(keys)

    def lacks(self, *keys: str) -> bool:
        """True when no object that the head holds has any of these keys; one may lack what others have. False where it holds none whole."""
        return self.record is not None and self._keys_of_records.isdisjoint(keys)

    @cached_property
    def _keys_of_records(self) -> frozenset[str]:
        return frozenset().union(*head_objects(self.raw, FIRST_RECORDS))


@dataclass(frozen=True)
class Claim:
    """A format's claim to a file: what it makes of it.

    Attributes:
        root: the folder that its run is called after: files of one root are one run.
        step: the step that all of its rollouts are of; None where its records say.
        split: the split that all of its rollouts are of.
        lacks: what the file does not have, one phrase each: shown before and after an import.
        order: sorts the files of one step; their names do where it is empty.
        run: what its first rollout's run is called, where the file says so; else the root's name.
    """

    root: Path
    step: int | None = None
    split: str = TRAIN
    lacks: Sequence[str] = ()
    order: str = ""
    run: str | None = None


@dataclass(frozen=True)
class Found:
    """A file that a format claimed.

    Attributes:
        claim: what it makes of the file.
        size: its bytes when it was found.
        mtime_ns: when it had been changed last.
    """

    path: Path
    format: Format
    claim: Claim
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class FileReading:
    """One reading of a file.

    Attributes:
        found: the file.
        problems: where everything that cannot be read is noted.
        trust_pickle: load a file that can run code when it is loaded.
        start: byte to begin at, in a format of lines.
        line: lines before it.
    """

    found: Found
    problems: Problems
    trust_pickle: bool = False
    start: int = 0
    line: int = 0

    @property
    def path(self) -> Path:
        """The file's."""
        return self.found.path

    def records(self) -> Iterator[Line]:
        """Its records, in a format of lines."""
        return json_lines(self.path, self.problems, self.start, self.line)

    def whole(self) -> dict[str, Any] | None:
        """Its one object, in a format of whole files; None where it cannot be read, which is noted."""
        return read_object(self.path, self.problems, MOST_BYTES)

    def fields(self, record: Record, line: int) -> Fields:
        """A record by key."""
        return Fields(record, self.path, line, self.problems)

    def note(self, kind: str, text: str, line: int | None = None) -> None:
        """Notes a problem; arguments as of `Problems.add`."""
        self.problems.add(self.path, kind, text, line)

    def refusing(self, line: int | None, what: str = "it") -> AbstractContextManager[None]:
        """Notes that what is read inside cannot be understood, and goes on behind it; arguments as of `Problems.refusing`."""
        return self.problems.refusing(self.path, line, what)

    def mappings(self, line: int | None, name: str, given: Any) -> list[Record]:
        """The objects of a list; arguments as of `Problems.mappings`."""
        return self.problems.mappings(self.path, line, name, given)


class Format(abc.ABC):
    """A way in which a tool writes its rollouts to disk. One instance for all files; it keeps nothing.

    Attributes:
        name: what `--format` calls it.
        title: who writes it, for a person.
        tokens: whether its rollouts have token ids: `yes`, `no`, or what it depends on.
        lines: files are JSON Lines that a writer appends to, so that reading can go on where it ended.
        behind: steps behind the newest one that rollouts may still come for, where they lie as they arrived.
    """

    name: str = ""
    title: str = ""
    tokens: str = "no"
    lines: bool = True
    behind: int = 0

    @abc.abstractmethod
    def claim(self, head: Head) -> Claim | None:
        """Claims the file where it is of this format; None when it is not.

        Args:
            head: the file's beginning. Looking at more of it than this is too slow.
        """

    def is_final(self, found: Found) -> bool:
        """Tells whether a file that stays as it is has no more to tell: else it is read again from where it ended."""
        return True

    @abc.abstractmethod
    def rows(self, reading: FileReading) -> Iterator[tuple[RolloutRow, int, int]]:
        """Reads the rollouts of a file.

        Yields:
            A rollout, the byte behind its record and the record's number; 0 and 0 where the format has no lines.
        """


class Fields:
    """One record of a dump, its values under any of the names that writers have for them.

    Args:
        line: the record's line or number in its file.
        problems: where what cannot be understood is noted, with line and key.
    """

    def __init__(self, record: Record, path: Path, line: int, problems: Problems) -> None:
        self.record = record
        self.path = path
        self.line = line
        self.problems = problems

    def note(self, kind: str, text: str) -> None:
        """Notes a problem of the record; arguments as of `Problems.add`."""
        self.problems.add(self.path, kind, text, self.line)

    def first(self, *keys: str) -> Any:
        """The value under the first of the keys that has one; None where none has."""
        key = self._known(keys)
        return None if key is None else self.record[key]

    def number(self, *keys: str) -> float | None:
        """A number; None where there is none, which is noted where something else stands there."""
        key = self._known(keys)
        return None if key is None else self.read_number(key, self.record[key])

    def whole(self, *keys: str) -> int | None:
        """A whole number; None as `number` gives it."""
        key = self._known(keys)
        value = None if key is None else self.read_number(key, self.record[key])
        if key is None or value is None:
            return None
        if value != value or abs(value) > LARGEST_EXACT or value != int(value):
            self._refuse(key, self.record[key], "a whole number")
            return None
        return int(value)

    def text(self, *keys: str) -> str | None:
        """A text, also of what is a number; None where there is none."""
        value = self.first(*keys)
        return str(value) if isinstance(value, (str, int, float)) else None

    def messages(self, *keys: str) -> list[dict[str, Any]] | None:
        """The conversation under the first of the keys; parts that are not understood are noted."""
        key = self._known(keys)
        return None if key is None else self.read_messages(key, self.record[key])

    def read_messages(self, key: str, given: Any) -> list[dict[str, Any]] | None:
        """Reads the value of a key as messages."""
        unread: Counter[str] = Counter()
        found = messages_of(given, unread)
        for kind, n in unread.items():
            text = f"{key}: {n} parts of the kind {kind!r} are not understood; they are shown as [{kind}]."
            self.note("parts_not_read", text)
        return found

    def read_number(self, key: str, value: Any) -> float | None:
        """Reads the value of a key as a number."""
        found = number(value)
        if found is None:
            self._refuse(key, value, "a number")
        elif isinstance(value, str) and value not in INFINITE:
            text = f"{key}: {value!r} is text; it is read as a number."
            self.note("numbers_written_as_text", text)
        return found

    def _known(self, keys: tuple[str, ...]) -> str | None:
        return next((key for key in keys if self.record.get(key) is not None), None)

    def _refuse(self, key: str, value: Any, expected: str) -> None:
        text = f"{key}: seen {repr(value)[:MOST]}. Expected {expected}; it is unknown."
        self.note("values_not_understood", text)


class LinesFormat(Format):
    """A format of JSON Lines, each record of which is read by itself."""

    def rows(self, reading: FileReading) -> Iterator[tuple[RolloutRow, int, int]]:
        for record in reading.records():
            rows: list[RolloutRow] = []
            with reading.refusing(record.number):
                rows = list(self.read(reading.fields(record.value, record.number), reading.found))
            for row in rows:
                row.line = record.number
                yield row, record.stop, record.number

    @abc.abstractmethod
    def read(self, fields: Fields, found: Found) -> Iterator[RolloutRow]:
        """Reads the rollouts of a record; what it raises is noted, and the record passed over."""


class FileFormat(Format):
    """A format whose files are read whole."""

    lines = False

    def rows(self, reading: FileReading) -> Iterator[tuple[RolloutRow, int, int]]:
        for n, row in enumerate(self.read(reading), 1):
            yield row, 0, row.line or n

    @abc.abstractmethod
    def read(self, reading: FileReading) -> Iterator[RolloutRow]:
        """Reads the rollouts of a file."""


def were_written_within(paths: Iterable[Path], seconds: float) -> bool:
    """Tells whether one of some files was changed in the last seconds; files that are not there were not."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # sealed or removed by its writer meanwhile
            if time.time() - path.stat().st_mtime < seconds:
                return True
    return False


def read_only(path: Path, how: str = "mode=ro") -> contextlib.closing[sqlite3.Connection]:
    """A SQLite file, to be read and closed again.

    Args:
        how: parameters of its address.
    """
    address = f"{path.resolve().as_uri()}?{how}"
    return contextlib.closing(sqlite3.connect(address, uri=True, timeout=PATIENCE))


def top_keys(raw: bytes) -> list[str]:
    """Keys of the first JSON object in the text, which may be cut off anywhere.

    Args:
        raw: UTF-8 text that begins with an object, or an array of them.
    """
    raw = raw.lstrip(b"\xef\xbb\xbf \t\r\n").removeprefix(b"[").lstrip()
    if not raw.startswith(b"{"):
        return []
    depth, keys, text = 0, [], b""
    for match in _TOKEN.finditer(raw):
        token = match.group()
        if token[:1] == b'"':
            text = token
        elif token in (b"{", b"["):
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
            if depth <= 0:
                break
        elif token == b":" and depth == 1:
            keys.append(text[1:-1].decode("utf-8", "replace"))
    return keys


def split_of(*names: str) -> str:
    """`eval-rollout` where one of the names speaks of evaluation or validation, else `rollout`."""
    return EVAL if any(_EVAL_WORD.search(name) for name in names) else TRAIN


def number_in(pattern: str, *names: str) -> int | None:
    """The number that a pattern's first group finds in the first of the names that it matches."""
    for name in names:
        match = re.search(pattern, name)
        if match:
            return int(match[1])
    return None
