"""A project in Trackio's folder on this machine, opened read only."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollout_traces.errors import StoreError
from rollout_traces.model.live_lines import LIVE_FOLDER
from rollout_traces.model.text import SAID
from rollout_traces.store.places import (
    SIDE_FOLDER,
    database_path,
    local_index_path,
    local_labels_path,
    local_projects,
    marks_path,
)
from rollout_traces.store.source import Connections, Source, SqlValue
from rollout_traces.trace.images import read_file


class LocalSource(Source):
    """A local project.

    Args:
        project: its name.
        folder: Trackio's folder; by default where Trackio itself looks.

    Raises:
        StoreError: there is no such project.
    """

    # bytes: a text would be decoded, and encoded again to be parsed
    texts = "CAST(messages AS BLOB), CAST(metadata AS BLOB)"

    def __init__(self, project: str, folder: Path | None = None) -> None:
        self.project = project
        self.path = database_path(project, folder)
        self.label = f"project {project!r}"
        if not self.path.is_file():
            known = ", ".join(local_projects(self.path.parent)) or "none"
            raise StoreError(f"no project {project!r} in {self.path.parent}. Projects there: {known}.")
        self._connections = Connections(lambda: open_read_only(self.path))

    def select(self, sql: str, parameters: Sequence[SqlValue] = ()) -> list[tuple[Any, ...]]:
        """Runs one SELECT on the project's database."""
        try:
            with self._connections.one() as connection:
                return connection.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"{self.label}: {self.path} cannot be read ({error}).") from error

    def media_folder(self) -> Path:
        """Finds the folder in which Trackio keeps the project's media files; it may be missing."""
        return self.path.parent / "media" / self.path.stem

    def media(self, path: str) -> bytes:
        """A file in the project's media folder; links that lead out of it are not followed."""
        folder = self.media_folder()
        try:
            own = folder.resolve(strict=True)
            wanted = (folder.parent / path).resolve(strict=True)
            if not wanted.is_relative_to(own):
                raise ValueError("it is not in the project's media folder.")
            return read_file(str(wanted))
        except (OSError, ValueError) as error:
            raise StoreError(f"{self.label}: the file {path[:SAID]!r} cannot be shown: {error}") from error

    def index_path(self) -> Path:
        """Beside the project, in a folder that Trackio does not look into."""
        return local_index_path(self.path)

    def marks_path(self) -> Path:
        """Beside the project, in a folder that Trackio does not look into; in the cache where that cannot be."""
        return marks_path(self.path)

    def labels_path(self) -> Path:
        """Beside the project, and not in the index, which can be removed."""
        return local_labels_path(self.path)

    def live_folder(self) -> Path | None:
        """Beside the project."""
        return self.path.parent / LIVE_FOLDER / self.path.stem

    def side_folder(self) -> str:
        """Beside the project, in a folder that Trackio does not look into."""
        return str(self.path.parent / SIDE_FOLDER / self.path.stem)

    def close(self) -> None:
        """Closes the connections."""
        self._connections.close()


def open_read_only(database: Path, patience: float = 10) -> sqlite3.Connection:
    """A connection to a project's file that cannot write, for any thread.

    Args:
        patience: seconds to wait for whoever has locked it.

    Raises:
        sqlite3.Error: it is none, or cannot be read.
    """
    address = database.resolve().as_uri()
    connection = sqlite3.connect(f"{address}?mode=ro", uri=True, timeout=patience, check_same_thread=False)
    try:
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    except sqlite3.OperationalError:  # a read-only folder has no place for the log's index
        connection.close()
        connection = sqlite3.connect(f"{address}?immutable=1", uri=True, check_same_thread=False)
    return connection
