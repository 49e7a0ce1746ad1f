"""What is read back of a run: the ground on which records are let go."""

from __future__ import annotations

import time

import numpy as np
import pytest

import rollout_traces as rt
from rollout_traces.sink.stored import Stored, scalar_signature
from rollout_traces.sink.trackio_sink import TrackioSink
from tests.worker.readback import scalar_steps


@pytest.fixture
def sink(trackio_dir):
    sink = TrackioSink.open(project="p", name="run")
    yield sink
    sink.finish()


def until_idle(sink):
    deadline = time.monotonic() + 20
    while not sink.idle() and time.monotonic() < deadline:
        time.sleep(0.05)


def settled(sink):
    until_idle(sink)
    sink.stored.refresh()


ODD = [
    {"step": 5, "time": 2.0, "project": 1.0, "__mine": 1.0},
    {"a/b": 1, "c": 0.1 + 0.2, "d": 1e300, "e": -0.0},
    {"text": "words", "flag": True, "list": [1, 2], "nested": {"x": 1.5}},
    {"numpy": np.float32(0.1), "big": 2**70, "none": None, "nan": float("nan")},
]


class TestScalars:
    @pytest.mark.parametrize("values", ODD)
    def test_of_any_kind_are_seen_to_be_stored(self, sink, values):
        sink.log_scalars(values, step=3)
        [token] = sink.take_logged()
        assert not sink.is_stored(token)
        settled(sink)
        assert sink.is_stored(token)

    def test_that_trackio_changed_are_known_by_their_names(self, sink):
        sink.log_scalars({"loss": 1.0}, step=3)
        sink.log_scalars({"loss": 2.0}, step=3)
        first, second = scalar_signature(3, {"loss": 1.0}), scalar_signature(3, {"loss": 2.0})
        sink.stored._take_metrics({"step": 3, "metrics": b'{"loss": 7.5}'})
        assert (sink.is_stored(first), sink.is_stored(second)) == (True, False)

    def test_sent_again_are_logged_once(self, sink, trackio_dir):
        sink.log_scalars({"loss": 1.0}, step=3)
        settled(sink)
        sink.stored.reload()
        sink.log_scalars({"loss": 1.0}, step=3, again=True)
        sink.log_scalars({"loss": 1.0}, step=4, again=True)
        settled(sink)
        assert scalar_steps(trackio_dir, "loss") == {3: 1, 4: 1}

    def test_are_known_with_their_attempt_once_they_were_seen_in_the_store(self, sink):
        values = {"loss": 1.0, "text": "words"}
        sink.log_scalars(values, step=3, attempt="a-1")
        assert not sink.has_scalars(values, step=3, attempt="a-1")
        settled(sink)
        assert sink.has_scalars(values, step=3, attempt="a-1")
        assert not sink.has_scalars(values, step=3, attempt="a-2")
        assert not sink.has_scalars(values, step=4, attempt="a-1")

    def test_that_are_read_back_are_those_that_were_there_at_the_last_look(self, sink):
        sink.log_scalars({"loss": 1.0}, step=3)
        settled(sink)
        sink.log_scalars({"loss": 2.0}, step=4)
        until_idle(sink)
        assert [step for step, _ in sink.stored.logged(9)] == [3]
        sink.stored.refresh()
        assert [step for step, _ in sink.stored.logged(9)] == [3, 4]


class TestReading:
    def test_a_project_that_does_not_exist_holds_nothing(self, sink):
        sink.stored.refresh()
        assert sink.stored.uids == set()

    def test_a_store_that_cannot_be_read_says_so(self):
        def away(sql):
            raise ValueError("database is locked")

        with pytest.raises(ValueError, match="locked"):
            Stored(away, "p", "id").refresh()

    def test_only_new_rows_are_asked_for(self, sink):
        asked = []
        query = sink.stored.query
        sink.stored.query = lambda sql: asked.append(sql) or query(sql)
        sink.log_scalars({"a": 1.0}, step=1)
        settled(sink)
        sink.log_scalars({"a": 2.0}, step=2)
        settled(sink)
        assert any("rowid > 1 " in sql for sql in asked if "FROM metrics" in sql)


def test_a_logger_with_odd_scalars_comes_to_rest(trackio_dir):
    logger = rt.RolloutLogger("p", "run", worker="thread")
    for step, values in enumerate(ODD):
        logger.log_scalars(values, step=step)
    assert logger.finish(180)
    assert logger.counters["sent_again"] == 0
