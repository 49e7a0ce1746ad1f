"""A project and a spool that version 0.1.0 wrote are read and recovered."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import rollout_traces as rt
from rollout_traces.spool.run_folder import run_folders

ARCHIVE = Path(__file__).parent / "version-0.1.0.tar.xz"
PROJECT = "before"


@pytest.fixture
def home(trackio_dir: Path) -> Path:
    """Trackio's folder as it was left: run `old-run` is stored, run `left-run` waits in a spool."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(trackio_dir, filter="data")
    for path in [trackio_dir / "rollout-traces", *(trackio_dir / "rollout-traces").rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
    return trackio_dir


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
    store = rt.open_store(PROJECT)
    store.refresh()
    ledger = store.ledger("left-run", "rollout", (1, 2))
    assert ledger.n_rows == 16
    assert len(set(ledger.get("uid").tolist())) == 16
    assert not folder.path.exists()
