"""What a training loop says of its rollouts in flight, and the file that it leaves."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import rollout_traces as rt
from rollout_traces.errors import Warnings
from rollout_traces.logger import live
from rollout_traces.logger.live import LiveWriter
from rollout_traces.model.live_lines import MAX_BYTES, MAX_TEXT, LiveFile, LivePlace
from tests.generator import tiny_tokenizer
from tests.until import until


def read(folder: Path) -> LiveFile:
    """All files of a folder as one."""
    file = LiveFile()
    for path in sorted(folder.glob("*.jsonl")):
        file.feed(path.read_bytes())
    return file


def bytes_of(folder: Path) -> int:
    """Bytes of a folder's files; one that is renamed meanwhile is counted under one of its names."""
    total = 0
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


class Written:
    """A writer with a folder of its own."""

    def __init__(self, folder: Path, **options) -> None:
        self.counters: Counter[str] = Counter()
        self.folder = folder / "p" / "run-1"
        place = LivePlace(self.folder, folder, "p", "run", "run-1")
        self.writer = LiveWriter(place, "node", Warnings(self.counters), **options)

    def rollouts(self):
        """What the file says once all was written."""
        self.writer.close(60)
        return list(read(self.folder).rollouts.values())


@pytest.fixture
def written(tmp_path):
    made = Written(tmp_path)
    yield made
    made.writer.close()


class TestARollout:
    def test_is_said_with_its_stages_and_what_is_known_of_it(self, written):
        rollout = written.writer.begin({"prompt": "Find it", "step": 3, "split": "rollout", "source": "web"})
        rollout.stage("sampling", turns=1, tokens=12, words="I look")
        rollout.stage("tool", "browse")
        until(lambda: any(each.stage == "tool" for each in read(written.folder).rollouts.values()))
        rollout.stage("scoring")
        rollout.stage("done")
        (found,) = written.rollouts()
        assert (found.prompt, found.step, found.source) == ("Find it", 3, "web")
        assert (found.stage, found.turns, found.tokens, found.words) == ("done", 1, 12, "I look")
        assert found.n_stages == 5

    def test_ends_with_its_block_and_is_aborted_by_what_the_block_raises(self, written):
        with written.writer.begin({}):
            pass
        with pytest.raises(TimeoutError), written.writer.begin({}):
            raise TimeoutError
        assert [(each.stage, each.detail) for each in written.rollouts()] == [
            ("done", None),
            ("aborted", "TimeoutError"),
        ]

    def test_says_nothing_more_once_it_ended(self, written):
        rollout = written.writer.begin({})
        rollout.stage("aborted", "no room")
        rollout.stage("sampling")
        assert written.rollouts()[0].stage == "aborted"

    def test_that_a_closed_writer_is_told_of_is_dropped_and_counted(self, written):
        rollout = written.writer.begin({})
        written.writer.close(60)
        rollout.stage("sampling")
        rollout.stage("done")
        assert written.counters["live_dropped"] == 2
        assert written.rollouts()[0].stage == "queued"

    def test_keeps_the_end_of_its_words(self, written):
        written.writer.begin({}).stage("sampling", words="a" * 1000 + "the end")
        assert written.rollouts()[0].words == ("a" * 1000 + "the end")[-MAX_TEXT:]

    def test_begins_its_stage_when_it_was_said_first(self, written):
        rollout = written.writer.begin({})
        rollout.stage("tool", "browse")
        time.sleep(0.05)
        rollout.stage("tool", "browse", tokens=4)
        (found,) = written.rollouts()
        assert found.at - found.since >= 0.05

    @pytest.mark.parametrize(
        "said",
        [
            {"stage": "thinking"},
            {"stage": ["sampling"]},
            {"stage": "tool", "turns": "many"},
            {"stage": "tool", "tokens": float("nan")},
        ],
    )
    def test_that_cannot_be_understood_is_counted_and_the_others_go_on(self, written, said):
        written.writer.begin({}).stage(**said)
        written.writer.begin({}).stage("sampling")
        assert [each.stage for each in written.rollouts()] == ["queued", "sampling"]
        assert written.counters["live_refused"] == 1

    def test_without_texts_says_none(self, tmp_path):
        made = Written(tmp_path, says_texts=False)
        made.writer.begin({"prompt": "secret"}).stage("sampling", words="secret", tokens=1)
        (found,) = made.rollouts()
        assert (found.prompt, found.words, found.tokens) == (None, None, 1)
        assert b"secret" not in made.writer.path.read_bytes()


