"""Looks at what is stored: where and for whom, what waits in the spools, which flags and metrics a project's runs lack."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.filesize import decimal

from rollout_traces.doctor import CheckFinding, Examination, check, fail, note, ok, warn
from rollout_traces.errors import StoreError
from rollout_traces.model.private_files import (
    GROUP,
    NETWORK_TYPES,
    allowed_mode,
    is_network_mount,
    mount_type,
)
from rollout_traces.model.text import counted
from rollout_traces.model.units import GIGABYTE

if TYPE_CHECKING:
    from rollout_traces.store.step_metrics import What


LOW_DISK_GB = 5
PERMISSIONS = stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO
SHOWN = 3
"""Files that are named."""


@check("Storage")
def storage(examination: Examination) -> Iterator[CheckFinding]:
    """The Trackio folder: writable, local, with room."""
    from trackio.utils import TRACKIO_DIR

    folder = Path(TRACKIO_DIR)
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if os.access(existing, os.W_OK):
        yield ok("folder", str(folder))
    else:
        yield fail("folder", f"{folder} cannot be written", "Set TRACKIO_DIR to a folder that can.")
    kind = mount_type(existing)
    if kind in NETWORK_TYPES:
        yield warn(
            "file system",
            f"{kind}, a network mount: SQLite is slow and can lock there",
            "Set TRACKIO_DIR to node-local storage and share with `trackio sync` or a server.",
        )
    else:
        yield ok("file system", kind or "unknown")
    free = shutil.disk_usage(existing).free / GIGABYTE
    if free >= LOW_DISK_GB:
        yield ok("free disk", f"{free:.0f} GB")
    else:
        yield warn(
            "free disk", f"{free:.0f} GB", "Trackio stores 4 to 9 times the text it is given: make room."
        )
    if examination.project:
        database = folder / f"{examination.project}.db"
        if database.exists():
            yield ok(f"project {examination.project}", f"{decimal(database.stat().st_size)} in {database}")
        else:
            yield note(
                f"project {examination.project}",
                "not there yet",
                "It is made by the first logging call; `rollout-traces list` names the projects there are.",
            )


@check("Who can read")
def readable(examination: Examination) -> Iterator[CheckFinding]:
    """Trackio's folder: closed to other users, or which files they can read."""
    from trackio.utils import TRACKIO_DIR

    folder = Path(TRACKIO_DIR)
    if not folder.is_dir():
        yield ok("folder", f"{folder} is made for this user alone when something is logged")
        return
    paths, foreign = open_to_others(folder)
    mode = f"mode {stat.S_IMODE(folder.stat().st_mode):04o}"
    if folder not in paths:
        yield ok("folder", f"{folder} is closed to others ({mode})")
        return
    if examination.fix and not foreign:
        yield ok("folder", f"{folder}: {close(paths):,} files and folders were closed to others")
        return
    files = sorted(path for path in paths if path.is_file())
    named = ", ".join(path.relative_to(folder).as_posix() for path in files[:SHOWN])
    more = f" and {len(files) - SHOWN:,} more" if len(files) > SHOWN else ""
    what = f"read {counted(len(files), 'file')}" if files else "enter it, and read none of its files yet"
    seen = f"{folder} has {mode}: other users can {what}"
    advice = f"`rollout-traces doctor --fix` closes it ({GROUP} names a group that may go on reading)."
    if foreign:
        advice = (
            f"{foreign:,} of them belong to other users: it is shared. Name the group that may read in {GROUP}, and "
            "have its owner close it."
        )
    yield warn("folder", seen + (f" ({named}{more})" if named else ""), advice)


def open_to_others(folder: Path) -> tuple[list[Path], int]:
    """Everything in a folder that others can reach and read, and how much of it belongs to others.

    Nothing of a folder that they cannot enter. Links are not followed.
    """
    paths: list[Path] = []
    kept, foreign = allowed_mode(), 0
    pending = [folder]
    while pending:
        path = pending.pop()
        try:
            found = os.lstat(path)
        except OSError:
            continue
        is_folder, is_file = stat.S_ISDIR(found.st_mode), stat.S_ISREG(found.st_mode)
        if not (is_folder or is_file) or not found.st_mode & PERMISSIONS & ~kept:
            continue
        foreign += found.st_uid != os.geteuid()
        paths.append(path)
        if is_folder and os.access(path, os.R_OK | os.X_OK):
            pending += path.iterdir()
    return paths, foreign


def close(paths: list[Path]) -> int:
    """Takes from others what they can reach; how many files and folders were changed."""
    kept, closed = allowed_mode(), 0
    for path in paths:
        with suppress(FileNotFoundError):
            path.chmod(stat.S_IMODE(path.stat().st_mode) & (kept | ~PERMISSIONS))
            closed += 1
    return closed


@check("Logging path")
def spool(examination: Examination) -> Iterator[CheckFinding]:
    """The spools of this node: where they lie, what waits in them, where their worker processes' logs are."""
    from rollout_traces.worker.recovery import default_roots, find_left, not_all_stored

    root = default_roots()[0]
    if is_network_mount(root):
        yield warn("spool", str(root), "Set TMPDIR to a folder on this node's own disk.")
    else:
        yield ok("spool", str(root))
    found = find_left(examination.project)
    hurt = not_all_stored(examination.project)
    for sentence in hurt:
        yield warn("stored", sentence, "The log there says what happened: worker.log.")
    if not found and not hurt:
        yield ok("waiting", "nothing waits on this node")
    for left in found:
        counters = left.folder.status().get("counters", {})
        said = ", ".join(f"{name} {count}" for name, count in counters.items() if count)
        seen = f"{left.n_records} records wait; {said or 'not processed yet'}; log: {left.folder.log}"
        subject = f"{left.project}/{left.run_name}"
        if left.in_use:
            yield ok(subject, f"in use, {seen}")
        elif left.n_records:
            yield warn(subject, f"left behind, {seen}", "rollout-traces recover")
        else:
            yield note(subject, f"left behind with nothing to store, {seen}")


ADVICE = {
    "flags_off": "Hand over what is missing; a name with a dot is a threshold to set.",
    "metrics_off": "Hand over what is missing, or declare it under `rollout_traces` in the run's config.",
}


@check("Flags")
def flags(examination: Examination) -> Iterator[CheckFinding]:
    """Reports the flags that are off, as the step summary of each run's latest step says them."""
    yield from _findings(examination, "flags", "flags_off")


@check("Metrics")
def metrics(examination: Examination) -> Iterator[CheckFinding]:
    """Reports the metrics that are off, as the step summary of each run's latest step says them."""
    yield from _findings(examination, "metrics", "metrics_off")


def _findings(examination: Examination, name: str, what: What) -> Iterator[CheckFinding]:
    if not examination.project:
        yield note(name, "no project given", f"--project NAME shows which {name} are off.")
        return
    from rollout_traces.store import open_store
    from rollout_traces.store.step_metrics import switched_off

    try:
        store = open_store(project=examination.project)
        store.refresh()
        found = list(switched_off(store, what))
    except StoreError as error:
        yield note(name, str(error))
        return
    for run, split, off in found:
        subject = f"{run}, {split}"
        if off is None:
            yield note(subject, f"no step summary, so nothing is known of its {name}")
        elif off:
            yield note(subject, f"off, and what they lack: {off}", ADVICE[what])
        else:
            yield ok(subject, f"all {name} that were asked for are computed")
