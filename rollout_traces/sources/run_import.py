"""One run's rows into its logger, and one run's files into rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from rollout_traces.logger.rollout_logger import RolloutLogger
from rollout_traces.sources.base import Found, ReadOptions
from rollout_traces.sources.problems import Problems
from rollout_traces.sources.re_encode import ReEncoder
from rollout_traces.sources.rows import RolloutRow, batch_of
from rollout_traces.sources.state import FileState, ImportState
from rollout_traces.sources.steps import Key, StepQueue

MAX_WAITING = 48
"""Hand-overs that may wait on disk before reading goes on."""


class Outcome(Protocol):
    """What is counted while a run is imported."""

    rows: int
    rows_without_tokens: int
    steps: int


class RunImport:
    """Takes a run's rows in their order.

    Args:
        logger: where they go.
        encoder: gives rows of text their ids; None: they stay without.
        outcome: counts.
    """

    def __init__(self, logger: RolloutLogger, encoder: ReEncoder | None, outcome: Outcome) -> None:
        self.logger = logger
        self._encoder = encoder
        self._outcome = outcome
        self._is_known_to_trackio = False
        self.queue = StepQueue(self._hand_over, self._close)

    def add(self, row: RolloutRow) -> None:
        """Takes a row; a step before its own is closed."""
        if self._encoder is not None:
            self._encoder.add_ids(row)
        self._outcome.rows += 1
        self._outcome.rows_without_tokens += row.input_ids is None
        self.queue.add(row)

    def add_batch(self, step: int, split: str, batch: Any) -> None:
        """Takes a batch that a program made."""
        self._wait_for_room()
        self.logger.log_rollouts(batch, step, split)
        self._outcome.rows += batch.n_rows

    def close_all(self) -> None:
        """Closes every open step."""
        self.queue.close_all()

    def _hand_over(self, key: Key, rows: list[RolloutRow]) -> None:
        self._wait_for_room()
        self.logger.log_rollouts(batch_of(rows, decodes_tokens=self._encoder is not None), *key)

    def _close(self, key: Key) -> None:
        self.logger.close_step(*key)
        self._outcome.steps += 1
        if not self._is_known_to_trackio:  # until then a second import would begin another run of this name
            self._is_known_to_trackio = self.logger.flush(60.0)

    def _wait_for_room(self) -> None:
        while self.logger.counters["spooled"] > MAX_WAITING:
            time.sleep(0.05)


class FileImport:
    """Reads a run's files into its rows, and remembers how far each was read.

    Args:
        import_of: what takes the rows of a run, by its name.
        name: the run's name, for files that hold no other.
        state: what was imported before.
        problems: where everything that cannot be read is noted.
        options: how to read.
        progress: called with how many bytes of the files are done.
    """

    def __init__(
        self,
        import_of: Callable[[str], RunImport],
        name: str,
        state: ImportState,
        problems: Problems,
        options: ReadOptions,
        progress: Callable[[int], None],
    ) -> None:
        self._import_of = import_of
        self._name = name
        self._state = state
        self._problems = problems
        self._options = options
        self._progress = progress
        self._current: RunImport | None = None
        self._read: dict[Path, tuple[FileState, set[Key]]] = {}
        self._behind: dict[Path, tuple[int, int, int]] = {}
        self._said_late = False

    def read(self, files: Sequence[Found]) -> tuple[int, int]:
        """Reads what is new.

        Args:
            files: the run's files, in order.

        Returns:
            Files read, and files passed over because all of them was imported before.
        """
        known = {found.path: self._state.file(found.path) for found in files}
        changed = {f.path for f in files if not _is_same(f, known[f.path])}
        steps = {_key(f) for f in files if f.path in changed and f.claim.step is not None}
        done = n_read = 0
        for found in files:
            before = known[found.path]
            if found.path in changed or _key(found) in steps:
                n_read += 1
                start, line = self._start_of(found, before)
                self._read_file(found, start, line, done)
            done += found.size
            self._progress(done)
        return n_read, len(files) - n_read

    def read_further(self, files: Sequence[Found]) -> int:
        """Reads what was added since the last look, into steps that are still open; gives the rows."""
        n = 0
        for found in files:
            behind = self._behind.get(found.path)
            if behind is None:
                n += self._read_file(found, 0, 0, 0)
            elif found.size > behind[0] or (not found.format.lines and found.size != behind[0]):
                n += self._read_file(found, behind[1], behind[2], 0)
        if n and self._current is not None:
            self._current.queue.send_all()
        return n

    def close_steps(self) -> None:
        """Closes open steps and remembers their files as imported."""
        if self._current is not None:
            self._current.close_all()
        self._remember()

    def finish(self) -> None:
        """Closes everything; says what came out of order."""
        self.close_steps()

    def _start_of(self, found: Found, before: FileState | None) -> tuple[int, int]:
        if before is None or found.claim.step is not None or not found.format.lines:
            return 0, 0
        if before.step_start > found.size:
            text = "is shorter than when it was imported; it is imported again as a whole."
            self._problems.add(found.path, "files_that_changed", text)
            return 0, 0
        return before.step_start, before.step_line

    def _read_file(self, found: Found, start: int, line: int, done: int) -> int:
        keys: set[Key] = set()
        step_start, step_line = start, line
        stop, number, last_step, n = start, line, None, 0
        skipped = self._behind.get(found.path, (0, 0, 0))[2] if not found.format.lines else 0
        for row, row_stop, row_number in found.format.rows(
            found,
            self._problems,
            self._options,
            start if found.format.lines else 0,
            line if found.format.lines else 0,
        ):
            if not found.format.lines and row_number <= skipped:
                continue
            self._current = self._import_of(row.run or self._name)
            queue = self._current.queue
            if queue.begins(row) and found.format.lines:
                step_start, step_line = stop, number
                state = FileState(-1, 0, step_start, step_line, last_step)
                self._current.add(row)
                self._remember()
                self._state.write({found.path: state})
            else:
                self._current.add(row)
            keys.add((row.step, row.split))
            last_step = row.step if last_step is None else max(last_step, row.step)
            stop, number = row_stop, row_number
            n += 1
            if n % 64 == 0:
                self._progress(done + min(stop, found.size))
        self._behind[found.path] = (found.size, stop, number)
        state = FileState(found.size, found.mtime_ns, step_start, step_line, last_step)
        self._read[found.path] = (state, keys)
        self._say_late(found)
        self._remember()
        return n

    def _remember(self) -> None:
        """Keeps as imported the files whose steps are all closed."""
        open_keys = self._current.queue.open_keys if self._current is not None else frozenset()
        closed = {path: state for path, (state, keys) in self._read.items() if not keys & open_keys}
        self._state.write(closed)
        for path in closed:
            del self._read[path]

    def _say_late(self, found: Found) -> None:
        if self._current is not None and self._current.queue.late and not self._said_late:
            self._said_late = True
            text = (
                "its steps do not come in order; rows of a step that was closed before are late parts of it."
            )
            self._problems.add(found.path, "rows_out_of_order", text)


def _is_same(found: Found, before: FileState | None) -> bool:
    return before is not None and (before.size, before.mtime_ns) == (found.size, found.mtime_ns)


def _key(found: Found) -> tuple[int | None, str]:
    return found.claim.step, found.claim.split
