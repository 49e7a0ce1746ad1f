"""Any number wait for one worker, and a death ends a wait."""

from __future__ import annotations

import os
import signal

from rollout_traces.model.private_files import Waiters


class TestWaiters:
    def test_are_there_as_long_as_one_of_them_waits(self, tmp_path):
        waiters, worker = Waiters(tmp_path / "waiting.lock"), Waiters(tmp_path / "waiting.lock")
        assert not worker
        with waiters.one_more():
            assert worker
            with Waiters(tmp_path / "waiting.lock").one_more():
                assert worker
            assert worker
        assert not worker

    def test_end_with_their_process(self, tmp_path):
        waiters = Waiters(tmp_path / "waiting.lock")
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            with waiters.one_more():
                os.write(write, b"x")
                signal.pause()
        os.read(read, 1)
        assert waiters
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert not waiters

    def test_of_a_folder_that_is_gone_wait_all_the_same(self, tmp_path):
        waiters = Waiters(tmp_path / "gone" / "waiting.lock")
        with waiters.one_more():
            assert not waiters
