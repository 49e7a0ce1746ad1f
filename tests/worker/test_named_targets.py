"""A manifest sends data nowhere that this user did not name: not by a worker, not by recovery, not by opening a page."""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import stat
import threading
from pathlib import Path

import pytest
import trackio.context_vars
from typer.testing import CliRunner

import rollout_traces as rt
from rollout_traces.cli import build_app
from rollout_traces.errors import StoreError
from rollout_traces.spool.run_folder import RunFolder, RunManifest, run_folders
from rollout_traces.worker.main import main
from rollout_traces.worker.named_targets import NamedTargets, parse_arguments
from rollout_traces.worker.recovery import find_left, recover, recover_in_background
from rollout_traces.worker.runner import worker_command
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer
from tests.other_user import give_away
from tests.worker.readback import ledger_uids


def manifest(**fields) -> RunManifest:
    return RunManifest("p", "run", "id", **fields)


def leave_spool(trackio_dir: Path, **changes) -> RunFolder:
    """What a trainer of this user left behind, with a manifest that was changed since."""
    logger = rt.RolloutLogger("p", "run", tiny_tokenizer(), max_rollout_traces_per_step=2)
    logger._pipeline.start = lambda: None
    logger.log_rollouts(batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=1, group_size=3)), step=1)
    logger._pipeline._writer.close()
    logger.run.finish()
    trackio.context_vars.current_run.set(None)
    [folder] = run_folders(trackio_dir / "rollout-traces" / "spool")
    folder.write_manifest(dataclasses.replace(folder.manifest(), **changes))
    return folder


class Listener:
    """Counts who connects."""

    def __init__(self) -> None:
        self.n_connected = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.n_connected += 1
            connection.close()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def listener(monkeypatch):
    monkeypatch.setenv("TRACKIO_WRITE_TOKEN", "secret")
    listener = Listener()
    yield listener
    listener.close()


class TestARemote:
    def test_that_nobody_named_gets_nothing_from_a_worker(self, trackio_dir, listener, caplog):
        folder = leave_spool(trackio_dir, server_url=listener.address)
        assert main([str(folder.path)]) == 1
        assert listener.n_connected == 0 and folder.n_waiting() == 1
        assert f"goes to {listener.address}, which nobody named here" in caplog.text

    def test_gets_nothing_when_a_page_is_opened(self, trackio_dir, listener, caplog):
        leave_spool(trackio_dir, server_url=listener.address)
        assert recover_in_background("p") == []
        assert f"wait for {listener.address}" in caplog.text
        assert listener.n_connected == 0

    def test_gets_nothing_from_the_command_unless_it_is_named(self, trackio_dir, listener):
        folder = leave_spool(trackio_dir, server_url=listener.address)
        done = CliRunner().invoke(build_app(["recover"]), ["recover"])
        assert done.exit_code == 1 and f"To send it: --remote {listener.address}" in done.output
        assert listener.n_connected == 0 and folder.n_waiting() == 1
        other = CliRunner().invoke(build_app(["recover"]), ["recover", "--remote", "http://127.0.0.1:1"])
        assert other.exit_code == 1 and listener.n_connected == 0

    def test_gets_nothing_from_the_next_logger_of_the_project(self, trackio_dir, listener):
        folder = leave_spool(trackio_dir, server_url=listener.address)
        logger = rt.RolloutLogger("p", "next")
        logger.log_scalars({"a": 1.0}, step=1)
        assert logger.finish(180)
        assert listener.n_connected == 0 and folder.n_waiting() == 1

    def test_that_is_named_is_allowed(self):
        named = NamedTargets(remotes=("http://one", "user/space"))
        for fields in ({}, {"server_url": "http://one"}, {"space_id": "user/space"}):
            named.check_remote(manifest(**fields))
        with pytest.raises(StoreError, match="goes to http://two"):
            named.check_remote(manifest(server_url="http://two"))

    def test_is_named_by_the_run_that_logs_to_it(self):
        known = manifest(server_url="http://one", options={"all_rows_folder": "/rows"})
        named = NamedTargets.of(known)
        command = worker_command(RunFolder(Path("spool")), named)
        assert parse_arguments(command[3:]) == (Path("spool"), named)
        named.check_remote(known)

    def test_in_the_environment_does_not_take_a_run_that_stays_here(self, trackio_dir, listener, monkeypatch):
        folder = leave_spool(trackio_dir)
        monkeypatch.setenv("TRACKIO_SERVER_URL", listener.address)
        [left] = find_left("p")
        assert recover(left) == 0 and not folder.path.exists()
        assert listener.n_connected == 0
        assert sum(ledger_uids(trackio_dir).values()) == 3


