"""What readers said of a project's incidents: muted, acknowledged. A file beside the project, never in it.

One JSON object a line, only ever appended: `{"at", "by", "run", "split", "incident", "what"}`. The last word on an
incident holds. Lines that cannot be read are passed over. An incident's name is `series@2` for the second one of a
series, `series@2@part` for that of a part; muting goes by series and part, so that it also holds for the next one of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import orjson

from rollout_traces.errors import StoreError
from rollout_traces.model.private_files import FILE_MODE, make_folder

WORDS = ("mute", "unmute", "acknowledge", "recall")
"""`recall` takes an acknowledgement back."""
MOST_BYTES = 4_000_000
"""Of the file that are read and written."""
LONGEST = 400
"""Characters of a name."""


@dataclass(frozen=True)
class Marks:
    """What holds of the incidents of a run's split.

    Attributes:
        muted: `(series, part)` pairs.
        acknowledged: name of an incident -> when.
    """

    muted: frozenset[tuple[str, str]] = frozenset()
    acknowledged: Mapping[str, str] = field(default_factory=dict)


class IncidentMarks:
    """The marks of one project.

    Args:
        path: the file; it and its folder are made when the first mark is written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def of(self, run: str, split: str) -> Marks:
        """What holds in a run's split; nothing where the file is missing or damaged."""
        muted: set[tuple[str, str]] = set()
        acknowledged: dict[str, str] = {}
        for line in self._lines():
            if (line.get("run"), line.get("split")) != (run, split):
                continue
            name, what = str(line.get("incident")), line.get("what")
            if what == "mute":
                muted.add(_series_and_part(name))
            elif what == "unmute":
                muted.discard(_series_and_part(name))
            elif what == "acknowledge":
                acknowledged[name] = str(line.get("at", ""))
            elif what == "recall":
                acknowledged.pop(name, None)
        return Marks(frozenset(muted), acknowledged)

    def add(self, run: str, split: str, incident: str, what: str, *, by: str) -> None:
        """Writes a mark.

        Args:
            run: the run's id.
            split: the split.
            incident: the incident's name.
            what: a word of `WORDS`.
            by: who says it.

        Raises:
            StoreError: the word is another, a name is too long, or the file cannot be written.
        """
        if what not in WORDS:
            raise StoreError(f"mark: seen {what!r}. Expected one of {', '.join(WORDS)}.")
        if max(map(len, (run, split, incident, by))) > LONGEST:
            raise StoreError(f"mark: a name of more than {LONGEST} characters.")
        at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        said = {
            "at": at,
            "by": by,
            "run": run,
            "split": split,
            "incident": incident,
            "what": what,
        }
        line = orjson.dumps(said) + b"\n"
        try:
            make_folder(self.path.parent)
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, FILE_MODE)
            try:
                if os.fstat(file).st_size + len(line) > MOST_BYTES:
                    raise StoreError(
                        f"{self.path}: holds {MOST_BYTES:,} bytes of marks, the most that are kept. Move it away."
                    )
                os.write(file, line)
            finally:
                os.close(file)
        except OSError as error:
            raise StoreError(f"{self.path}: the mark could not be written: {error}.") from error

    def _lines(self) -> Iterable[dict[str, Any]]:
        try:
            with self.path.open("rb") as file:
                text = file.read(MOST_BYTES)
        except OSError:
            return
        for line in text.splitlines():
            try:
                read = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            if isinstance(read, dict):
                yield read


def _series_and_part(name: str) -> tuple[str, str]:
    series, _, rest = name.partition("@")
    return series, rest.partition("@")[2]
