"""The doctor says what other users can read of Trackio's folder, closes it when asked, and names what waits."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import trackio.context_vars

import rollout_traces as rt
from rollout_traces.doctor import Examination, each_check
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer
from tests.other_user import NOBODY


def found(fix: bool = False):
    [finding] = dict(each_check(Examination(fix=fix)))["Who can read"]
    return finding


@pytest.fixture
def home(trackio_dir: Path) -> Path:
    """A folder as Trackio leaves one under the umask 022."""
    (trackio_dir / "media" / "p").mkdir(parents=True)
    for name in ("p.db", "p.lock", "media/p/a.png", "media/p/b.png"):
        (trackio_dir / name).write_bytes(b"x")
    for path in (trackio_dir, *trackio_dir.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return trackio_dir


def modes(home: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in (home, *home.rglob("*"))}


class TestAnOpenFolder:
    def test_is_named_with_the_files_that_others_can_read(self, home):
        finding = found()
        assert finding.status == "warn"
        assert (
            "mode 0755: other users can read 4 files (media/p/a.png, media/p/b.png, p.db and 1 more)"
            in finding.seen
        )
        assert "doctor --fix" in finding.advice
        assert modes(home) == {0o055, 0o044}

    def test_without_a_file_that_is_open_is_only_entered(self, home):
        """Seen once: “other users can read 0 files”."""
        for path in home.rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)
        assert found().seen.endswith(
            "has mode 0755: other users can enter it, and read none of its files yet"
        )

    def test_is_closed_on_request_and_goes_on_working(self, home, tmp_path):
        (home / "link").symlink_to(tmp_path / "elsewhere")
        (tmp_path / "elsewhere").write_text("x")
        (tmp_path / "elsewhere").chmod(0o644)
        assert found(fix=True).status == "ok"
        (home / "link").unlink()
        assert modes(home) == {0}
        assert stat.S_IMODE((tmp_path / "elsewhere").stat().st_mode) == 0o644
        assert found().seen.endswith("closed to others (mode 0700)")
        assert (home / "p.db").read_bytes() == b"x"

    def test_stays_readable_for_the_group_that_is_named(self, home, monkeypatch):
        monkeypatch.setenv("ROLLOUT_TRACES_GROUP", str(os.getgid()))
        assert found(fix=True).status == "ok"
        assert modes(home) == {0o050, 0o040}

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
    def test_that_others_write_to_is_left_as_it_is(self, home):
        os.chown(home / "p.db", NOBODY, NOBODY)
        finding = found(fix=True)
        assert finding.status == "warn" and "belong to other users" in finding.advice
        assert modes(home) == {0o055, 0o044}


def test_a_closed_or_missing_folder_is_well(home):
    home.chmod(0o700)
    assert found().status == "ok"
    for path in sorted(home.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    home.rmdir()
    assert "made for this user alone" in found().seen


def findings():
    return {
        finding.subject: finding for finding in dict(each_check(Examination(project="p")))["Logging path"]
    }


class TestSpool:
    def test_without_one_nothing_waits(self, trackio_dir):
        assert findings()["waiting"].seen == "nothing waits on this node"
        assert str(trackio_dir) in findings()["spool"].seen

    def test_a_killed_trainers_is_left_behind_and_recover_is_advised(self, trackio_dir):
        logger = rt.RolloutLogger("p", "run", tiny_tokenizer())
        logger._pipeline.start = lambda: None
        logger.log_rollouts(batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=1, group_size=2)), step=1)
        assert findings()["p/run"].status == "ok"
        logger._pipeline._writer.close()
        found = findings()["p/run"]
        assert (found.status, found.advice) == ("warn", "rollout-traces recover")
        assert "1 records wait" in found.seen and "worker.log" in found.seen
        logger.run.finish()
        trackio.context_vars.current_run.set(None)


class TestFlagsOfRuns:
    def test_the_newest_runs_are_told(self, trackio_dir):
        """Seen once: the five oldest runs of a project of years."""
        tokenizer = tiny_tokenizer()
        for i in range(7):
            logger = rt.RolloutLogger("p", f"run-{i}", tokenizer, worker="thread")
            logger.log_rollouts(batch_arrays(tokenizer, BatchPlan(n_groups=1, group_size=2)), step=0)
            logger.close_step(0)
            logger.flush(timeout=60)
            logger.finish()
        findings = dict(each_check(Examination(project="p")))["Flags"]
        told = {finding.subject.split(",")[0] for finding in findings}
        assert told == {f"run-{i}" for i in range(2, 7)}
