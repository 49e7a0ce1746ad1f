"""Where Trackio keeps its projects and where their indexes go, without importing Trackio."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from rollout_traces.private_files import why_not_believed
from rollout_traces.settings.names import check_name, file_stem

DATABASE_SUFFIX = ".db"
INDEX_SUFFIX = ".sqlite3"
"""Not Trackio's suffix: it takes every `*.db` in its folder for a project."""


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
    """The index beside a project's database, or in the cache where that cannot be written or is another user's."""
    beside = database.parent / "rollout-index" / f"{database.stem}{INDEX_SUFFIX}"
    there = [path for path in (beside, beside.parent) if path.exists()]
    nearest = there[0] if there else database.parent
    own = not there or why_not_believed(beside.parent, beside.parent, (beside,)) is None
    usable = own and os.access(nearest, os.W_OK)
    return beside if usable else cached_index_path(str(database.resolve()))


def cached_index_path(address: str) -> Path:
    """The index of what lives elsewhere, in the user's cache.

    Args:
        address: what tells it from all others (a URL and project, a path).
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "rollout-traces"
    return cache / f"{hashlib.sha256(address.encode()).hexdigest()[:20]}{INDEX_SUFFIX}"