class TestAFolderForAllRows:
    def test_elsewhere_is_not_written_unless_it_is_named(self, trackio_dir, tmp_path, caplog):
        elsewhere = tmp_path / "elsewhere"
        folder = leave_spool(trackio_dir)
        options = {**folder.manifest().options, "all_rows_folder": str(elsewhere)}
        folder.write_manifest(dataclasses.replace(folder.manifest(), options=options))
        with caplog.at_level(logging.WARNING):
            assert main([str(folder.path)]) == 0
        assert not elsewhere.exists() and f"--all-rows-folder {elsewhere}" in caplog.text
        assert sum(ledger_uids(trackio_dir).values()) == 3, "the rest is stored"

    def test_is_allowed_below_trackios_or_where_it_is_named(self, tmp_path):
        inside, elsewhere = str(tmp_path / "trackio" / "rows"), str(tmp_path / "elsewhere")
        named = NamedTargets(folders=(elsewhere,))
        for folder in (None, inside, elsewhere):
            assert named.all_rows_folder({"all_rows_folder": folder}, tmp_path / "trackio") == folder
        sneaked = str(tmp_path / "trackio" / ".." / "other")
        with pytest.raises(StoreError, match="outside of"):
            named.all_rows_folder({"all_rows_folder": sneaked}, tmp_path / "trackio")


class TestAnotherUsersSpool:
    @pytest.mark.parametrize(
        "which", [".", "..", "../..", "../../..", "manifest.json", "tokenizer", "from-*"]
    )
    def test_is_not_listed_and_not_processed(self, trackio_dir, which, caplog):
        folder = leave_spool(trackio_dir)
        planted = next(folder.path.glob(which)) if "*" in which else (folder.path / which).resolve()
        said = give_away(planted)
        assert find_left("p") == []
        assert f"passed over: {planted} {said}" in caplog.text
        assert main([str(folder.path)]) == 1
        assert folder.n_waiting() == 1 and ledger_uids(trackio_dir) == {}

    def test_that_stands_where_ours_would_be_has_the_logger_go_elsewhere(
        self, trackio_dir, tmp_path, monkeypatch, caplog
    ):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
        (tmp_path / "tmp").mkdir()
        (trackio_dir / "real").mkdir()
        (trackio_dir / "rollout-traces").symlink_to(trackio_dir / "real")
        logger = rt.RolloutLogger("p", "run")
        logger.log_scalars({"a": 1.0}, step=1)
        assert logger._pipeline.folder.path.is_relative_to(tmp_path / "tmp")
        assert logger.finish(180)
        assert "is a link" in caplog.text and list((trackio_dir / "real").iterdir()) == []


class TestOurOwn:
    def test_spool_is_closed_to_others_whatever_the_umask(self, trackio_dir):
        before = os.umask(0)
        try:
            leave_spool(trackio_dir)
        finally:
            os.umask(before)
        ours = [trackio_dir / "rollout-traces", *(trackio_dir / "rollout-traces").rglob("*")]
        assert {path.name for path in ours} >= {"manifest.json", "tokenizer.json", "spool"}
        assert [path for path in ours if stat.S_IMODE(path.lstat().st_mode) & 0o077] == []
