"""Which file systems are on another machine."""

from __future__ import annotations

from pathlib import Path

NETWORK_TYPES = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "lustre",
        "beegfs",
        "gpfs",
        "ceph",
        "glusterfs",
        "afs",
        "9p",
        "fuse.sshfs",
        "fuse.s3fs",
        "fuse.gcsfuse",
        "fuse.juicefs",
        "fuse.rclone",
        "fuse.goofys",
        "fuse.weka",
        "wekafs",
    }
)


def is_network_mount(path: Path, mounts: Path = Path("/proc/mounts")) -> bool:
    """True when a path is on a network file system.

    Args:
        path: the path; its nearest existing parent is looked at.
        mounts: the kernel's table of mounts.
    """
    return mount_type(path, mounts) in NETWORK_TYPES


def mount_type(path: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """The type of a path's file system; empty when it is unknown."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return ""
    where = path.resolve()
    best, kind = -1, ""
    for line in lines:
        point, this = line.split(" ")[1:3]
        point = point.encode().decode("unicode_escape")
        inside = where == Path(point) or Path(point) in where.parents
        if inside and len(point) >= best:
            best, kind = len(point), this
    return kind
