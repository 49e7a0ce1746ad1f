"""What is written to Trackio: one bad value never takes its siblings, and values become a histogram of few bins."""

from __future__ import annotations

import sqlite3
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rollout_traces.model.transcript import Alert
from rollout_traces.sink.trackio_sink import BINS, TrackioSink, binned
from rollout_traces.trace.conversion import STEPS, TRAJECTORIES, TraceRecord
from tests.test_write_path import scalars, stored
from tests.worker.readback import rows

HOSTILE = {
    "a lone surrogate": "broken \ud800 text",
    "bytes": b"\xff\x00",
    "a tensor": torch.arange(3),
    "an array": np.arange(3.0),
    "an integer beyond 64 bits": 2**70,
    "not a number": float("nan"),
    "an object": object(),
    "a set": {1, 2},
    "a tuple": (1, np.float32(2)),
}


@pytest.fixture
def sink(trackio_dir):
    sink = TrackioSink.open(project="p", name="run")
    yield sink
    sink.finish()


def record(uid, **metadata):
    return TraceRecord(
        [{"role": "user", "content": metadata.get("text", "hello")}],
        {"uid": uid, **metadata},
        [{"id": "rollout", "name": "rollout", "kind": "span", "token_track": "AAAA"}],
    )


def settle(sink):
    deadline = time.monotonic() + 20
    while not sink.idle() and time.monotonic() < deadline:
        time.sleep(0.05)


@pytest.mark.parametrize("what", HOSTILE)
def test_one_bad_value_takes_neither_its_trace_nor_a_sibling(sink, trackio_dir, what):
    records = [record("b-0"), record("b-1", value=HOSTILE[what]), record("b-2")]
    sink.log_traces("rollout/trajectories", records, step=3)
    settle(sink)
    assert [found.metadata["uid"] for _, found in stored(trackio_dir, "rollout/trajectories")] == [
        "b-0",
        "b-1",
        "b-2",
    ]


@pytest.mark.parametrize(
    ("values", "is_there"),
    [
        ([1.0, 2.0, 3.0], True),
        ([2.0, 2.0], True),
        ([1e30, 1e30], False),
        ([1e30, np.nextafter(1e30, np.inf)], False),
        ([-1.7e308, 1.7e308], False),
        ([0.0, 5e-324], False),
        ([1.0, np.inf], False),
        ([], False),
    ],
)
def test_a_histogram_that_has_no_bins_takes_nothing_along(sink, trackio_dir, values, is_there):
    sink.log_traces(
        "rollout/steps",
        [record("b-digest")],
        step=3,
        scalars={"loss": 1.0},
        histograms={"rewards": np.asarray(values), "lengths": np.asarray([1, 2], np.int64)},
    )
    settle(sink)
    assert len(stored(trackio_dir, "rollout/steps")) == 1
    assert ("rewards" in scalars(trackio_dir)[3], "lengths" in scalars(trackio_dir)[3]) == (is_there, True)


def test_a_message_that_cannot_be_encoded_takes_no_sibling(sink, trackio_dir):
    sink.log_traces("rollout/trajectories", [record("b-0", text="\udcff"), record("b-1")], step=3)
    settle(sink)
    assert len(stored(trackio_dir, "rollout/trajectories")) == 2


def test_a_step_of_any_integer_type_is_stored_as_it_is(sink, trackio_dir):
    sink.log_traces("rollout/trajectories", [record("b-0")], step=np.int64(3))
    settle(sink)
    assert [step for step, _ in stored(trackio_dir, "rollout/trajectories")] == [3]


def test_what_is_logged_in_a_burst_is_not_dropped(sink, trackio_dir):
    for step in range(200):
        sink.log_traces("rollout/trajectories", [record(f"b{step}-0")], step=step)
    settle(sink)
    assert len(stored(trackio_dir, "rollout/trajectories")) == 200


@pytest.mark.parametrize("split", ["rollout", "eval-rollout"])
@pytest.mark.parametrize("kind", [TRAJECTORIES, STEPS])
def test_keys_are_too_short_for_their_session_files_to_collide(split, kind):
    assert len(f"{split}/{kind}") < 34


def test_a_config_that_holds_nothing_somewhere_is_no_hindrance_to_an_export(trackio_dir, tmp_path):
    from trackio.sqlite_storage import SQLiteStorage

    sink = TrackioSink.open(project="p", name="run", config={"empty": {}, "nested": {"empty": {}, "x": 1}})
    sink.log_scalars({"loss": 1.0}, step=1)
    settle(sink)
    sink.finish()
    SQLiteStorage.export_for_static_space("p", tmp_path / "export")
    assert (tmp_path / "export" / "aux" / "configs.parquet").exists()


