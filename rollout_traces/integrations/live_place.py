"""Where the processes that sample beside a trainer say what is in flight.

A file of this node tells them, which the trainer's process writes once its run is known. `rollout-traces run` and verl's
plugin name that file in the environment, which the processes that Ray and AReaL start on this node inherit. One that has no
such file says nothing.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
import weakref
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from rollout_traces.cluster.rendezvous import node_name
from rollout_traces.errors import StoreError
from rollout_traces.integrations.base import contained
from rollout_traces.integrations.run_report import LIVE_PLACE
from rollout_traces.logger.live import NOT_LIVE, LiveRollout, LiveWriter
from rollout_traces.logger.rollout_logger import RolloutLogger
from rollout_traces.model import private_files
from rollout_traces.model.counted_warnings import Warnings
from rollout_traces.model.live_lines import MAX_TEXT, LivePlace

SHARERS = 16
"""Processes that the bytes of a run's live files are shared among."""
PAUSE = 1.0
"""Seconds between two looks for the file."""


@dataclass
class _Announced:
    """What this process knows: the trainer's logger, or the writer of one that samples beside it."""

    logger: weakref.ref[RolloutLogger] | None = None
    writer: LiveWriter | None = None
    written: int = 0
    looked: float = 0.0


_process = _Announced()


def prepare() -> None:
    """Names the file to the processes that this one starts, where no other has."""
    if LIVE_PLACE not in os.environ:
        folder = tempfile.mkdtemp(prefix="rollout-traces-live-")
        os.environ[LIVE_PLACE] = str(Path(folder) / "place.json")
        atexit.register(_remove, folder, os.getpid())


def announce(logger: RolloutLogger | None) -> None:
    """Says that what is sampled from now on belongs to a logger's run, here and in the processes beside this one."""
    known = _process.logger() if _process.logger is not None else None
    if logger is None or known is logger:
        return
    _process.logger = weakref.ref(logger)
    named = os.environ.get(LIVE_PLACE)
    if named:
        place, says_texts = logger.live_place()
        said = {name: str(value) for name, value in vars(place).items()} | {"says_texts": says_texts}
        new = Path(named).with_suffix(".new")
        new.unlink(missing_ok=True)
        private_files.write_file(new, orjson.dumps(said))
        new.replace(named)


def begin(prompt: str | None, **known: Any) -> LiveRollout:
    """Begins a rollout in flight; one that nothing is said of where no trainer told of its run.

    Args:
        prompt: its beginning is shown.
        **known: further arguments of `RolloutLogger.live`.
    """
    if _process.logger is not None:
        logger = _process.logger()
        return NOT_LIVE if logger is None else logger.live(prompt, **known)
    writer = contained("live")(_writer)()
    if writer is None:
        return NOT_LIVE
    return writer.begin({"prompt": prompt[:MAX_TEXT] if prompt else None, **known})


def _writer() -> LiveWriter | None:
    """This process's own, for the run that the file tells of now."""
    named, now = os.environ.get(LIVE_PLACE), time.monotonic()
    if named is None or now - _process.looked < PAUSE:
        return _process.writer
    _process.looked = now
    path = Path(named)
    try:
        written = path.stat().st_mtime_ns
    except FileNotFoundError:
        return _process.writer
    if written != _process.written:
        if reason := private_files.why_not_believed(path.parent, path.parent, [path]):
            raise StoreError(reason)
        if _process.writer is not None:
            _process.writer.close()
        said = orjson.loads(path.read_bytes())
        says_texts = bool(said.pop("says_texts"))
        place = LivePlace(**{**said, "folder": Path(said["folder"]), "top": Path(said["top"])})
        warnings = Warnings(Counter())
        _process.writer = LiveWriter(place, node_name(), warnings, n_ranks=SHARERS, says_texts=says_texts)
        _process.written = written
    return _process.writer


def _remove(folder: str, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)
