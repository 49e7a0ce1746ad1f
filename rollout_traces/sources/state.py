"""How far an import got, file by file, so that a second one takes only what is new.

It is kept beside Trackio's projects and speaks of one Trackio run: when that was deleted, it counts for nothing.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = "rollout-imports"


@dataclass(frozen=True)
class FileState:
    """How far a file was imported.

    Attributes:
        size: its bytes then.
        mtime_ns: when it had been changed last, then.
        step_start: byte where the records of its last step begin; 0 where the format has no lines.
        step_line: lines before that.
        last_step: the step that it ended in; None when it had no rollout.
    """

    size: int
    mtime_ns: int
    step_start: int = 0
    step_line: int = 0
    last_step: int | None = None


class ImportState:
    """What was imported into one run.

    Args:
        folder: Trackio's folder.
        project: the project.
        run_id: Trackio's id of the run.
    """

    def __init__(self, folder: Path, project: str, run_id: str) -> None:
        name = hashlib.sha256(f"{project}\0{run_id}".encode()).hexdigest()[:20]
        path = folder / FOLDER / f"{name}.sqlite3"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._connection = sqlite3.connect(path, timeout=30)
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, size INTEGER, mtime_ns INTEGER,"
            " step_start INTEGER, step_line INTEGER, last_step INTEGER)"
        )

    def file(self, path: Path) -> FileState | None:
        """What is known of a file, None when nothing of it was imported."""
        row = self._connection.execute(
            "SELECT size, mtime_ns, step_start, step_line, last_step FROM files WHERE path = ?",
            (str(path.resolve()),),
        ).fetchone()
        return None if row is None else FileState(*row)

    def write(self, files: Mapping[Path, FileState]) -> None:
        """Keeps how far some files were imported, all or none of them."""
        rows = [
            (str(p.resolve()), s.size, s.mtime_ns, s.step_start, s.step_line, s.last_step)
            for p, s in files.items()
        ]
        with self._connection:
            self._connection.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", rows)

    def close(self) -> None:
        """Closes its file."""
        self._connection.close()
