"""Rollouts in flight as a reader sees them: clocks, writers that are gone, files of others."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

import rollout_traces as rt
from rollout_traces.errors import StoreError
from rollout_traces.model.live_lines import InFlight, line_of
from rollout_traces.store import live
from rollout_traces.store.live import LiveRuns, LiveWriterSeen

HEAD = {"live": 1, "project": "p", "run": "run-a", "run_id": "a1", "node": "node-0", "rank": 0}


class Files:
    """The live files of a project, each written by a clock of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        self.folder = folder

    def write(self, *lines, name="node-0-0-ab", run="a1", written=0.0, **head) -> Path:
        """Writes a file that was written so many seconds ago."""
        path = self.folder / run / f"{name}.jsonl"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_bytes(b"".join([line_of({**HEAD, **head}), *map(line_of, lines)]))
        at = time.time() - written
        os.utime(path, (at, at))
        return path

    def rows(self):
        """The rollouts of the newest run, by id."""
        return {row.rollout.id: row for row in LiveRuns(self.folder).look().rows}


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path / "p")


def said(key="a", ago=0.0, stage="sampling", clock=0.0, **more):
    """An update of so many seconds ago, by a clock that is that far off."""
    return {"id": key, "at": time.time() - ago + clock, "stage": stage, **more}


def beat(ago=0.0, clock=0.0, **more):
    return {"beat": time.time() - ago + clock, **more}


class TestFate:
    def test_what_is_said_by_a_writer_that_is_heard_runs(self, files):
        files.write(said(ago=40), said(ago=10, stage="tool", detail="browse"), beat())
        row = files.rows()["a"]
        assert row.fate == "running"
        assert (round(row.seconds), round(row.in_stage), round(row.silent)) == (40, 10, 10)

    def test_what_a_writer_left_that_is_heard_no_more_was_running_until_then(self, files):
        files.write(said(ago=100), beat(ago=70), written=70)
        row = files.rows()["a"]
        assert (row.fate, round(row.seconds)) == ("lost", 30)

    def test_what_a_writer_left_that_ended_was_running(self, files):
        files.write(said(ago=5), said("b", ago=5, stage="done"), beat(finished=True))
        assert {key: row.fate for key, row in files.rows().items()} == {"a": "lost", "b": "done"}

    def test_what_ended_took_as_long_as_it_took(self, files):
        files.write(said(ago=50), said(ago=20, stage="aborted", detail="timeout"), beat())
        row = files.rows()["a"]
        assert (row.fate, row.rollout.detail, round(row.seconds)) == ("aborted", "timeout", 30)


class TestSeconds:
    """A rollout of which was said when 100 s by its writer's clock, which is 10 s behind."""

    ROLLOUT = InFlight("a", begun=70.0, at=100.0, stage="sampling", since=90.0)

    def seconds(self, now: float, silent: float = 0.0, *, is_gone: bool = False, ended: bool = False):
        writer = LiveWriterSeen("n", 0, silent, False, is_gone, 10.0, 0, True)
        rollout = replace(self.ROLLOUT, stage="done") if ended else self.ROLLOUT
        row = live._row(rollout, writer, now)
        return row.fate, row.seconds, row.in_stage, row.silent

    def test_are_until_now_while_it_runs(self):
        assert self.seconds(115.0) == ("running", 35.0, 15.0, 5.0)

    def test_are_until_its_writer_was_last_seen_where_that_is_gone(self):
        assert self.seconds(200.0, 80.0, is_gone=True) == ("lost", 40.0, 20.0, 10.0)

    def test_are_until_it_ended(self):
        assert self.seconds(500.0, ended=True) == ("done", 30.0, 10.0, 0.0)

    def test_are_never_below_none(self):
        assert self.seconds(0.0) == ("running", 0.0, 0.0, 0.0)


class TestClocks:
    @pytest.mark.parametrize("clock", [-3600.0, -30.0, 30.0, 86400.0])
    def test_one_that_disagrees_is_said_and_its_times_are_put_right(self, files, clock):
        files.write(said(ago=40, clock=clock), beat(clock=clock))
        row = files.rows()["a"]
        assert row.writer.clock == pytest.approx(-clock, abs=1)
        assert row.seconds == pytest.approx(40, abs=1) and row.fate == "running"

    def test_one_that_agrees_is_left_alone(self, files):
        files.write(said(ago=40), beat())
        assert files.rows()["a"].writer.clock == 0

    def test_of_the_files_that_are_ahead_of_this_machine_makes_nothing_negative(self, files):
        files.write(said(ago=-590), beat(ago=-600), written=-600)
        row = files.rows()["a"]
        assert row.fate == "running" and row.seconds >= 0 and row.writer.silent == 0

    def test_of_an_earlier_attempt_that_was_ahead_makes_nobody_else_late(self, files):
        files.write(said("old", ago=-3600), beat(ago=-3600), name="first", written=-3600)
        files.write(said("new", ago=5), beat(), name="second")
        row = files.rows()["new"]
        assert row.fate == "running" and row.seconds == pytest.approx(5, abs=1)