class TestBounds:
    def test_a_full_queue_drops_and_counts_and_still_takes_ends(self, written, monkeypatch):
        monkeypatch.setattr(live, "PAUSE", 60)
        rollout = written.writer.begin({})
        time.sleep(0.3)  # the thread is in its pause
        for n in range(live.MAX_QUEUED + 500):
            rollout.stage("sampling", tokens=n)
        rollout.stage("done")
        assert written.counters["live_dropped"] >= 500
        assert written.rollouts()[0].stage == "done"

    def test_the_file_stays_below_its_bytes_with_100_000_stages_of_one_rollout(self, tmp_path, monkeypatch):
        monkeypatch.setattr(live, "MAX_QUEUED", 200_000)
        made = Written(tmp_path)
        other = made.writer.begin({"prompt": "stays"})
        rollout = made.writer.begin({})
        until(made.writer.path.exists)
        largest = 0
        for n in range(100_000):
            rollout.stage(("sampling", "tool")[n % 2], words="w" * 150)
            if not n % 1000:
                largest = max(largest, bytes_of(made.folder))
                time.sleep(0.01)
        found = {each.id: each for each in made.rollouts()}
        assert largest < MAX_BYTES and made.writer.path.stat().st_size < MAX_BYTES
        assert found[rollout.id].n_stages == 100_001 and found[other.id].prompt == "stays"
        assert not made.counters

    def test_where_not_all_have_room_the_oldest_go_and_are_counted(self, tmp_path):
        made = Written(tmp_path, n_ranks=200)
        for n in range(2000):
            made.writer.begin({"prompt": f"{n} " + "p" * 150})
        found = made.rollouts()
        assert 10 < len(found) < 2000 and found[-1].prompt.startswith("1999")
        assert made.counters["live_forgotten"] == 2000 - len(found)

    def test_of_more_than_can_be_in_flight_the_oldest_are_said_to_never_end(self, tmp_path, monkeypatch):
        monkeypatch.setattr(live, "MAX_IN_FLIGHT", 10)
        made = Written(tmp_path)
        rollouts = [made.writer.begin({"prompt": f"{n}"}) for n in range(25)]
        until(lambda: made.counters["live_forgotten"] == 15)
        rollouts[0].stage("sampling", words="too late")
        rollouts[20].stage("sampling", words="goes on")
        found = {each.prompt: each for each in made.rollouts()}
        assert len(found) == 25 and found["20"].words == "goes on" and found["0"].words is None
        gone = [each for each in found.values() if (each.stage, each.detail) == ("aborted", live.NEVER_ENDED)]
        assert {each.prompt for each in gone} == {f"{n}" for n in range(15)}

    def test_one_that_never_ends_stays_while_thousands_of_others_come_and_go(self, tmp_path, monkeypatch):
        monkeypatch.setattr(live, "MAX_QUEUED", 100_000)
        made = Written(tmp_path, n_ranks=8)
        first = made.writer.begin({"prompt": "hangs"})
        first.stage("tool", "browse")
        while not made.folder.exists():
            time.sleep(0.01)
        largest = 0
        for n in range(20_000):
            made.writer.begin({"prompt": f"{n} " + "p" * 100}).stage("done")
            if not n % 1000:
                largest = max(largest, bytes_of(made.folder))
                time.sleep(0.01)
        made.writer.close(60)
        found = read(made.folder).rollouts
        assert (found[first.id].stage, found[first.id].detail) == ("tool", "browse")
        assert largest < MAX_BYTES / 8 and len(found) < 10_000 and not made.counters

    def test_files_of_earlier_processes_go_where_they_take_more_than_their_share(self, tmp_path):
        folder = tmp_path / "p" / "run-1"
        folder.mkdir(parents=True, mode=0o700)
        for n in range(4):
            (folder / f"old-{n}.jsonl").write_bytes(b"x" * (1 << 20))
            os.utime(folder / f"old-{n}.jsonl", (n, n))
        made = Written(tmp_path)
        made.writer.close()
        assert sorted(path.name for path in folder.glob("old-*")) == ["old-2.jsonl", "old-3.jsonl"]


