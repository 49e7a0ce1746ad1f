"""How much disk space a project takes."""

from __future__ import annotations

import time
from pathlib import Path

LOOK_EVERY = 10.0
"""Seconds for which an answer holds."""


class DiskUse:
    """Bytes of a local project: its database and the files that Trackio keeps next to it.

    Args:
        project: Trackio project.
    """

    def __init__(self, project: str) -> None:
        self._project = project
        self._bytes = 0
        self._looked_at: float | None = None

    def bytes(self) -> int:
        """The bytes, measured every ten seconds at most."""
        now = time.monotonic()
        if self._looked_at is None or now - self._looked_at >= LOOK_EVERY:
            self._looked_at = now
            self._bytes = self._look()
        return self._bytes

    def _look(self) -> int:
        import trackio.utils

        root, name = Path(trackio.utils.TRACKIO_DIR), trackio.utils.canonical_project_name(self._project)
        files = list(root.glob(f"{name}.db*"))
        for folder in (root / "media" / name, root / "traces" / name):
            files += folder.rglob("*")
        return sum(_size(path) for path in files)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
