"""What the trainer logs is judged once: where the worker was still starting, and after one that was killed."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from rollout_traces.analysis.curves import FEWEST_BESIDE
from rollout_traces.sink.trackio_sink import TrackioSink
from rollout_traces.spool.folder import MemorySpool
from rollout_traces.spool.record import Record, encode
from rollout_traces.steps.processor import StepProcessor
from rollout_traces.steps.run_state import LOGGED, StepOptions
from rollout_traces.worker.consumer import SpoolConsumer
from tests.worker.held_sink import WritePath
from tests.worker.readback import rows, scalar_steps

LOST = FEWEST_BESIDE
"""The step at which a loss that was finite often enough is NaN."""


def put_losses(spool, first, last):
    for step in range(first, last):
        loss = 1.0 if step < LOST else "NaN"
        spool.append(encode(Record("scalars", {"step": step, "scalars": {"loss": loss}})))


class TestWithAStoreThatIsHeld:
    @pytest.fixture
    def path(self, monkeypatch):
        monkeypatch.setattr("rollout_traces.worker.consumer.CONFIRM_EVERY", 1e9)
        return WritePath()

    def test_the_steps_that_waited_while_the_worker_was_starting_are_judged(self, path):
        put_losses(path.spool, 0, LOST)
        path.start()
        path.consumer.turn()
        put_losses(path.spool, LOST, LOST + 1)
        path.consumer.turn()
        assert [step for _, step in path.sink.alerts] == [LOST]

    def test_a_worker_that_was_killed_and_had_them_stored_leaves_nothing_to_judge(self, path):
        put_losses(path.spool, 0, LOST + 1)
        path.consumer.turn()
        assert len(path.kinds()) == LOST + 1, "killed before it saw that they are stored"
        path.start()
        path.consumer.turn()
        assert len(path.sink.alerts) == 1 and len(path.sink.scalars) == LOST + 1

    def test_a_worker_that_was_killed_before_any_was_stored_leaves_all_to_judge(self, path):
        put_losses(path.spool, 0, LOST + 1)
        path.consumer.turn()
        path.sink.stored.scalars.clear()
        path.sink.alerts.clear()
        path.start()
        path.consumer.turn()
        assert [step for _, step in path.sink.alerts] == [LOST]


class Worker:
    """A worker that stores in Trackio, and each of whose entries is stored before it goes on."""

    def __init__(self, run, spool):
        self.sink = TrackioSink(run, owned=False)
        log_scalars = self.sink.log_scalars

        def log_and_wait(*arguments, **named):
            left_out = log_scalars(*arguments, **named)
            self.wait()
            return left_out

        self.sink.log_scalars = log_and_wait
        self._loop = SpoolConsumer(
            lambda: [spool], lambda: StepProcessor(self.sink, None, StepOptions()), self.sink, Counter()
        )

    def wait(self):
        deadline = time.monotonic() + 30
        while self.sink.is_sending() and time.monotonic() < deadline:
            time.sleep(0.01)

    def turn(self):
        self._loop.turn()
        self.wait()

    def judged(self):
        """The steps that the next one is judged by."""
        trail = self._loop._processor._state.trails[LOGGED]
        [known], [steps] = trail.known.tolist(), trail.steps.tolist()
        return steps[-known:]


@pytest.fixture
def run(trackio_dir):
    sink = TrackioSink.open(project="p", name="run")
    yield sink.run
    sink.finish()


@pytest.fixture
def spool(monkeypatch):
    """Records stay in it, as where the worker is killed before it removes one."""
    spool = MemorySpool(1 << 20)
    monkeypatch.setattr(spool, "remove", lambda name: None)
    return spool


def test_the_judge_begins_from_what_is_stored_and_goes_on_with_the_rest(run, spool, trackio_dir):
    put_losses(spool, 0, 2)
    first = Worker(run, spool)
    first.turn()
    assert first.judged() == [0, 1]
    put_losses(spool, 2, 4)
    second = Worker(run, spool)
    second.turn()
    assert second.judged() == [0, 1, 2, 3]
    assert scalar_steps(trackio_dir, "loss") == dict.fromkeys(range(4), 1)


def test_an_alert_of_a_worker_that_was_killed_is_stored_once(run, spool, trackio_dir):
    put_losses(spool, 0, LOST + 1)
    for _ in range(2):
        Worker(run, spool).turn()
    assert rows(trackio_dir, "select step from alerts") == [(LOST,)]
