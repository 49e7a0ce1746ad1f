"""Projects and spools that version 0.1.0 wrote are read and recovered.

`version-0.1.0.tar.xz` has a run that is stored and one that waits in a spool. `version-0.1.0-half-stored.tar.xz` has
a run whose worker was killed with `kill -9` after it had stored the scalars and the three traces of step 1, and
nothing else; its trainer was killed after step 3.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import rollout_traces as rt
from rollout_traces.spool.run_folder import run_folders
from tests.worker.readback import ledger_uids, scalar_steps, trace_steps, trace_uids

ARCHIVES = Path(__file__).parent
PROJECT = "before"


def unpacked(name: str, folder: Path) -> Path:
    """Trackio's folder as it was left."""
    with tarfile.open(ARCHIVES / name) as archive:
        archive.extractall(folder, filter="data")
    for path in [folder / "rollout-traces", *(folder / "rollout-traces").rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
    return folder


@pytest.fixture
def home(trackio_dir: Path) -> Path:
    return unpacked("version-0.1.0.tar.xz", trackio_dir)


@pytest.fixture
def half_stored(trackio_dir: Path) -> Path:
    return unpacked("version-0.1.0-half-stored.tar.xz", trackio_dir)


def recover(home: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from rollout_traces.cli import main; main()",
            "recover",
            "--project",
            PROJECT,
        ],
        env={**os.environ, "TRACKIO_DIR": str(home)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_stored_project_is_read(home):
    store = rt.open_store(PROJECT)
    store.refresh()
    ledger = store.ledger("old-run", "rollout", (1, 2))
    assert ledger.n_rows == 16
    assert set(ledger.get("step").tolist()) == {1, 2}
    assert [value for value in ledger.get("attempt").tolist() if value is not None] == []
    assert store.ledger("old-run", "eval-rollout", (2, 2)).n_rows == 4
    traced = [uid for uid in ledger.get("trace_uid").tolist() if uid is not None]
    assert traced


def test_a_spool_that_was_left_is_recovered_whole_and_once(home):
    [folder] = run_folders(home / "rollout-traces" / "spool", PROJECT)
    assert folder.n_waiting() == 7
    recover(home)
    store = rt.open_store(PROJECT)
    store.refresh()
    ledger = store.ledger("left-run", "rollout", (1, 2))
    assert ledger.n_rows == 16
    assert len(set(ledger.get("uid").tolist())) == 16
    assert not folder.path.exists()


def test_a_step_that_was_half_stored_is_completed_and_nothing_of_it_is_doubled(half_stored):
    [folder] = run_folders(half_stored / "rollout-traces" / "spool", PROJECT)
    first = trace_uids(half_stored, project=PROJECT)
    assert (len(first), ledger_uids(half_stored, project=PROJECT)) == (3, {})
    recover(half_stored)
    rows, traces = ledger_uids(half_stored, project=PROJECT), trace_uids(half_stored, project=PROJECT)
    assert (len(rows), set(rows.values())) == (24, {1})
    assert (len(traces), set(traces.values())) == (9, {1})
    assert set(first) < set(traces) < set(rows)
    assert trace_steps(half_stored, project=PROJECT) == {1: 3, 2: 3, 3: 3}
    assert scalar_steps(half_stored, "train/loss", project=PROJECT) == {1: 1, 2: 1, 3: 1}
    assert len(ledger_uids(half_stored, "eval-rollout/steps", project=PROJECT)) == 8
    assert not folder.path.exists()
