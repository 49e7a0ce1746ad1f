"""Which steps were closed with which hand-overs: written before a step is judged, so that a restart never decides again."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import orjson

from rollout_traces.model.packed_batch import StepKey


class Close(NamedTuple):
    """One close.

    Attributes:
        key: the step, or the late part of one.
        parts: ids of the hand-overs that it was closed with.
        why: `announced`, `next step`, `attempt`, `flush`, `quiet`, `gone`, `rank silent`, or `stored` when
            only its stored summary shows the close.
        n_joins: joins that it was closed with; None where that is not known.
    """

    key: StepKey
    parts: tuple[str, ...]
    why: str
    n_joins: int | None = None


class CloseLog:
    """The closes of a run's spools, a line each.

    Args:
        path: the file; None keeps them in memory, for a spool that is there too.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._of_part: dict[str, Close] = {}
        self._n_closed: dict[StepKey, int] = {}
        written = path.read_bytes() if path is not None and path.exists() else b""
        self._is_torn = not written.endswith(b"\n") and bool(written)
        for line in written.splitlines():
            close = _read(line)
            if close is not None:
                self._take(close)

    def record(self, close: Close) -> None:
        """Writes a close; a line that was cut off before it does not take it along.

        Raises:
            OSError: the disk refused; the step must stay open.
        """
        if self._path is not None:
            line = orjson.dumps(
                {"step": [*close.key], "parts": close.parts, "why": close.why, "joins": close.n_joins}
            )
            data = b"\n" * self._is_torn + line + b"\n"
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._is_torn = os.write(fd, data) < len(data)
            finally:
                os.close(fd)
            if self._is_torn:
                raise OSError(errno.ENOSPC, f"{self._path} has no room for a line")
        self._take(close)

    def of_part(self, batch_id: str) -> Close | None:
        """The close that a hand-over belongs to; None when its step was not closed with it."""
        return self._of_part.get(batch_id)

    def n_closed(self, key: StepKey) -> int:
        """How often a step was closed: once, plus once for each late part."""
        return self._n_closed.get(key._replace(late=0), 0)

    def _take(self, close: Close) -> None:
        self._of_part.update(dict.fromkeys(close.parts, close))
        step = close.key._replace(late=0)
        self._n_closed[step] = max(self._n_closed.get(step, 0), close.key.late + 1)


def _read(line: bytes) -> Close | None:
    """Parses a line; None for a line that was cut off because its writer was killed."""
    try:
        values = orjson.loads(line)
        attempt, step, split, late = values["step"]
        parts: Sequence[str] = values["parts"]
        return Close(StepKey(attempt, step, split, late), tuple(parts), values["why"], values["joins"])
    except (ValueError, KeyError, TypeError):
        return None