class TestFailures:
    def test_a_folder_that_cannot_be_made_is_counted_and_nothing_is_raised(self, tmp_path):
        (tmp_path / "p").write_text("no folder")
        made = Written(tmp_path)
        made.writer.begin({}).stage("sampling")
        made.writer.close()
        assert made.counters["live_errors"]

    def test_a_piece_that_was_torn_does_not_take_the_next_line(self, written):
        rollout = written.writer.begin({})
        until(lambda: read(written.folder).rollouts)
        with written.writer.path.open("ab") as file:
            file.write(b'{"id": "torn", "at": 17')
        written.writer._is_torn = True
        rollout.stage("sampling")
        until(lambda: read(written.folder).rollouts[rollout.id].stage == "sampling")


class TestALogger:
    def test_says_what_is_in_flight_and_lists_the_run_before_a_step_is_stored(self, trackio_dir):
        logger = rt.RolloutLogger(project="p", name="run", tokenizer=tiny_tokenizer())
        rollout = logger.live("What is 1 + 1?", step=1, group="q7")
        rollout.stage("sampling", tokens=3)
        until(lambda: (trackio_dir / "p.db").exists())
        store = rt.open_store("p")
        until(lambda: (seen := store.live.look("run")) and [each.rollout.tokens for each in seen.rows] == [3])
        (row,) = store.live.look("run").rows
        assert (row.fate, row.rollout.group, row.rollout.step) == ("running", "q7", 1)
        assert row.rollout.attempt
        until(lambda: store.refresh() == 0 and [run.name for run in store.runs()] == ["run"])
        logger.finish()
        assert store.live.look("run").rows[0].fate == "lost"

    def test_that_is_finished_says_nothing_and_raises_nothing(self, trackio_dir):
        logger = rt.RolloutLogger(project="p", name="run")
        logger.finish()
        with logger.live("late") as rollout:
            rollout.stage("sampling")
        assert logger.counters["live_refused"] == 1

    def test_with_a_redact_hook_says_no_text(self, trackio_dir):
        logger = rt.RolloutLogger(project="p", name="run", redact=lambda message: [])
        logger.live("secret prompt")
        logger.finish()
        (file,) = (trackio_dir / "rollout-live").rglob("*.jsonl")
        assert b"secret" not in file.read_bytes() and read(file.parent).rollouts

    def test_takes_calls_while_its_disk_stands_still(self, trackio_dir, monkeypatch):
        goes_on, write, stands = threading.Event(), LiveWriter._write_waiting, threading.Event()

        def slow(self: LiveWriter) -> None:
            stands.set()
            assert goes_on.wait(60)
            write(self)

        monkeypatch.setattr(LiveWriter, "_write_waiting", slow)
        logger = rt.RolloutLogger(project="p", name="run")
        rollout = logger.live("warm")
        assert stands.wait(30)
        says = threading.Thread(target=lambda: [rollout.stage("sampling", tokens=n) for n in range(2000)])
        says.start()
        says.join(30)
        assert not says.is_alive() and not goes_on.is_set()
        goes_on.set()
        logger.finish()
        (last,) = read(next((trackio_dir / "rollout-live").rglob("*.jsonl")).parent).rollouts.values()
        assert last.tokens == 1999 and not logger.counters["live_dropped"]


KILLED = """
import os, signal, time
import rollout_traces as rt
logger = rt.RolloutLogger(project="p", name="run")
logger.live("left behind").stage("tool", "browse", words="waiting")
time.sleep(1.5)
os.kill(os.getpid(), signal.SIGKILL)
"""


class TestAKilledProcess:
    def test_leaves_what_was_running(self, trackio_dir):
        ended = subprocess.run(
            [sys.executable, "-c", KILLED], env=os.environ, capture_output=True, timeout=60
        )
        assert ended.returncode == -signal.SIGKILL
        for path in (trackio_dir / "rollout-live").rglob("*.jsonl"):
            os.utime(path, (time.time() - 60, time.time() - 60))
        (row,) = rt.open_store("p").live.look().rows
        assert (row.fate, row.rollout.stage, row.rollout.words) == ("lost", "tool", "waiting")
