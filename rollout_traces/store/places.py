"""Places of Trackio's projects and of their indexes, found without importing Trackio; and of an export."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from rollout_traces.model.names import check_name, file_stem
from rollout_traces.model.private_files import MOUNTS, NETWORK_TYPES, mount_type, why_not_believed

DATABASE_SUFFIX = ".db"
INDEX_FOLDER = "rollout-index"
"""Beside the projects; Trackio takes only `*.db` in its folder for a project."""
LABELS_FOLDER = "rollout-labels"
"""Beside the projects as well, and never removed with an index."""
LINES_SUFFIX = ".jsonl"
SIDE_FOLDER = "rollout-columns"
"""Beside the projects: side tables of each, which no index can make again."""
MARKS_FOLDER = "rollout-marks"
"""Beside the projects: what readers said of each project's incidents."""


def trackio_dir() -> Path:
    """The folder of Trackio's project databases."""
    if os.environ.get("TRACKIO_DIR"):
        return Path(os.environ["TRACKIO_DIR"])
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    home = os.path.expandvars(os.environ.get("HF_HOME", str(cache)))
    return Path(home).expanduser() / "trackio"


def database_path(project: str, folder: Path | None = None) -> Path:
    """The database file of a project.

    Raises:
        ConfigError: it is no name that a file can have.
    """
    check_name("project", project)
    return (folder or trackio_dir()) / f"{file_stem(project)}{DATABASE_SUFFIX}"


def local_projects(folder: Path | None = None) -> list[str]:
    """The projects in Trackio's folder, by name."""
    folder = folder or trackio_dir()
    return sorted(path.stem for path in folder.glob(f"*{DATABASE_SUFFIX}")) if folder.is_dir() else []


def local_index_path(database: Path) -> Path:
    """The index's folder: beside a project's database, or in the cache where it cannot be kept there.

    It is kept in the cache where the folder cannot be written, is another user's, or is on a network mount,
    where SQLite's locks are not safe.
    """
    beside = database.parent / INDEX_FOLDER / database.stem
    usable = _is_kept(beside.parent, beside) and not on_network(database.parent)
    return beside if usable else cached_index_path(str(database.resolve()))


def _is_kept(folder: Path, *inside: Path) -> bool:
    """Tells whether this user can keep files in a folder beside the projects, and nobody else can have.

    Args:
        folder: it need not be there yet.
        inside: a folder in it that is written to.
    """
    nearest = next(path for path in (*inside, folder, folder.parent) if path.exists())
    believed = nearest == folder.parent or why_not_believed(folder, folder, inside) is None
    return believed and is_own(nearest) and os.access(nearest, os.W_OK)


def lines_path(database: Path, folder: str, otherwise: Path) -> Path:
    """A file of lines of a project's own: beside its database, or elsewhere where it cannot be kept there."""
    place = database.parent / folder
    return place / f"{database.stem}{LINES_SUFFIX}" if _is_kept(place) else otherwise


def own_labels_path(address: str) -> Path:
    """The file of labels on what lives elsewhere, in the user's data: labels are no cache.

    Args:
        address: what distinguishes it from all others (a URL and project, a path).
    """
    data = Path(os.environ.get("XDG_DATA_HOME", "~/.local/share")).expanduser() / "rollout-traces" / "labels"
    return data / (_named_after(address) + LINES_SUFFIX)


def cached_index_path(address: str) -> Path:
    """The index's folder of what lives elsewhere, in the user's cache.

    Args:
        address: what distinguishes it from all others (a URL and project, a path).
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "rollout-traces"
    return cache / _named_after(address)


def _named_after(address: str) -> str:
    return hashlib.sha256(address.encode("utf-8", "surrogateescape")).hexdigest()[:20]


def is_address(text: str) -> bool:
    """Tells whether a text is the address of an export and no name of a project."""
    return isinstance(text, str) and ("://" in text or text.startswith((".", "~")) or os.sep in text)


def holds_export(folder: Path) -> bool:
    """Tells whether a folder of this machine holds parquet files, at any depth."""
    return folder.is_dir() and next(folder.rglob("*.parquet"), None) is not None


def is_own(path: Path) -> bool:
    """Tells whether a folder belongs to this user."""
    return path.stat().st_uid == os.geteuid()


def on_network(path: Path, mounts: Path = MOUNTS) -> bool:
    """Tells whether a folder is on a network mount, as far as the system says; any file system of a user's program may be one.

    Args:
        mounts: the system's table of mounts.
    """
    return mount_type(path, mounts).startswith((*NETWORK_TYPES, "fuse."))
