"""Problems of reading, by file and line: said once, counted always, never in the way of the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollout_traces.model.text import MOST

NOT_UNDERSTOOD = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors of reading a record whose values are not of the kinds that its writer writes."""
MAX_KEPT = 200
"""Sentences kept in all; further ones are only counted."""
MAX_KEPT_PER_KIND = 20
"""Sentences kept of one kind, so that a thousand broken lines do not hide a refused file."""


@dataclass(frozen=True)
class ImportProblem:
    """One thing that was not imported, or not as it was written.

    Attributes:
        path: the file or folder.
        line: 1-based line or row of the file; None when it speaks of the whole file.
        kind: what it is counted under, snake case.
        text: one sentence: what was seen, what was expected, what was done about it.
    """

    path: Path
    line: int | None
    kind: str
    text: str

    def __str__(self) -> str:
        place = str(self.path) if self.line is None else f"{self.path}:{self.line}"
        return f"{place}: {self.text}"


@dataclass
class Problems:
    """Collects problems.

    Attributes:
        kept: the first of each kind.
        counts: how many there were of each kind.
    """

    kept: list[ImportProblem] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    _said: set[tuple[Path, str, str]] = field(default_factory=set, repr=False)

    def add(self, path: Path, kind: str, text: str, line: int | None = None) -> None:
        """Notes a problem.

        Args:
            path: the file or folder.
            kind: what it is counted under.
            text: one sentence.
            line: 1-based line or row of the file.
        """
        self.counts[kind] += 1
        if self.counts[kind] <= MAX_KEPT_PER_KIND and len(self.kept) < MAX_KEPT:
            self.kept.append(ImportProblem(path, line, kind, text))

    @contextmanager
    def refusing(self, path: Path, line: int | None, what: str = "it") -> Iterator[None]:
        """Notes that what is read inside cannot be understood, and goes on behind it.

        Args:
            path: the file or folder.
            line: 1-based line or row of the file.
            what: what is passed over then.
        """
        try:
            yield
        except NOT_UNDERSTOOD as error:
            text = f"cannot be understood ({error!r}); {what} is passed over."
            self.add(path, "rows_refused", text, line)

    def mappings(self, path: Path, line: int | None, name: str, given: Any) -> list[Mapping[str, Any]]:
        """The objects of a list; what else stands in it, or in its place, is noted.

        Args:
            path: the file or folder.
            line: 1-based line or row of the file.
            name: the key that the list stands under.
            given: what stands there; None is an empty list.
        """
        listed = given if isinstance(given, list) else [] if given is None else [given]
        for each in listed:
            if not isinstance(each, Mapping):
                text = f"{name}: seen {repr(each)[:MOST]}. Expected objects; it is left out."
                self.add(path, "values_not_understood", text, line)
        return [each for each in listed if isinstance(each, Mapping)]

    def once(self, path: Path, kind: str, text: str, line: int | None = None) -> None:
        """Notes a problem of a file unless the same was noted of it before; arguments as of `add`."""
        if (path, kind, text) not in self._said:
            self._said.add((path, kind, text))
            self.add(path, kind, text, line)

    def summary(self) -> str:
        """Says in one line how many there were of each kind; empty when there were none."""
        return ", ".join(f"{kind.replace('_', ' ')}: {n}" for kind, n in self.counts.most_common())


def said_of(path: Path, error: Exception) -> str:
    """Cuts the file's name off the text of an error about the file."""
    return str(error).removeprefix(f"{path}: ")
