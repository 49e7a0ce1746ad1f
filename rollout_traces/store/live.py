"""Rollouts in flight, read from the files that loggers append to while they sample.

A file is followed: each look reads what is new of it. Times are put on the clock of the machine that keeps the files:
what a writer's clock said when it wrote last is compared with when the file was written.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from rollout_traces.errors import StoreError
from rollout_traces.model.live_lines import MAX_BYTES, MAX_LINE, SUFFIX, InFlight, LiveFile
from rollout_traces.model.private_files import why_not_believed

SEEN_WITHIN = 15.0
"""Seconds since its last word after which a writer is taken for gone, and its rollouts for lost."""
CLOCKS_AGREE = 3.0
"""Seconds by which a writer's clock may seem to differ from the files': it writes a moment after it looked."""
MOST_FOLLOWED = 4
"""Runs whose files are followed at once."""
MOST_FILES = 1000
"""Files of one run that are followed, the newest ones."""
MOST_TEXT = 200
"""Characters of a name that a file says."""
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
Fate = Literal["running", "lost", "done", "aborted"]
"""The fate of a rollout; `lost` was running when its writer was last seen."""


@dataclass(frozen=True)
class LiveWriterSeen:
    """A process that says what is in flight.

    Attributes:
        silent: seconds since it last wrote.
        is_finished: it ended, and said so.
        is_gone: it said nothing for longer than a process that samples does.
        clock: seconds by which its clock is behind the files'; 0 where they agree.
        n_unreadable: lines of its file that are none.
        texts: whether it says prompts and words.
    """

    node: str
    rank: int
    silent: float
    is_finished: bool
    is_gone: bool
    clock: float
    n_unreadable: int
    texts: bool


@dataclass(frozen=True)
class LiveRow:
    """A rollout, and what is known of it at the time of the look.

    Attributes:
        rollout: what was said of it; its times are the writer's.
        writer: who said it.
        fate: what became of it.
        seconds: since it began, until it ended or was last seen.
        in_stage: the same of its stage.
        silent: seconds since the last word of it.
    """

    rollout: InFlight
    writer: LiveWriterSeen
    fate: Fate
    seconds: float
    in_stage: float
    silent: float


@dataclass(frozen=True)
class LiveLook:
    """A run's rollouts in flight, and those that ended and are still in the files.

    Attributes:
        run: the run's name.
        run_id: Trackio's id of it.
        rows: in no order.
        writers: the processes.
    """

    run: str
    run_id: str
    rows: list[LiveRow]
    writers: list[LiveWriterSeen]


class LiveRuns:
    """The live files of a project.

    Args:
        folder: where they are; None for a project whose files are elsewhere.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._followed = lru_cache(MOST_FOLLOWED)(_FollowedRun)
        self._known: dict[Path, tuple[str, str]] = {}
        self._lock = threading.Lock()

    def look(self, run: str | None = None) -> LiveLook | None:
        """Looks at what is in flight now.

        Args:
            run: a run's name or id; the one that was seen last when None.

        Returns:
            None where nothing was ever said of the run.

        Raises:
            StoreError: the files are elsewhere, or another user may have written them.
        """
        if self._folder is None:
            raise StoreError(
                "Rollouts in flight are known only where the run writes its files, in Trackio's folder: "
                "an export, a server or a Space has none."
            )
        with self._lock:
            for folder in _newest_first(self._folder):
                if run is None or run in (folder.name, *self._names(folder)):
                    return self._followed(folder).look()
        return None

    def knows(self, run_id: str) -> bool:
        """Tells whether anything was ever said of what a run has in flight."""
        return self._of(run_id) is not None

    def forget(self, run_ids: Collection[str]) -> None:
        """Removes the live files of runs."""
        for folder in filter(None, map(self._of, run_ids)):
            shutil.rmtree(folder, ignore_errors=True)

    def _of(self, run_id: str) -> Path | None:
        """The folder of a run, among those that are there: an id that a file says may lead anywhere."""
        if self._folder is None or not self._folder.is_dir():
            return None
        return next((each for each in self._folder.iterdir() if each.name == run_id and each.is_dir()), None)

    def _names(self, folder: Path) -> tuple[str, str]:
        """A run's name and id, as the first of its files says that says one; empty while none does."""
        if folder not in self._known and why_not_believed(folder, folder) is None:
            files = (path for path in sorted(folder.glob(f"*{SUFFIX}")) if path.is_file())
            heads = (_FollowedFile(path).head() for path in files)
            if head := next((head for head in heads if "run" in head), None):
                self._known[folder] = _named([head], "run"), _named([head], "run_id")
        return self._known.get(folder, ("", ""))


