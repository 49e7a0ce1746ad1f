"""Trackio's folder is this user's alone, whatever the umask, which stays as it is; its size is measured."""

from __future__ import annotations

import grp
import os
import re
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import trackio.context_vars

import rollout_traces as rt
from rollout_traces.sink.folder import DiskUse, make_trackio_folder
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer
from tests.trackio_home import use_trackio_home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Trackio home that is not there yet, in a process whose umask lets everybody read and write."""
    use_trackio_home(monkeypatch, tmp_path / "cache" / "trackio")
    before = os.umask(0)
    yield tmp_path / "cache" / "trackio"
    os.umask(before)
    trackio.context_vars.current_run.set(None)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


class TestAMissingFolder:
    def test_is_made_for_this_user_alone_by_a_run_and_the_umask_stays(self, home, tmp_path):
        logger = rt.RolloutLogger(
            "p", "run", tiny_tokenizer(), max_rollout_traces_per_step=4, worker="thread"
        )
        logger.log_rollouts(batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=1, group_size=2)), step=1)
        (tmp_path / "checkpoint").write_bytes(b"x")
        assert logger.finish()
        assert (home / "p.db").is_file()
        assert mode(home) == 0o700
        assert mode(tmp_path / "checkpoint") == 0o666

    def test_is_its_groups_where_one_is_named(self, home, monkeypatch):
        monkeypatch.setenv("ROLLOUT_TRACES_GROUP", grp.getgrgid(os.getgid()).gr_name)
        make_trackio_folder(home)
        assert (mode(home), home.stat().st_gid) == (0o2750, os.getgid())

    def test_is_this_users_alone_where_the_group_is_none(self, home, monkeypatch, caplog):
        monkeypatch.setenv("ROLLOUT_TRACES_GROUP", "no-such-group")
        make_trackio_folder(home)
        assert mode(home) == 0o700 and "no such group" in caplog.text


def test_a_folder_that_is_there_stays_as_it_is(home):
    home.mkdir(parents=True, mode=0o755)
    make_trackio_folder(home)
    assert mode(home) == 0o755


class TestSecretsOfTheConfig:
    CONFIG = {
        "lr": 1e-6,
        "max_tokens": 512,
        "env": {"WANDB_API_KEY": "hush-hush"},
        "command": "--key sk-" + "a1" * 12,
    }

    def stored(self, home: Path) -> str:
        """Everything that was written, as one text."""
        [(config,)] = sqlite3.connect(home / "p.db").execute("SELECT config FROM configs").fetchall()
        return config if isinstance(config, str) else config.decode()

    def test_are_stored_nowhere_and_said_once(self, home, caplog):
        logger = rt.RolloutLogger("p", "run", config=self.CONFIG, worker="thread")
        [manifest] = home.rglob("manifest*")
        written = manifest.read_text()
        logger.log_scalars({"loss": 1.0}, step=1)
        assert logger.finish()
        for text in (written, self.stored(home)):
            assert "hush-hush" not in text and "a1a1" not in text and "***" in text
            assert "512" in text
        said = [record.message for record in caplog.records if "stored as ***" in record.message]
        assert len(said) == 1 and "env.WANDB_API_KEY, command" in said[0]

    def test_are_stored_where_their_name_is_allowed(self, home):
        logger = rt.RolloutLogger(
            "p", "run", config=self.CONFIG, not_secret=["WANDB_API_KEY"], worker="thread"
        )
        logger.log_scalars({"loss": 1.0}, step=1)
        assert logger.finish()
        assert "hush-hush" in self.stored(home) and "a1a1" not in self.stored(home)


@pytest.mark.parametrize("project", ["plain", "qwen2.5-grpo", "with spaces", "[odd]"])
def test_a_project_of_any_name_is_found_on_disk(trackio_dir, project):
    logger = rt.RolloutLogger(
        project, "run", tiny_tokenizer(), max_rollout_traces_per_step=2, worker="thread"
    )
    logger.log_rollouts(batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=1, group_size=2)), step=1)
    assert logger.finish(180)
    assert DiskUse(project).bytes() >= sum(path.stat().st_size for path in trackio_dir.glob("*.db")) > 0


def test_how_much_room_the_disk_has_is_said(trackio_dir):
    free = shutil.disk_usage(trackio_dir).free
    said = re.fullmatch(rf"; ([\d,]+) MB are free in {re.escape(str(trackio_dir))}", DiskUse("p").room_text())
    assert said is not None and int(said[1].replace(",", "")) == pytest.approx(free / 1e6, rel=0.2)
