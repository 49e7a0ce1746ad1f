"""Who waits is served at normal priority; else the worker goes round on a thread that gives way. One at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rollout_traces.worker import priority
from rollout_traces.worker.priority import CalledAway, TwoPriorities

ENABLED = Path("/proc/sys/kernel/sched_autogroup_enabled")
MINE = os.getpriority(os.PRIO_PROCESS, 0)
NICENESS = min(MINE + priority.NICENESS, 19)
"""As far below these tests as a worker goes below a trainer; they may run under `nice` themselves."""
WEIGHS_SESSIONS = ENABLED.exists() and ENABLED.read_text().strip() == "1"


class Rounds:
    """A loop that notes at which niceness it goes round."""

    def __init__(self):
        self.is_awaited = False
        self.nice = []
        self.inside = 0
        self.pause = 0.001
        self.work = lambda: None

    def run_until(self, is_over, after_turn, rest=time.sleep):
        while not is_over():
            self.inside += 1
            assert self.inside == 1, "two threads at once"
            self.nice.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            try:
                self.work()
                rest(self.pause)
            finally:
                self.inside -= 1
            after_turn()

    def newest(self):
        n = len(self.nice)
        wait_for(lambda: len(self.nice) > n + 3)
        return self.nice[-1]


def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


@pytest.fixture
def running(monkeypatch):
    monkeypatch.setattr(priority, "NICENESS", NICENESS)
    rounds, waiting, over, failed = Rounds(), threading.Event(), threading.Event(), []
    priorities = TwoPriorities(lambda: rounds.is_awaited or waiting.is_set())

    def run():
        try:
            priorities.run(rounds.run_until, over.is_set, lambda: None)
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield rounds, waiting, priorities, failed, thread
    over.set()
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.skipif(MINE == 19, reason="nothing goes below the lowest priority")
class TestTwoPriorities:
    def test_it_gives_way_while_nobody_waits_and_does_not_while_somebody_does(self, running):
        rounds, waiting, *_ = running
        wait_for(lambda: rounds.nice and rounds.nice[-1] >= NICENESS)
        for _ in range(3):
            waiting.set()
            wait_for(lambda: rounds.newest() == MINE)
            waiting.clear()
            wait_for(lambda: rounds.newest() == NICENESS)

    def test_what_the_loop_itself_knows_to_be_awaited_counts_as_well(self, running):
        rounds, *_ = running
        wait_for(lambda: rounds.nice and rounds.newest() == NICENESS)
        rounds.is_awaited = True
        wait_for(lambda: rounds.newest() == MINE)

    def test_the_thread_that_gives_way_is_called_away_within_its_work(self, running):
        rounds, waiting, priorities, *_ = running
        begun, called = threading.Event(), []

        def work():
            begun.set()
            while not waiting.is_set():
                time.sleep(0.001)
            deadline = time.monotonic() + 30
            while rounds.nice[-1] == NICENESS and time.monotonic() < deadline:
                try:
                    priorities.checkpoint()
                except CalledAway:
                    called.append(1)
                    raise

        wait_for(lambda: rounds.nice and rounds.newest() == NICENESS)
        rounds.work = work
        assert begun.wait(30)
        waiting.set()
        wait_for(lambda: called and rounds.nice[-1] == MINE)
        priorities.checkpoint()

    def test_it_rests_no_longer_than_nobody_waits(self, running):
        rounds, waiting, *_ = running
        wait_for(lambda: rounds.nice and rounds.newest() == NICENESS)
        rounds.pause = 3600.0
        time.sleep(0.5)
        rounds.pause = 0.001
        waiting.set()
        wait_for(lambda: rounds.nice[-1] == MINE)

    def test_what_fails_on_it_ends_the_worker(self, running):
        rounds, _, _, failed, thread = running
        wait_for(lambda: rounds.nice and rounds.newest() == NICENESS)

        def fails():
            raise OSError("no more")

        rounds.work = fails
        thread.join(30)
        assert [str(error) for error in failed] == ["no more"]

    def test_the_session_gives_way_and_takes_it_back(self, tmp_path, monkeypatch):
        autogroup = tmp_path / "autogroup"
        monkeypatch.setattr(priority, "AUTOGROUP", autogroup)
        priority.give_way(NICENESS)
        assert not autogroup.exists(), "this process leads no session"
        monkeypatch.setattr(os, "getsid", lambda pid: os.getpid())
        priority.give_way(NICENESS)
        assert autogroup.read_text() == str(NICENESS)
        priority.give_way(0)
        assert autogroup.read_text() == "0"

    @pytest.mark.skipif(not WEIGHS_SESSIONS, reason="this kernel does not weigh sessions against each other")
    def test_the_session_takes_it_back_at_once_without_privilege(self):
        # of processes without privilege Linux takes one change in a tenth of a second
        code = """
import ctypes, struct
from rollout_traces.worker import priority
header, none = struct.pack("<Ii", 0x20080522, 0), bytes(24)
assert ctypes.CDLL(None).capset(header, none) == 0
for niceness in (priority.NICENESS, 0) * 2:
    priority.give_way(niceness)
    assert priority.AUTOGROUP.read_text().split()[-1] == str(niceness), niceness
"""
        done = subprocess.run(
            [sys.executable, "-c", code], start_new_session=True, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
