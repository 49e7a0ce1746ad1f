"""A record of a dump, read by key: a number written as text is read and counted, what is not understood is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollout_traces.model.plain_values import INFINITE
from rollout_traces.sources.chat import messages_of
from rollout_traces.sources.problems import Problems
from rollout_traces.sources.rows import number

_MOST = 2**53
"""Whole numbers above this are none: no step, no version comes near, and no float holds them."""


class Fields:
    """One record, its values under any of the names that writers have for them.

    Args:
        record: the record.
        path: its file.
        line: its line or number there.
        problems: where what cannot be understood is noted, with line and key.
    """

    def __init__(self, record: Mapping[str, Any], path: Path, line: int | None, problems: Problems) -> None:
        self.record = record
        self._path = path
        self._line = line
        self._problems = problems

    def first(self, *keys: str) -> Any:
        """The value under the first of the keys that has one; None where none has."""
        return next((self.record[key] for key in keys if self.record.get(key) is not None), None)

    def number(self, *keys: str) -> float | None:
        """A number; None where there is none, which is noted where something else stands there."""
        key = next((key for key in keys if self.record.get(key) is not None), None)
        return None if key is None else self.read_number(key, self.record[key])

    def whole(self, *keys: str) -> int | None:
        """A whole number; None as `number` gives it."""
        key = next((key for key in keys if self.record.get(key) is not None), None)
        value = None if key is None else self.read_number(key, self.record[key])
        if value is None:
            return None
        if value != value or abs(value) > _MOST or value != int(value):
            self._refuse(str(key), self.record[str(key)], "a whole number")
            return None
        return int(value)

    def text(self, *keys: str) -> str | None:
        """A text, also of what is a number; None where there is none."""
        value = self.first(*keys)
        return str(value) if isinstance(value, (str, int, float)) else None

    def messages(self, *keys: str) -> list[dict[str, Any]] | None:
        """The conversation under the first of the keys; parts that are not understood are noted."""
        key = next((key for key in keys if self.record.get(key) is not None), None)
        return None if key is None else self.read_messages(key, self.record[key])

    def read_messages(self, key: str, given: Any) -> list[dict[str, Any]] | None:
        """What stands under a key as messages."""
        unread: Counter[str] = Counter()
        found = messages_of(given, unread)
        for kind, n in unread.items():
            text = f"{key}: {n} parts of the kind {kind!r} are not understood; they are shown as [{kind}]."
            self._problems.add(self._path, "parts_not_read", text, self._line)
        return found

    def read_number(self, key: str, value: Any) -> float | None:
        """What stands under a key as a number."""
        found = number(value)
        if found is None:
            self._refuse(key, value, "a number")
        elif isinstance(value, str) and value not in INFINITE:
            text = f"{key}: {value!r} is text; it is read as a number."
            self._problems.add(self._path, "numbers_written_as_text", text, self._line)
        return found

    def _refuse(self, key: str, value: Any, expected: str) -> None:
        shown = repr(value)[:80]
        text = f"{key}: seen {shown}. Expected {expected}; it is unknown."
        self._problems.add(self._path, "values_not_understood", text, self._line)
