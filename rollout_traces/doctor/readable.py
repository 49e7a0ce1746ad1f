"""What of Trackio's folder other users of this machine can read, and closing it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rollout_traces.doctor.base import CheckFinding, Examination, check
from rollout_traces.sink.home import GROUP, allowed_mode

SHOWN = 3
"""Files that are named."""


@dataclass(frozen=True)
class Open:
    """What is open to others.

    Attributes:
        paths: folders and files whose mode lets others in, the folder itself first.
        files: those of them that are files.
        foreign: how many belong to other users.
    """

    paths: tuple[Path, ...]
    files: tuple[Path, ...]
    foreign: int


@check("Who can read")
def readable(examination: Examination) -> Iterator[CheckFinding]:
    """Trackio's folder: closed to other users, or which files they can read."""
    from trackio.utils import TRACKIO_DIR

    folder = Path(TRACKIO_DIR)
    if not folder.is_dir():
        yield CheckFinding("folder", "ok", f"{folder} is made for this user alone when something is logged")
        return
    found = open_to_others(folder)
    if not found.paths or found.paths[0] != folder:
        mode = stat.S_IMODE(folder.stat().st_mode)
        yield CheckFinding("folder", "ok", f"{folder} is closed to others (mode {mode:04o})")
        return
    if examination.fix and not found.foreign:
        closed = close(found)
        yield CheckFinding("folder", "ok", f"{folder}: {closed:,} files and folders were closed to others")
        return
    named = ", ".join(path.relative_to(folder).as_posix() for path in found.files[:SHOWN])
    more = f" and {len(found.files) - SHOWN:,} more" if len(found.files) > SHOWN else ""
    mode = stat.S_IMODE(folder.stat().st_mode)
    seen = f"{folder} has mode {mode:04o}: other users can read {len(found.files):,} files"
    yield CheckFinding(
        "folder", "warn", seen + (f" ({named}{more})" if named else ""), _advice(folder, found)
    )


def open_to_others(folder: Path) -> Open:
    """Everything in a folder that others can reach and read; nothing of a folder that they cannot enter.

    Links are not followed.
    """
    kept, paths, files, foreign = allowed_mode(), [], [], 0
    pending = [folder]
    while pending:
        path = pending.pop()
        try:
            found = os.lstat(path)
        except OSError:
            continue
        is_folder, is_file = stat.S_ISDIR(found.st_mode), stat.S_ISREG(found.st_mode)
        if not (is_folder or is_file) or not found.st_mode & 0o777 & ~kept:
            continue
        foreign += found.st_uid != os.geteuid()
        paths.append(path)
        if is_file:
            files.append(path)
        else:
            pending += sorted(path.iterdir()) if os.access(path, os.R_OK | os.X_OK) else []
    return Open(tuple(paths), tuple(sorted(files)), foreign)


def close(found: Open) -> int:
    """Takes from others what they can reach; how many files and folders were changed."""
    kept, closed = allowed_mode(), 0
    for path in found.paths:
        try:
            path.chmod(stat.S_IMODE(path.stat().st_mode) & (kept | 0o7000))
            closed += 1
        except FileNotFoundError:
            continue
    return closed


def _advice(folder: Path, found: Open) -> str:
    if found.foreign:
        return (
            f"{found.foreign:,} of them belong to other users: it is shared. Name the group that may read in {GROUP}, and "
            "have its owner close it."
        )
    return f"`rollout-traces doctor --fix` closes it ({GROUP} names a group that may go on reading)."