def _newest_first(folder: Path) -> list[Path]:
    """The folders of a project's runs, the one that was begun last first."""
    if not folder.is_dir():
        return []
    if reason := why_not_believed(folder, folder.parent):
        raise StoreError(reason)
    with os.scandir(folder) as entries:
        found = [(each.stat(follow_symlinks=False), each.path) for each in entries]
    runs = [(at.st_mtime_ns, path) for at, path in found if stat.S_ISDIR(at.st_mode)]
    return [Path(path) for _, path in sorted(runs, reverse=True)]


class _FollowedRun:
    """The live files of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, _FollowedFile] = {}

    def look(self) -> LiveLook:
        if reason := why_not_believed(self.folder, self.folder):
            raise StoreError(reason)
        with os.scandir(self.folder) as entries:
            stats = {each.name: each.stat(follow_symlinks=False) for each in entries}
        mine = {
            name: found
            for name, found in stats.items()
            if name.endswith(SUFFIX) and stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
        }
        newest = sorted(mine, key=lambda name: -mine[name].st_mtime_ns)[:MOST_FILES]
        self._files = {name: self._files.get(name) or _FollowedFile(self.folder / name) for name in newest}
        for followed in self._files.values():
            followed.follow()
        heads = [each.said.head for each in self._files.values()]
        look = LiveLook(_named(heads, "run"), _named(heads, "run_id"), [], [])
        for followed in self._files.values():
            now = max(time.time(), followed.written)
            writer = followed.writer(now)
            look.writers.append(writer)
            look.rows.extend(_row(rollout, writer, now) for rollout in followed.said.rollouts.values())
        return look


class _FollowedFile:
    """One file, as far as it was read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = self._at = 0
        self.written = 0.0
        self.said = LiveFile()

    def follow(self) -> None:
        """Reads what is new; a file that was written anew is read from its beginning."""
        try:
            fd = os.open(self._path, _FLAGS)
        except OSError:
            return
        with os.fdopen(fd, "rb", buffering=0) as file:
            found = os.fstat(fd)
            if found.st_ino != self._inode or found.st_size < self._at:
                self._inode, self._at, self.said = found.st_ino, 0, LiveFile()
            file.seek(self._at)
            data = file.read(max(2 * MAX_BYTES - self._at, 0))
            self._at += len(data)
            self.said.feed(data)
            self.written = os.fstat(fd).st_mtime

    def head(self) -> dict[str, object]:
        """Reads what the file says of its writer, and not the rest."""
        with contextlib.suppress(OSError), os.fdopen(os.open(self._path, _FLAGS), "rb") as file:
            first = LiveFile()
            first.feed(file.readline(MAX_LINE))
            return first.head
        return {}

    def writer(self, now: float) -> LiveWriterSeen:
        """Whose it is, and when that was seen last."""
        said, head = self.said, self.said.head
        behind = 0.0 if said.beat is None else self.written - said.beat
        silent = max(now - self.written, 0.0)
        rank = head.get("rank")
        return LiveWriterSeen(
            node=str(head.get("node", "unknown"))[:MOST_TEXT],
            rank=rank if isinstance(rank, int) else 0,
            silent=silent,
            is_finished=said.is_finished,
            is_gone=said.is_finished or silent > SEEN_WITHIN,
            clock=0.0 if abs(behind) <= CLOCKS_AGREE else behind,
            n_unreadable=said.n_unreadable,
            texts=head.get("texts") is not False,
        )


def _row(rollout: InFlight, writer: LiveWriterSeen, now: float) -> LiveRow:
    if rollout.has_ended:
        fate: Fate = "done" if rollout.stage == "done" else "aborted"
        until = rollout.at + writer.clock
    else:
        fate = "lost" if writer.is_gone else "running"
        until = now - writer.silent if writer.is_gone else now
    return LiveRow(
        rollout,
        writer,
        fate,
        seconds=max(until - rollout.begun - writer.clock, 0.0),
        in_stage=max(until - rollout.since - writer.clock, 0.0),
        silent=max(until - rollout.at - writer.clock, 0.0),
    )


def _named(heads: list[dict[str, object]], key: str) -> str:
    return next((str(head[key])[:MOST_TEXT] for head in heads if isinstance(head.get(key), str)), "")
