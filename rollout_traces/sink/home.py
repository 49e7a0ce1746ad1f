"""Trackio's folder, made for this user alone where it is missing.

What Trackio writes into it is readable by all by the process's umask, which is the trainer's and stays as it is. A
folder that others may not enter closes all of it.
"""

from __future__ import annotations

import grp
import logging
import os
import stat
import time
from pathlib import Path

from rollout_traces.model.private_files import FOLDER_MODE, make_folder

GROUP = "ROLLOUT_TRACES_GROUP"
"""The environment variable that names a group whose members may read Trackio's folder."""
GROUP_MODE = 0o2750
log = logging.getLogger("rollout_traces")


def make_trackio_folder(folder: Path) -> None:
    """Makes Trackio's folder with mode 0700, or 2750 for `ROLLOUT_TRACES_GROUP`; one that is there stays as it is.

    Where it cannot be made, Trackio says so itself when it writes. A group that is none, or not this user's, is named
    in a warning, and the folder is for this user alone.
    """
    if folder.exists():
        return
    try:
        make_folder(folder)
    except OSError as error:
        log.warning("%s cannot be made: %s.", folder, error.strerror)
        return
    group = shared_group()
    if group is not None:
        try:
            os.chown(folder, -1, group)
            folder.chmod(GROUP_MODE)
        except OSError as error:
            folder.chmod(FOLDER_MODE)
            log.warning(
                "%s=%s: %s; %s is for this user alone.", GROUP, os.environ[GROUP], error.strerror, folder
            )


def shared_group() -> int | None:
    """The id of the group that may read, by `ROLLOUT_TRACES_GROUP`; None for none."""
    name = os.environ.get(GROUP, "")
    if not name:
        return None
    try:
        return int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):
        log.warning("%s=%s: there is no such group; files are for this user alone.", GROUP, name)
        return None


def allowed_mode() -> int:
    """The bits of a file's mode that may be set: those of the owner, with a group also its own for reading."""
    return stat.S_IRWXU if shared_group() is None else 0o7750


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
