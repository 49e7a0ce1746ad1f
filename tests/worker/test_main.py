"""The worker as a process: light, alone, restarted, and gone when it should be."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import trackio.context_vars
from typer.testing import CliRunner

import rollout_traces as rt
from rollout_traces.cli import build_app
from rollout_traces.errors import StoreError
from rollout_traces.spool.run_folder import RunFolder, RunManifest, run_folders
from rollout_traces.worker.main import NamedTargets, main, parse_arguments
from rollout_traces.worker.priority import NICENESS
from rollout_traces.worker.recovery import find_left, recover, recover_in_background
from rollout_traces.worker.runner import worker_command
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer
from tests.other_user import give_away
from tests.worker.readback import ledger_uids, trace_uids


def make_batch():
    return batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=1, group_size=3))


def sidecars(folder: Path) -> list[psutil.Process]:
    """Living worker processes of a Trackio folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "rollout_traces.worker.main" in command and any(str(folder) in part for part in command):
            found.append(process)
    return found


def zombies() -> list[psutil.Process]:
    """Children of this process that ended and were not waited for."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # waited for since the list was made
            if child.status() == psutil.STATUS_ZOMBIE:
                found.append(child)
    return found


def nice_of_threads(pid: int) -> set[int]:
    """The niceness of each thread of a process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return {int((task / "stat").read_text().rpartition(")")[2].split()[16]) for task in tasks}


def wait_for(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


@pytest.fixture
def logger(trackio_dir):
    logger = rt.RolloutLogger("p", "run", tiny_tokenizer(), max_rollout_traces_per_step=2)
    yield logger
    logger.finish(180)


class TestLife:
    def test_starts_with_the_first_hand_over_and_not_before(self, logger, trackio_dir):
        time.sleep(0.3)
        assert sidecars(trackio_dir) == []
        logger.log_rollouts(make_batch(), step=1)
        wait_for(lambda: len(sidecars(trackio_dir)) == 1)

    def test_is_one_for_all_loggers_of_a_run(self, trackio_dir):
        import trackio

        run = trackio.init(project="p", name="shared", embed=False)
        loggers = [rt.RolloutLogger("p", tokenizer=tiny_tokenizer()) for _ in range(2)]
        for step, logger in enumerate(loggers):
            logger.log_rollouts(make_batch(), step=step)
        assert all(logger.flush(180) for logger in loggers)
        wait_for(lambda: len(sidecars(trackio_dir)) == 1)
        assert all(logger.finish(180) for logger in loggers)
        run.finish()
        assert sum(ledger_uids(trackio_dir).values()) == 6

    def test_is_started_again_when_it_dies_and_nothing_is_lost(self, logger, trackio_dir):
        logger.log_rollouts(make_batch(), step=1)
        assert logger.flush(180)
        [first] = sidecars(trackio_dir)
        first.kill()
        logger.log_rollouts(make_batch(), step=2)
        assert logger.finish(180)
        assert sum(ledger_uids(trackio_dir).values()) == 6
        assert set(trace_uids(trackio_dir).values()) == {1}

    def test_ends_by_itself_when_the_logger_is_finished_and_leaves_no_zombie(self, logger, trackio_dir):
        logger.log_rollouts(make_batch(), step=1)
        assert logger.finish(180)
        wait_for(lambda: not sidecars(trackio_dir), 20)
        assert zombies() == []

    def test_outlives_a_killed_trainer_until_nothing_waits(self, trackio_dir):
        code = (
            "import time, rollout_traces as rt\n"
            "from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer\n"
            "logger = rt.RolloutLogger('p', 'run', tiny_tokenizer(), max_rollout_traces_per_step=2)\n"
            "arrays = batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=1, group_size=3))\n"
            "for step in range(5): logger.log_rollouts(arrays, step=step)\n"
            "while logger._pipeline._worker.pid is None: time.sleep(0.01)\n"
            "print('handed over', flush=True); time.sleep(60)\n"
        )
        trainer = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parents[2],
        )
        while "handed over" not in trainer.stdout.readline():
            assert trainer.poll() is None
        os.kill(trainer.pid, signal.SIGKILL)
        trainer.wait()
        trainer.stdout.close()
        wait_for(lambda: not sidecars(trackio_dir))
        assert sum(ledger_uids(trackio_dir).values()) == 15
        assert run_folders(trackio_dir / "rollout-traces" / "spool") == []