class TestFollowing:
    def test_reads_what_is_new_and_a_half_written_line_once_it_is_whole(self, files):
        path = files.write(said(tokens=1), beat())
        runs = LiveRuns(files.folder)
        assert runs.look().rows[0].rollout.tokens == 1
        line = line_of(said(tokens=2))
        with path.open("ab") as file:
            file.write(line[:20])
        assert runs.look().rows[0].rollout.tokens == 1
        with path.open("ab") as file:
            file.write(line[20:])
        assert runs.look().rows[0].rollout.tokens == 2

    def test_a_file_that_was_written_anew_is_read_from_its_beginning(self, files):
        path = files.write(*(said(f"r{n}") for n in range(9)), beat())
        runs = LiveRuns(files.folder)
        assert len(runs.look().rows) == 9
        anew = path.with_suffix(".new")
        anew.write_bytes(line_of(HEAD) + line_of(said("kept")))
        anew.replace(path)
        assert [row.rollout.id for row in runs.look().rows] == ["kept"]

    def test_garbage_is_counted_and_takes_nothing_along(self, files):
        path = files.write(said(tokens=1), beat())
        with path.open("ab") as file:
            file.write(b"\x00\xff{{{\n[1]\n" + line_of(said(tokens=2)))
        row = files.rows()["a"]
        assert row.rollout.tokens == 2 and row.writer.n_unreadable == 2

    def test_ranks_and_attempts_of_a_run_are_read_together(self, files):
        files.write(said("old", ago=90), beat(ago=80), name="first", written=80)
        files.write(said("new"), beat(), name="second", rank=1)
        assert {key: (row.fate, row.writer.rank) for key, row in files.rows().items()} == {
            "old": ("lost", 0),
            "new": ("running", 1),
        }


class TestWhichRun:
    def test_by_name_by_id_or_the_newest(self, files):
        files.write(said("a"))
        files.write(said("b"), run="b1", run_id="b1", name="other")
        path = files.write(said("c"), run="c1", run_id="c1")
        path.write_bytes(path.read_bytes().replace(b"run-a", b"run-c"))
        runs = LiveRuns(files.folder)
        assert runs.look("run-c").run_id == "c1"
        assert runs.look("b1").rows[0].rollout.id == "b"
        assert runs.look().run_id == "c1"
        assert runs.look("no such run") is None

    @pytest.mark.parametrize("broken", [b"", line_of(HEAD)[:30], b"\0" * 40 + b"\n"])
    def test_by_name_where_the_first_file_does_not_say_it(self, files, broken):
        files.write(said("a"), name="second")
        (files.folder / "a1" / "first.jsonl").write_bytes(broken)
        assert LiveRuns(files.folder).look("run-a").rows[0].rollout.id == "a"

    def test_by_name_once_its_file_says_it(self, files):
        path = files.write(said("a"))
        whole = path.read_bytes()
        path.write_bytes(whole[:30])
        runs = LiveRuns(files.folder)
        assert runs.look("run-a") is None
        path.write_bytes(whole)
        assert runs.look("run-a").rows[0].rollout.id == "a"

    def test_a_project_that_says_nothing_has_none(self, tmp_path):
        assert LiveRuns(tmp_path / "none").look() is None


class TestForgetting:
    def test_a_run_is_its_folder_and_an_id_that_leads_elsewhere_is_none(self, files, tmp_path):
        files.write(said())
        (tmp_path / "away").mkdir()
        runs = LiveRuns(files.folder)
        for run_id in ("../away", ".", "..", "", str(tmp_path / "away"), "none"):
            assert not runs.knows(run_id)
            runs.forget([run_id])
        assert runs.knows("a1") and (tmp_path / "away").is_dir()
        runs.forget(["a1"])
        assert not runs.knows("a1")


class TestFilesOfOthers:
    def test_a_folder_that_others_may_write_is_not_believed(self, files):
        files.write(said())
        (files.folder / "a1").chmod(0o777)
        with pytest.raises(StoreError, match="nothing in it is believed"):
            files.rows()

    def test_a_link_is_not_followed_and_a_pipe_is_not_waited_for(self, files, tmp_path):
        files.write(said())
        elsewhere = tmp_path / "elsewhere"
        elsewhere.write_bytes(line_of(said("planted")))
        (files.folder / "a1" / "link.jsonl").symlink_to(elsewhere)
        os.mkfifo(files.folder / "a1" / "pipe.jsonl")
        assert list(files.rows()) == ["a"]

    def test_no_more_than_a_bound_of_a_file_is_read(self, files, monkeypatch):
        monkeypatch.setattr(live, "MAX_BYTES", 1000)
        files.write(*(said(f"r{n}") for n in range(1000)))
        assert 5 < len(files.rows()) < 40

    def test_on_a_server_there_are_none_and_it_is_said(self):
        with pytest.raises(StoreError, match="only where the run writes"):
            LiveRuns(None).look()


def test_a_store_has_those_of_its_project(trackio_dir):
    logger = rt.RolloutLogger(project="p", name="run-a")
    logger.log_scalars({"x": 1.0}, step=1)
    logger.finish()
    (trackio_dir / "rollout-live").mkdir(mode=0o700)
    Files(trackio_dir / "rollout-live" / "p").write(said(), beat())
    assert rt.open_store("p").live.look("run-a").rows[0].fate == "running"