class TestAnAlertThatIsRaisedAgain:
    """As where Trackio dropped its step, which is judged again."""

    ALERT = Alert("its title", "it's one sentence", "warn")

    def raised(self, sink):
        sink.alert(self.ALERT, step=3)
        settle(sink)

    @pytest.fixture
    def sent(self, sink):
        sent = []
        sink.webhook = SimpleNamespace(send=lambda alert, step: sent.append((alert, step)))
        return sent

    def test_is_stored_and_sent_once(self, sink, sent, trackio_dir):
        for _ in range(2):
            self.raised(sink)
        assert rows(trackio_dir, "select step, title from alerts") == [(3, "its title")]
        assert sent == [(self.ALERT, 3)]

    def test_and_was_dropped_too_is_stored_after_all(self, sink, sent, trackio_dir):
        self.raised(sink)
        with sqlite3.connect(trackio_dir / "p.db") as db:
            db.execute("delete from alerts")
        self.raised(sink)
        assert rows(trackio_dir, "select step, title from alerts") == [(3, "its title")]
        assert sent == [(self.ALERT, 3)]

    def test_is_stored_twice_rather_than_never_and_counted(self, sink, sent, trackio_dir, monkeypatch):
        def locked(sql):
            raise ValueError("locked")

        monkeypatch.setattr(sink.stored, "query", locked)
        for _ in range(2):
            self.raised(sink)
        assert len(rows(trackio_dir, "select step from alerts")) == 2
        assert sink.counters == {"alerts_perhaps_twice": 1}


class TestPacing:
    """Trackio's sender takes what is queued every half second; the queue lies in memory until then."""

    def test_waits_for_no_sender_while_what_is_queued_is_small(self, sink, monkeypatch):
        monkeypatch.setattr("rollout_traces.sink.trackio_sink.LONGEST_SEND", -1.0)
        monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("waited"))
        for step in range(500):
            sink.log_scalars({"a": float(step)}, step=step)

    def test_waits_for_the_sender_when_what_is_queued_is_large(self, sink, monkeypatch):
        monkeypatch.setattr("rollout_traces.sink.trackio_sink.QUEUE_BYTES", 1000)
        for step in range(4):
            sink.log_traces(TRAJECTORIES, [record(f"b-{step}", text="word " * 100)], step=step)
            assert len(sink.run._queued_logs) <= 2

    def test_waits_for_the_sender_when_many_calls_are_queued(self, sink, monkeypatch):
        monkeypatch.setattr("rollout_traces.sink.trackio_sink.QUEUE_CALLS", 10)
        for step in range(50):
            sink.log_scalars({"a": float(step)}, step=step)
            assert len(sink.run._queued_logs) <= 10


class SendingRun:
    """A run whose sender has a batch in its hands, for a number of looks."""

    project, id, name = "p", "r", "run"

    def __init__(self, looks, url=None):
        self.looks, self.url = looks, url
        self.batch, self.logged_at = ["a batch"], []

    @property
    def _sending_batch(self):
        self.looks -= 1
        return self.batch if self.looks >= 0 else None

    def log(self, values, step):
        self.logged_at.append(self.looks)


class TestLettingTrackioSend:
    """Two threads of Python that both want the processor take more of it than one after the other."""

    def test_logs_only_once_the_sender_is_done(self):
        run = SendingRun(looks=5)
        TrackioSink(run, owned=False).log_scalars({"a": 1.0}, step=1)
        assert run.logged_at == [-1]

    def test_waits_once_for_a_batch_that_takes_long(self, monkeypatch):
        monkeypatch.setattr("rollout_traces.sink.trackio_sink.LONGEST_SEND", 0.05)
        run = SendingRun(looks=10_000)
        sink = TrackioSink(run, owned=False)
        sink.log_scalars({"a": 1.0}, step=1)
        monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("waited again"))
        sink.log_scalars({"a": 2.0}, step=2)
        assert len(run.logged_at) == 2

    def test_waits_for_no_server(self, monkeypatch):
        monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("waited"))
        run = SendingRun(looks=10_000, url="http://127.0.0.1:1")
        TrackioSink(run, owned=False).log_scalars({"a": 1.0}, step=1)
        assert len(run.logged_at) == 1


def test_few_values_have_as_many_bins_and_many_have_the_most():
    assert [len(binned(np.arange(n))[0]) for n in (1, 3, BINS, 10 * BINS)] == [1, 3, BINS, BINS]


def test_a_value_on_an_edge_falls_into_the_bin_that_begins_there():
    counts, edges = binned(np.repeat([5.0, 8.0, 11.0], 7)[:20])
    at = int(np.flatnonzero(edges == 8.0)[0])
    assert counts[at] == 7
    assert counts.sum() == 20
    assert counts[[0, -1]].tolist() == [7, 6]


def test_equal_values_stand_in_the_middle():
    counts, edges = binned(np.full(3, 2.0))
    assert (counts.tolist(), edges[0], edges[-1]) == ([0, 3, 0], 1.5, 2.5)


@pytest.mark.parametrize("values", [[], [np.nan], [1.0, np.inf], [-1.7e308, 1.7e308], [1e30, 1e30]])
def test_what_no_bins_part_has_no_histogram(values):
    assert binned(np.asarray(values, np.float64)) is None
