"""Finds, lists and processes the spools that killed trainers left behind."""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout_traces.errors import StoreError
from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.spool.record import ROLLOUTS, RecordError, batch_from_record
from rollout_traces.spool.run_folder import (
    Account,
    RunFolder,
    RunManifest,
    account_of,
    run_folders,
    spool_roots,
)
from rollout_traces.worker.main import NamedTargets
from rollout_traces.worker.runner import worker_command

log = logging.getLogger("rollout_traces")

NO_TARGETS = NamedTargets()


@dataclass(frozen=True)
class Left:
    """A run's folder with records that wait.

    Attributes:
        manifest: what the folder says of its run.
        n_records: records that wait.
        in_use: a trainer or a worker is alive: it is theirs.
    """

    folder: RunFolder
    manifest: RunManifest
    n_records: int
    in_use: bool

    @property
    def account(self) -> Account:
        """The account of what was handed over to it."""
        return account_of(self.folder)

    @property
    def project(self) -> str:
        """Trackio project."""
        return self.manifest.project

    @property
    def run_name(self) -> str:
        """Trackio run."""
        return self.manifest.run_name


def find_left(project: str | None = None, roots: Sequence[Path] | None = None) -> list[Left]:
    """The run folders of this node with records that wait. A folder whose manifest is damaged is named in a warning and passed over.

    Args:
        project: of one project; of all by default.
        roots: spool roots; those of Trackio's folder and of this node by default.
    """
    found = []
    for root in roots if roots is not None else default_roots():
        for folder in run_folders(root, project):
            try:
                manifest = folder.manifest()
            except StoreError as error:
                log.warning("passed over: %s", error)
                continue
            found.append(Left(folder, manifest, folder.n_waiting(), folder.is_in_use()))
    return found


def not_all_stored(project: str | None = None) -> list[str]:
    """A sentence for each run of this node of which something is damaged or in a newer format, its folder's end included."""
    said = []
    for root in default_roots():
        for folder in run_folders(root, project):
            try:
                manifest = folder.manifest()
            except StoreError as error:
                said.append(f"{error} {folder.n_waiting()} records wait there.")
                continue
            account = account_of(folder)
            if account.is_hurt:
                said.append(f"{manifest.project}/{manifest.run_name}: {account}. They lie in {folder.path}")
    return said


def default_roots() -> list[Path]:
    """The places where spools of this node may be."""
    import trackio.utils

    return spool_roots(Path(trackio.utils.TRACKIO_DIR))


def recover(left: Left, named: NamedTargets = NO_TARGETS) -> int:
    """Processes a folder in a new process and waits for it.

    Args:
        left: the folder.
        named: where it may be sent in addition to this machine.

    Returns:
        The number of records that still wait.
    """
    with left.folder.open_log() as output, left.folder.waiters.one_more():
        subprocess.run(
            worker_command(left.folder, named),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
        )
    return left.folder.n_waiting()


def recover_in_background(project: str | None = None) -> list[Left]:
    """Starts processing run folders that no living process owns, for instance when a project is opened to be read.

    What goes to a server or a Space is left to `recover`, which asks.

    Returns:
        What is being processed.
    """
    waiting = [left for left in find_left(project) if left.n_records and not left.in_use]
    mine = [left for left in waiting if NO_TARGETS.has_remote(left.manifest)]
    for left in waiting:
        if left not in mine:
            log.warning(
                "%d records of run %s wait for %s: `rollout-traces recover` sends them",
                left.n_records,
                left.run_name,
                left.manifest.remote,
            )
    for left in mine:
        with left.folder.open_log() as output:
            process = subprocess.Popen(
                worker_command(left.folder, NO_TARGETS),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        threading.Thread(target=process.wait, name="rollout-traces-reap", daemon=True).start()
    return mine


def waiting_batches(left: Left) -> Iterator[PackedBatch]:
    """The hand-overs that wait, oldest first; damaged ones are passed over."""
    for reader in left.folder.readers():
        for _, record in reader.records():
            if not isinstance(record, RecordError) and record.kind == ROLLOUTS:
                yield batch_from_record(record)


def describe(batch: PackedBatch, row: int, tokenizer: Any = None) -> dict[str, Any]:
    """A waiting rollout in a few plain values.

    Args:
        tokenizer: decodes the end of it, where there is one.
    """
    rewards = batch.row_floats.get("rewards")
    ids = batch.input_ids[batch.row(row)]
    return {
        "uid": batch.uid(row),
        "step": batch.step,
        "split": batch.split,
        "tokens": int(batch.n_tokens[row]),
        "reward": None if rewards is None else float(rewards[row]),
        "stop_reason": batch.row_value("stop_reasons", row),
        "handed_over": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(batch.handed_over_at)),
        "end": tokenizer.decode(ids[-64:].tolist()) if tokenizer is not None and len(ids) else "",
    }
