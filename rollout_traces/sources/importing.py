"""Dumps of other tools -> a Trackio project like one that was logged live.

Rows go through a `RolloutLogger`, so ledger, metrics, flags, selection and traces are computed as in training.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rollout_traces.errors import BatchError, ConfigError, NotWritten
from rollout_traces.logger.arguments import check_split
from rollout_traces.logger.attempts import attempts_of, now
from rollout_traces.logger.rollout_logger import RolloutLogger
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.private_files import FolderLock
from rollout_traces.model.units import HOUR, MINUTE
from rollout_traces.sources.base import TRAIN, Fields
from rollout_traces.sources.formats.chat_jsonl import rows_of
from rollout_traces.sources.problems import Problems
from rollout_traces.sources.rows import RolloutRow
from rollout_traces.sources.run_import import FileImport, ImportedRun, ReEncoder, RunImport
from rollout_traces.sources.scan import FoundRun, scan
from rollout_traces.sources.state import FileState, ImportState, only_import_of
from rollout_traces.sources.trackio_traces import PREFIX, project_path, rows_of_project

Progress = Callable[[int, int], None]
"""Called with how much is done and how much there is: bytes of files, or rollouts."""
ALL_ROWS = 1 << 30
KEPT_ONLY = "rollouts that its trainer did not keep: how many there were is unknown"


@dataclass(frozen=True)
class ImportOptions:
    """Options of an import.

    Attributes:
        project: Trackio project.
        name: name of the run; by default its folder's. With several runs it is put before their names.
        file_format: a format's name, or `auto`.
        tokenizer: a transformers tokenizer: rollouts with ids are decoded, those of text re-encoded.
        max_traces_per_step: rollouts that become traces, per step and split; None: all.
        selection: how that cap is spent, as in `RolloutLogger`.
        server_url: self-hosted Trackio server to write to.
        space_id: Hugging Face Space to write to.
        trust_pickle: load files that can run code when they are loaded.
        worker: `thread`, or `process`, which gives way to everything else on the machine.
    """

    project: str
    name: str | None = None
    file_format: str = "auto"
    tokenizer: Any = None
    max_traces_per_step: int | None = None
    selection: str = "portfolio"
    server_url: str | None = None
    space_id: str | None = None
    trust_pickle: bool = False
    worker: str = "thread"


@dataclass
class ImportReport:
    """The report of an import.

    Attributes:
        runs: what became of each run.
        problems: everything that was not imported, or not as it was written.
    """

    project: str
    runs: list[ImportedRun] = field(default_factory=list)
    problems: Problems = field(default_factory=Problems)

    @property
    def rows(self) -> int:
        """Rollouts imported in all."""
        return sum(run.rows for run in self.runs)


def import_rollouts(
    source: Any,
    project: str,
    *,
    progress: Progress | None = None,
    follow: bool = False,
    poll_s: float = 5.0,
    quiet_s: float = MINUTE,
    **options: Any,
) -> ImportReport:
    """Imports rollouts of other tools into a Trackio project.

    Args:
        source: a path or several, to files or folders, or `trackio:PROJECT` for what a trainer wrote to a
            local Trackio project by itself; or an iterable of `RolloutBatch` (with `step`, as
            `(step, batch)` or `(step, split, batch)`), of mappings with `messages` and whatever else, or of
            `RolloutRow`.
        project: Trackio project.
        progress: called with how far it is.
        follow: go on watching the files for what is added; until interrupted.
        poll_s: seconds between two looks.
        quiet_s: seconds without a new row after which a followed run's last step is closed.
        **options: further fields of `ImportOptions`.

    Returns:
        What was imported, and what was not and why.

    Raises:
        ConfigError: a path is not there, a setting cannot be understood, this process writes to another run, or another
            one is importing into the run.
        NotWritten: the disk is full, or what stands there may not be written.
    """
    try:
        return _imported(
            source, ImportOptions(project=project, **options), progress, (poll_s, quiet_s) if follow else None
        )
    except sqlite3.OperationalError as error:
        raise NotWritten(
            f"project {project!r} cannot be written: {error}. Make room, then import again: what is there is not imported twice."
        ) from error


def _imported(
    source: Any, asked: ImportOptions, progress: Progress | None, follow: tuple[float, float] | None
) -> ImportReport:
    report = ImportReport(asked.project)
    call = _Import(asked, report, progress)
    if isinstance(source, (str, Path)):
        source = [source]
    if isinstance(source, (list, tuple)) and source and all(isinstance(p, (str, Path)) for p in source):
        projects = [str(p).removeprefix(PREFIX) for p in source if str(p).startswith(PREFIX)]
        for name in projects:
            call.project(name)
        paths = [Path(p).expanduser() for p in source if not str(p).startswith(PREFIX)]
        if paths:
            call.paths(paths, follow)
    elif isinstance(source, Iterable) and not isinstance(source, (bytes, dict)):
        call.given(source)
    else:
        raise ConfigError(
            f"source: seen {type(source).__name__}. Expected paths, or an iterable of rollouts."
        )
    return report


@dataclass(frozen=True)
class _Import:
    """One call of `import_rollouts`."""

    asked: ImportOptions
    report: ImportReport
    progress: Progress | None

    def paths(self, paths: list[Path], follow: tuple[float, float] | None) -> None:
        """Imports the runs of files and folders."""
        found = scan(paths, self.report.problems, self.asked.file_format)
        total = sum(run.size for run in found)
        done = 0
        if follow is not None:
            if len(found) > 1:
                names = ", ".join(run.name for run in found)
                raise ConfigError(f"follow: {len(found)} runs ({names}). Expected the folder of one.")
            while not found:
                pause(follow[0])
                found = scan(paths, Problems(), self.asked.file_format)
        for run in found:
            self._run(run, self._name_of(run, len(found)), paths, partial(self._advance, done, total), follow)
            done += run.size

    def _advance(self, already: int, total: int, n: int) -> None:
        if self.progress is not None:
            self.progress(already + n, total)

    def _name_of(self, run: FoundRun, n_runs: int) -> str:
        name = self.asked.name
        return run.name if name is None else name if n_runs == 1 else f"{name}/{run.name}"

    def _loggers(self, outcome: ImportedRun) -> _Loggers:
        self.report.runs.append(outcome)
        return _Loggers(self.asked, outcome, self.report)

    def _run(
        self,
        run: FoundRun,
        name: str,
        paths: list[Path],
        progress: Callable[[int], None],
        follow: tuple[float, float] | None,
    ) -> None:
        outcome, problems = (
            ImportedRun(name, str(run.root), dict(run.formats), run.lacks),
            self.report.problems,
        )
        loggers = self._loggers(outcome)
        state, trust_pickle = loggers.state_of(name), self.asked.trust_pickle
        files = FileImport(loggers.import_of, name, state, problems, trust_pickle, progress)
        try:
            outcome.files, outcome.files_known = files.read(run.files)
            if follow is not None:
                self._follow(files, run.root, paths, *follow)
        except KeyboardInterrupt:
            text = "stopped by the user; what was read is imported, and a second import goes on from there."
            problems.add(run.root, "stopped", text)
        finally:
            try:
                files.close_steps()
            finally:
                outcome.rows_known = files.known
                self._say_names(outcome, list(files.names))
                loggers.finish()

    def _say_names(self, outcome: ImportedRun, names: list[str]) -> None:
        """Names the runs that the rows were of, where the files hold them."""
        if not names or names == [outcome.name]:
            return
        outcome.name = ", ".join(names)
        if self.asked.name is not None:
            text = f"its rollouts say what run they are of, {outcome.name}, and went there; a name is for files that hold none."
            self.report.problems.add(Path(outcome.origin), "names_not_used", text)

    def _follow(
        self, files: FileImport, root: Path, paths: list[Path], poll_s: float, quiet_s: float
    ) -> None:
        last = time.monotonic()
        while True:
            pause(poll_s)
            for run in scan(paths, Problems(), self.asked.file_format):
                if run.root == root and files.read(run.files)[0]:
                    files.send()
                    last = time.monotonic()
            if time.monotonic() - last > quiet_s:
                files.close_steps()

    def given(self, source: Iterable[Any]) -> None:
        """Imports what an iterator gives."""
        name = self.asked.name or "imported"
        loggers = self._loggers(ImportedRun(name, "an iterator"))
        importer = loggers.import_of(name)
        try:
            for n, item in enumerate(source, 1):
                _add_given(importer, item, n, self.report.problems)
                self._advance(0, n, n)
        finally:
            loggers.finish()

    def project(self, source: str) -> None:
        """Copies what trainers wrote to a project by themselves; the runs of a copy into itself get names of their own."""
        path = project_path(_trackio_folder(), source)
        loggers = self._loggers(
            ImportedRun(self.asked.name or source, f"{PREFIX}{source}", lacks=(KEPT_ONLY,))
        )
        states: dict[str, tuple[ImportState, FileState]] = {}
        last: dict[str, dict[str, int]] = {}
        try:
            for n, (row, table, number) in enumerate(rows_of_project(path, self.report.problems), 1):
                name = f"{row.run} (imported)" if source == self.asked.project else str(row.run)
                importer = loggers.import_of(name)
                if name not in states:
                    state = loggers.state_of(name)
                    states[name] = state, state.file(path) or FileState(0, 0)
                    last[name] = {"traces": states[name][1].size, "metrics": states[name][1].mtime_ns}
                before = states[name][1]
                if number > (before.size if table == "traces" else before.mtime_ns):
                    importer.add(row)
                    last[name][table] = max(number, last[name][table])
                self._advance(0, n, n)
        finally:
            loggers.close_steps()
            for name, (state, _) in states.items():
                state.keep({path: FileState(last[name]["traces"], last[name]["metrics"])}, name, ())
            loggers.finish()


def pause(seconds: float) -> None:
    """Waits between two looks at a run that is followed."""
    time.sleep(seconds)


def _add_given(importer: RunImport, item: Any, n: int, problems: Problems) -> None:
    """Takes one item of an iterator.

    Args:
        importer: takes its rows or batches.
        item: a `RolloutRow`; a mapping with `messages`; `(step, batch)` or `(step, split, batch)` with a
            `RolloutBatch` or a mapping of its arrays.
        n: its number in the iterator.
        problems: where values that cannot be understood are noted.

    Raises:
        BatchError: it is something else; the text says what was seen.
    """
    if isinstance(item, RolloutRow):
        importer.add(item)
    elif isinstance(item, Mapping):
        for row in rows_of(Fields(item, Path("given"), n, problems), None, TRAIN):
            importer.add(row)
    elif isinstance(item, tuple) and len(item) in (2, 3) and isinstance(item[0], int):
        step, *between, batch = item
        split = between[0] if between else TRAIN
        check_split(split)
        for part in RolloutBatch.from_any(batch):
            importer.add_batch(step, split, part)
    else:
        raise BatchError(
            f"rollouts: seen {type(item).__name__}. Expected (step, batch), (step, split, batch), a mapping with "
            "messages, or a RolloutRow."
        )


class _Loggers:
    """One logger at a time: a file may hold several runs, one after the other."""

    def __init__(self, asked: ImportOptions, outcome: ImportedRun, report: ImportReport) -> None:
        self._asked = asked
        self._outcome = outcome
        self._report = report
        self._encoder = None if asked.tokenizer is None else ReEncoder(asked.tokenizer)
        self._import: RunImport | None = None
        self._states: list[ImportState] = []
        self._attempt: str | None = None
        self._logger: RolloutLogger | None = None
        self._lock: FolderLock | None = None
        self._name = ""

    def named(self, name: str) -> RolloutLogger:
        """The logger of a run; the one before it is finished."""
        if self._logger is None or self._name != name:
            self._finish_logger()
            self._lock = only_import_of(_trackio_folder(), self._asked.project, name)
            self._logger, self._name = _logger_of(self._asked, name, self._outcome), name
            self._go_on()
        return self._logger

    def state_of(self, name: str) -> ImportState:
        """Reads the state of earlier imports into a run, and goes on with the attempt of the last one."""
        run_id = self.named(name).run.id
        state = ImportState(_trackio_folder(), self._asked.project, run_id)
        self._states.append(state)
        self._attempt = state.begin(f"{now()}-001")
        self._go_on()
        return state

    def _go_on(self) -> None:
        """A new attempt would supersede what an earlier import of the run left."""
        if self._attempt is not None and self._logger is not None:
            attempts_of(self._logger.run.id).keep(self._attempt)

    def import_of(self, name: str) -> RunImport:
        """Gives the import that takes the rows of a run; the steps of another one before it are closed."""
        if self._import is None or self._name != name:
            self.close_steps()
            self._import = RunImport(self.named(name), self._encoder, self._outcome, self._report.problems)
        return self._import

    def close_steps(self) -> None:
        """Closes every open step."""
        if self._import is not None:
            self._import.queue.close_all()

    def finish(self) -> None:
        """Closes every open step, and waits until everything is stored."""
        self.close_steps()
        try:
            for state in self._states:
                state.close()
        finally:
            self._finish_logger()
        if self._encoder is None:
            self._outcome.rows_not_decoded = self._outcome.rows - self._outcome.rows_without_tokens
        else:
            self._outcome.rows_re_encoded = self._encoder.counts["re_encoded"]
            share = self._encoder.unknown_share()
            origin = Path(self._outcome.origin)
            if share > 0:
                text = f"{share:.1%} of the ids are not in the tokenizer's vocabulary: it is not the one they were made with."
                self._report.problems.add(origin, "tokenizers_that_do_not_fit", text)
            failed = self._encoder.counts["rendering_failed"]
            if failed:
                text = f"the chat template refused {failed} conversations; they stay without ids."
                self._report.problems.add(origin, "conversations_not_rendered", text)

    def _finish_logger(self) -> None:
        logger, self._logger = self._logger, None
        if logger is None:
            return
        patience = time.monotonic() + HOUR
        before = -1
        while not logger.flush() and time.monotonic() < patience:
            stored = logger.counters["rollouts_stored"]
            if stored == before:
                break
            before = stored
        self._outcome.stored = logger.finish() and self._outcome.stored
        if self._lock is not None:
            self._lock.release()


def _logger_of(asked: ImportOptions, name: str, outcome: ImportedRun) -> RolloutLogger:
    every = asked.max_traces_per_step is None
    made = asked.tokenizer is not None and "token ids" in outcome.lacks
    ids = "re-encoded where the dump has none" if made else "as recorded"
    logger = RolloutLogger(
        asked.project,
        name,
        asked.tokenizer,
        max_rollout_traces_per_step=ALL_ROWS if every else int(asked.max_traces_per_step or 0),
        selection="all" if every else asked.selection,
        server_url=asked.server_url,
        space_id=asked.space_id,
        worker=asked.worker,
        announces_closes=True,
        config={
            "imported": {
                "from": outcome.origin,
                "formats": outcome.formats,
                "lacks": list(outcome.lacks),
                "ids": ids,
            }
        },
    )
    if logger.run.project != asked.project or logger.run.name != name:
        raise ConfigError(
            f"this process writes to the run {logger.run.name!r} of {logger.run.project!r}. Finish it first, or import "
            "in another process."
        )
    return logger


def _trackio_folder() -> Path:
    from trackio.utils import TRACKIO_DIR

    return Path(TRACKIO_DIR)
