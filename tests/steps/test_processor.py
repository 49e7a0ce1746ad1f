"""Open steps are kept and stored once they are closed; what an earlier worker stored is not stored twice."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest

from rollout_traces.capture.host_copy import capture
from rollout_traces.model.packed_batch import StepKey
from rollout_traces.sink.trackio_sink import TrackioSink
from rollout_traces.steps.processor import StepProcessor
from rollout_traces.steps.run_state import StepOptions, StoredStep
from rollout_traces.worker.replay import Close, CloseLog, Replay
from tests.generator import BatchPlan, rollout_batch, tiny_tokenizer
from tests.worker.readback import rows

KEY = StepKey("a-001", 1, "rollout")
TOTALS = """select json_extract(metrics, '$."rollout/total/samples"') as n from metrics where n is not null"""


def batch(seed: int = 0):
    plan = BatchPlan(n_groups=1, group_size=2, seed=seed)
    return capture([rollout_batch(tiny_tokenizer(), plan)], step=1, split="rollout")


@pytest.fixture
def sink(trackio_dir):
    opened = TrackioSink.open(project="p", name="run")
    yield opened
    opened.finish()


def wait_stored(sink: TrackioSink) -> None:
    deadline = time.monotonic() + 30
    while not sink.stored.has_totals(1, "rollout") and time.monotonic() < deadline:
        time.sleep(0.05)
    sink.stored.refresh()


@pytest.mark.parametrize("ledger", [True, False])
def test_a_step_that_is_processed_again_counts_once(sink, trackio_dir, ledger):
    host = batch()
    options = StepOptions(max_rollout_traces_per_step=0, ledger=ledger)
    close = Close(KEY, (host.batch_id,), "announced", 0)
    for again in (False, True):
        processor = StepProcessor(sink, None, options)
        processor.add(KEY, host)
        replay = Replay(sink.stored, CloseLog(), Counter())
        stored = replay.stored_step(close, keeps_summaries=ledger, again=again)
        processor.close(KEY, stored, again=again)
        wait_stored(sink)
    assert rows(trackio_dir, TOTALS) == [(2,)]


@pytest.mark.parametrize(("n_failures", "total", "counted"), [(2, 4, 0), (3, 2, 1)])
def test_totals_go_on_where_the_store_cannot_be_read_for_a_moment(
    sink, trackio_dir, monkeypatch, n_failures, total, counted
):
    details, failures = sink.stored.details, iter(range(n_failures))

    def read(n: int):
        if next(failures, None) is not None:
            raise OSError("disk I/O error")
        return details(n)

    for step in (1, 2):
        processor = StepProcessor(sink, None, StepOptions(max_rollout_traces_per_step=0))
        key = StepKey("a-001", step, "rollout")
        processor.add(key, batch(step))
        processor.close(key, StoredStep())
        wait_stored(sink)
        monkeypatch.setattr("rollout_traces.steps.processor.PAUSES", (0.0, 0.0, 0.0))
        monkeypatch.setattr(sink.stored, "details", read)
    deadline = time.monotonic() + 30
    while not sink.stored.has_totals(2, "rollout") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert max(rows(trackio_dir, TOTALS)) == (total,)
    assert processor.counters["store_unreadable"] == counted


def test_a_store_that_cannot_be_read_is_read_after_each_pause_and_not_waited_for_again(sink, monkeypatch):
    pauses, done = (0.0, 0.01, 0.02), []
    sleep = time.sleep

    def wait(seconds: float) -> None:
        sleep(seconds)
        if seconds in pauses:
            done.append(seconds)

    def read(n: int):
        done.append("read")
        raise OSError("disk I/O error")

    monkeypatch.setattr("rollout_traces.steps.processor.PAUSES", pauses)
    monkeypatch.setattr(sink.stored, "details", read)
    monkeypatch.setattr(time, "sleep", wait)
    processor = StepProcessor(sink, None, StepOptions(max_rollout_traces_per_step=0))
    processor.add(KEY, batch())
    processor.close(KEY, StoredStep())
    assert done == [0.0, "read", 0.01, "read", 0.02, "read"]


def test_nothing_is_stored_before_the_step_is_closed(sink):
    processor = StepProcessor(sink, None, StepOptions())
    processor.add(KEY, batch(1))
    processor.add(KEY, batch(2))
    assert sink.take_logged() == set()
    processor.close(KEY, StoredStep())
    assert len(sink.take_logged()) == 1
    assert processor.counters["steps_closed"] == 1


def test_a_late_part_has_a_summary_and_no_metrics(sink, trackio_dir):
    processor = StepProcessor(sink, None, StepOptions())
    late = KEY._replace(late=1)
    for key, seed in ((KEY, 1), (late, 2)):
        processor.add(key, batch(seed))
        processor.close(key, StoredStep())
    wait_stored(sink)
    assert (processor.counters["late_parts"], processor.counters["rollouts_late"]) == (1, 2)
    assert rows(trackio_dir, TOTALS) == [(2,)]


def test_joins_reach_the_hand_over_of_an_open_step_only(sink):
    processor = StepProcessor(sink, None, StepOptions())
    host = batch()
    processor.add(KEY, host, ["losses"])
    assert processor.awaits_joins(KEY)
    assert processor.join(host.batch_id, {}, {"losses": np.asarray([0.5, -0.5])})
    assert not processor.awaits_joins(KEY)
    assert not processor.join("unknown", {}, {})


def test_joins_that_never_came_are_counted(sink):
    processor = StepProcessor(sink, None, StepOptions())
    processor.add(KEY, batch(), ["losses"])
    processor.close(KEY, StoredStep())
    assert processor.counters["joins_missed"] == 1


def test_an_open_step_tells_its_hand_overs_and_the_joins_that_came(sink):
    processor = StepProcessor(sink, None, StepOptions())
    first, second = batch(1), batch(2)
    processor.add(KEY, first, ["losses"])
    processor.add(KEY, second)
    assert processor.parts_of(KEY) == (first.batch_id, second.batch_id)
    assert processor.n_joins(KEY) == 0
    processor.join(first.batch_id, {}, {"losses": np.asarray([0.5, -0.5])})
    assert processor.n_joins(KEY) == 1
    assert processor.key_of(second.batch_id) == KEY and processor.key_of("unknown") is None


def test_a_step_that_is_not_open_has_no_hand_overs_no_joins_and_waits_for_none(sink):
    processor = StepProcessor(sink, None, StepOptions())
    processor.add(KEY._replace(step=2), batch(1), ["losses"])
    assert (processor.parts_of(KEY), processor.n_joins(KEY), processor.awaits_joins(KEY)) == ((), 0, False)
