"""Where Trackio keeps its projects, and whether it can."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from rollout_traces.doctor.base import CheckFinding, Examination, check

LOW_DISK_GB = 5
NETWORK_FILE_SYSTEMS = {
    "nfs",
    "nfs4",
    "cifs",
    "smbfs",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "fuse.sshfs",
    "9p",
}


@check("Storage")
def storage(examination: Examination) -> Iterator[CheckFinding]:
    """The Trackio folder: writable, local, with room."""
    from trackio.utils import TRACKIO_DIR

    folder = Path(TRACKIO_DIR)
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if os.access(existing, os.W_OK):
        yield CheckFinding("folder", "ok", str(folder))
    else:
        yield CheckFinding(
            "folder", "fail", f"{folder} cannot be written", "Set TRACKIO_DIR to a folder that can."
        )
    kind = file_system(existing)
    if kind in NETWORK_FILE_SYSTEMS:
        yield CheckFinding(
            "file system",
            "warn",
            f"{kind}, a network mount: SQLite is slow and can lock there",
            "Set TRACKIO_DIR to node-local storage and share with `trackio sync` or a server.",
        )
    else:
        yield CheckFinding("file system", "ok", kind)
    free = shutil.disk_usage(existing).free / 1e9
    yield CheckFinding(
        "free disk",
        "ok" if free >= LOW_DISK_GB else "warn",
        f"{free:.0f} GB",
        "" if free >= LOW_DISK_GB else "Trackio stores 4 to 9 times the text it is given: make room.",
    )
    if examination.project:
        database = folder / f"{examination.project}.db"
        if database.exists():
            yield CheckFinding(
                f"project {examination.project}",
                "ok",
                f"{database.stat().st_size / 1e6:.1f} MB in {database}",
            )
        else:
            yield CheckFinding(
                f"project {examination.project}",
                "note",
                "not there yet",
                "It is made by the first logging call; `rollout-traces list` names the projects there are.",
            )


def file_system(path: Path) -> str:
    """The type of the file system a path lies on; `unknown` where /proc does not say."""
    try:
        lines = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return "unknown"
    mounts = [line.split()[1:3] for line in lines if len(line.split()) > 2]
    resolved = str(path.resolve())
    inside = [
        (len(point), kind)
        for point, kind in mounts
        if resolved == point or resolved.startswith(point.rstrip("/") + "/")
    ]
    return max(inside)[1] if inside else "unknown"