class TestLightness:
    def test_the_worker_needs_no_torch_and_no_gradio(self, trackio_dir):
        logger = rt.RolloutLogger(
            "p", "run", tiny_tokenizer(), max_rollout_traces_per_step=2, worker="thread"
        )
        pipeline = logger._pipeline
        pipeline.start = lambda: None
        logger.log_rollouts(make_batch(), step=1)
        pipeline._writer.close()
        [folder] = run_folders(trackio_dir / "rollout-traces" / "spool")
        code = (
            "import sys\n"
            "import transformers  # its older versions import torch, its newer ones do not\n"
            "before = set(sys.modules)\n"
            "from rollout_traces.worker.main import main\n"
            "assert main([sys.argv[1]]) == 0\n"
            "heavy = {'torch', 'gradio', 'pandas'} & (set(sys.modules) - before)\n"
            "sys.exit(f'imported {heavy}' if heavy else 0)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder.path)], check=False, capture_output=True
        )
        assert done.returncode == 0, done.stderr.decode()
        assert sum(ledger_uids(trackio_dir).values()) == 3

    def test_sees_no_gpu_and_holds_no_port(self, logger, trackio_dir):
        logger.log_rollouts(make_batch(), step=1)
        assert logger.flush(180)
        [process] = sidecars(trackio_dir)
        assert process.environ()["CUDA_VISIBLE_DEVICES"] == ""
        connections = getattr(process, "net_connections", None) or process.connections  # before psutil 6
        assert [c for c in connections() if c.status == psutil.CONN_LISTEN] == []

    def test_lets_the_trainer_go_first_once_its_first_step_is_stored(self, logger, trackio_dir):
        logger.log_rollouts(make_batch(), step=1)
        assert logger.flush(180)
        (sidecar,) = sidecars(trackio_dir)
        wait_for(lambda: NICENESS in nice_of_threads(sidecar.pid))
        assert sidecar.nice() == psutil.Process().nice(), "whoever waits is served by the main thread"
        session = Path(f"/proc/{sidecar.pid}/autogroup")
        if session.exists():  # Linux may weigh sessions against each other
            wait_for(lambda: session.read_text().split()[-1] == str(NICENESS))
            with logger._pipeline.somebody_waits():
                wait_for(lambda: session.read_text().split()[-1] == "0")

    def test_started_by_hand_leaves_the_other_programs_of_its_shell_as_they_are(self, tmp_path):
        autogroup = tmp_path / "autogroup"
        code = (
            "import pathlib, sys; from rollout_traces.worker import priority; "
            "priority.AUTOGROUP = pathlib.Path(sys.argv[1]); priority.give_way(10)"
        )
        command = [sys.executable, "-c", code, str(autogroup)]
        subprocess.run(command, check=True)
        assert not autogroup.exists()
        subprocess.run(command, check=True, start_new_session=True)
        assert autogroup.read_text() == str(NICENESS)


class TestFallingBack:
    def test_to_a_thread_when_no_process_can_be_started(self, logger, trackio_dir, monkeypatch, caplog):
        monkeypatch.setattr(sys, "executable", "/nonexistent/python")
        logger.log_rollouts(make_batch(), step=1)
        assert logger.finish(180)
        assert logger.worker == "thread"
        assert sum(ledger_uids(trackio_dir).values()) == 3
        assert "no worker can be started" in caplog.text


class TestRecovery:
    def make_left(self, project="p", name="crashed"):
        """A killed trainer's spool: everything handed over, nothing processed."""
        logger = rt.RolloutLogger(project, name, tiny_tokenizer(), max_rollout_traces_per_step=2)
        logger._pipeline.start = lambda: None
        logger.log_rollouts(make_batch(), step=1)
        logger._pipeline._writer.close()
        logger.run.finish()
        import trackio.context_vars

        trackio.context_vars.current_run.set(None)

    def test_by_the_next_logger_of_the_project(self, trackio_dir):
        self.make_left()
        logger = rt.RolloutLogger("p", "next", tiny_tokenizer())
        logger.log_rollouts(make_batch(), step=1)
        assert logger.finish(180)
        wait_for(lambda: sum(ledger_uids(trackio_dir).values()) == 6)
        wait_for(lambda: not sidecars(trackio_dir))
        wait_for(lambda: not zombies())

    def test_in_the_background_leaves_no_zombie(self, trackio_dir):
        from rollout_traces.worker.recovery import recover_in_background

        self.make_left()
        assert len(recover_in_background("p")) == 1
        wait_for(lambda: sum(ledger_uids(trackio_dir).values()) == 3)
        wait_for(lambda: not sidecars(trackio_dir))
        wait_for(lambda: not zombies())

    def test_by_the_command_line_which_says_what_it_did(self, trackio_dir):
        from typer.testing import CliRunner

        from rollout_traces.cli import build_app

        self.make_left()
        app, runner = build_app(["recover", "last"]), CliRunner()
        last = runner.invoke(app, ["last"])
        assert last.exit_code == 0 and "crashed" in last.output
        listed = runner.invoke(app, ["recover", "--list"])
        assert "left behind" in listed.output and ledger_uids(trackio_dir) == {}
        done = runner.invoke(app, ["recover"])
        assert done.exit_code == 0 and "p/crashed: all stored" in done.output
        assert sum(ledger_uids(trackio_dir).values()) == 3
        assert "Nothing waits" in runner.invoke(app, ["recover"]).output

    def test_what_waits_is_shown_longest_first(self, trackio_dir):
        import json

        from typer.testing import CliRunner

        from rollout_traces.cli import build_app

        self.make_left()
        shown = CliRunner().invoke(build_app(["last"]), ["last", "--json", "-n", "2"])
        lengths = [row["tokens"] for row in json.loads(shown.output)["rows"]]
        everything = sorted(make_batch()["attention_mask"].sum(1).tolist(), reverse=True)
        assert lengths == everything[:2] and everything[0] > everything[-1]

    def test_goes_on_beside_a_folder_that_is_damaged_and_names_it(self, trackio_dir, caplog):
        from rollout_traces.worker.recovery import find_left

        self.make_left(name="damaged")
        [manifest] = (trackio_dir / "rollout-traces" / "spool").rglob("manifest.json")
        manifest.write_text("{")
        self.make_left(name="whole")
        assert [left.run_name for left in find_left("p")] == ["whole"]
        assert f"passed over: spool {manifest.parent}" in caplog.text

    def test_leaves_alone_what_is_in_use(self, logger, trackio_dir):
        from rollout_traces.worker.recovery import find_left, recover_in_background

        logger._pipeline.start = lambda: None
        logger.log_rollouts(make_batch(), step=1)
        [left] = find_left("p", roots=[trackio_dir / "rollout-traces" / "spool"])
        assert left.in_use and left.n_records == 1
        assert recover_in_background("p") == []
        del logger._pipeline.start


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
