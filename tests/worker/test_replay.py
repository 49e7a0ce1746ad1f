"""After a crash: closes are applied as they were written, and nothing is lost or stored twice."""

from __future__ import annotations

import os
import stat
from collections import Counter

import pytest

from rollout_traces.decode.messages import MessagesDecoder
from rollout_traces.model.packed_batch import StepKey
from rollout_traces.sink.stored import Stored
from rollout_traces.worker.replay import Close, CloseLog, Replay
from tests.worker.held_sink import WritePath

STEP = StepKey("", 1, "rollout")


@pytest.fixture
def path(tmp_path):
    return WritePath(CloseLog(tmp_path / "closes.jsonl"))


def restart(path, tmp_path):
    """The worker is killed; the next one reads the closes from disk."""
    path.closes = CloseLog(tmp_path / "closes.jsonl")
    path.start()


class TestAWorkerThatWasKilled:
    def test_before_anything_was_stored_stores_the_step_as_it_was_closed(self, path, tmp_path):
        path.log(1, 4)
        path.close(1)
        path.turns()
        path.log(1, 2)
        restart(path, tmp_path)
        path.put("flush")
        path.turns()
        path.sink.let_through()
        path.turns()
        assert sorted(path.sink.summaries) == [(1, 0, 4), (1, 1, 2)], "the close is not decided anew"
        assert path.kinds() == []

    def test_after_all_was_stored_stores_nothing_again(self, path, tmp_path):
        path.log(1)
        path.put("flush")
        path.turns()
        path.sink.let_through()
        restart(path, tmp_path)
        path.turns()
        path.sink.let_through()
        path.turns()
        assert path.sink.summaries == [(1, 0, 4)] and path.kinds() == []

    def test_a_step_that_was_open_stays_open_and_takes_more(self, path, tmp_path):
        path.log(1, 4)
        path.turns()
        restart(path, tmp_path)
        path.log(1, 2)
        path.put("flush")
        path.turns()
        path.sink.let_through()
        assert path.sink.summaries == [(1, 0, 6)]

    def test_many_times_loses_and_doubles_nothing(self, path, tmp_path):
        for step in range(6):
            path.log(step, 3)
            path.turns(2)
            if step % 2:
                path.sink.let_through()
            restart(path, tmp_path)
        path.put("flush")
        path.turns(12)
        path.sink.let_through()
        path.turns(12)
        assert sorted(path.sink.summaries) == [(step, 0, 3) for step in range(6)]
        assert path.kinds() == []


class TestTheCapOfAStep:
    """Late parts have what the parts before them left of it, whether or not these are in the store yet."""

    @pytest.fixture
    def path(self, tmp_path):
        return WritePath(
            CloseLog(tmp_path / "closes.jsonl"), MessagesDecoder(), max_rollout_traces_per_step=4
        )

    @pytest.fixture
    def hand_over(self, path):
        def late(n_first, *, between=lambda: None):
            """A step of some rows, then four rows twice that come late."""
            path.log(1, n_first, told=True)
            path.close(1)
            path.turns()
            for step in (2, 3):
                between()
                path.log(1, 4, told=True)
                path.log(step, 1)
                path.close(step)
                path.turns()
            path.put("flush")
            return path

        return late

    def n_traced(self, path):
        """Traces of step 1, by part, once all is stored."""
        for _ in range(12):
            path.turns()
            path.sink.let_through()
        assert path.kinds() == []
        return Counter(
            int(record.metadata.get("late") or 0)
            for key, record, step in path.sink.rows
            if step == 1 and key.endswith("/trajectories")
        )

    def test_is_spent_once_where_the_store_was_not_read_since(self, hand_over):
        assert self.n_traced(hand_over(12)) == {0: 4}

    def test_that_is_left_goes_to_late_parts_and_is_spent_once(self, hand_over):
        assert self.n_traced(hand_over(3)) == {0: 3, 1: 1}

    def test_is_spent_once_where_each_part_was_stored_before_the_next(self, path, hand_over):
        assert self.n_traced(hand_over(3, between=path.sink.let_through)) == {0: 3, 1: 1}

    def test_is_spent_once_where_the_worker_is_killed_between(self, path, hand_over, tmp_path):
        assert self.n_traced(hand_over(3, between=lambda: restart(path, tmp_path))) == {0: 3, 1: 1}

    def test_is_spent_where_trackio_drops_what_was_chosen(self, path, hand_over):
        assert self.n_traced(hand_over(3, between=path.sink.drop)) == {0: 3, 1: 1}

    def test_holds_where_all_is_dropped_at_the_end(self, path, hand_over):
        hand_over(2)
        path.turns()
        path.sink.drop()
        assert self.n_traced(path) == {0: 2, 1: 2}

    def test_is_remembered_no_longer_than_the_store_does_not_know(self, path):
        for step in range(12):
            path.log(step, 4, told=True)
            path.close(step)
            path.turns()
            path.sink.let_through()
            path.turns()
        assert len(path.consumer._replay._chosen) <= 1


class TestReplay:
    @pytest.fixture
    def stored(self):
        return Stored(lambda sql: [], "p", "run")

    def test_a_place_is_sent_again_until_it_is_let_go(self, stored):
        replay = Replay(stored, CloseLog(), Counter())
        replay.send_again([("1", "a"), ("2", "a")])
        assert replay.is_again(("1", "a")) and not replay.is_again(("3", "a"))
        replay.let_go(("1", "a"))
        assert not replay.is_again(("1", "a")) and replay.is_again(("2", "a"))

    def test_a_close_is_known_from_the_log_and_else_from_the_store(self, stored):
        closes = CloseLog()
        replay = Replay(stored, closes, Counter())
        assert replay.close_of("x") is None
        stored._closes["y"] = (STEP, ("y", "z"))
        assert replay.close_of("y") == Close(STEP, ("y", "z"), "stored")
        replay.record(Close(STEP, ("x",), "flush", 0))
        assert replay.close_of("x").why == "flush" and replay.n_closed(STEP) == 1

    def test_a_close_is_written_once(self, stored, tmp_path):
        file = tmp_path / "closes.jsonl"
        replay = Replay(stored, CloseLog(file), Counter())
        for _ in range(2):
            replay.record(Close(STEP, ("x",), "flush", 0))
        assert file.read_bytes().count(b"\n") == 1

    def test_a_late_part_counts_on_from_what_is_stored(self, stored):
        stored._n_closed[STEP] = 2
        assert Replay(stored, CloseLog(), Counter()).n_closed(STEP._replace(late=1)) == 2

    def test_a_hand_over_is_complete_with_its_summary_and_all_its_traces(self, stored, monkeypatch):
        replay = Replay(stored, CloseLog(), Counter())
        assert not replay.is_complete("x")
        stored.summarised.add("x")
        monkeypatch.setattr(stored, "chosen_in_summary", lambda batch_id: {"x-0": None})
        assert not replay.is_complete("x")
        stored.uids.add("x-0")
        assert replay.is_complete("x")

    def test_totals_that_cannot_be_read_are_counted_and_the_step_is_stored(self, stored, monkeypatch):
        counters: Counter[str] = Counter()

        def locked(step, split):
            raise OSError("locked")

        monkeypatch.setattr(stored, "has_totals", locked)
        found = Replay(stored, CloseLog(), counters).stored_step(
            Close(STEP, ("x",), "flush", 0), keeps_summaries=False, again=True
        )
        assert not found.is_summarised and counters["store_unreadable"] == 1

    def test_what_was_chosen_is_remembered_of_a_bounded_number_of_steps(self, stored, monkeypatch):
        monkeypatch.setattr("rollout_traces.worker.replay.MOST_REMEMBERED", 2)
        replay = Replay(stored, CloseLog(), Counter())
        late = Close(STEP._replace(late=1), ("y",), "flush", 0)
        replay.chose(STEP, ["x-0", "x-1"])
        assert replay.stored_step(late, keeps_summaries=True, again=False).n_traced == 2
        for step in (2, 3):
            replay.chose(STEP._replace(step=step), ["z-0"])
        assert replay.stored_step(late, keeps_summaries=True, again=False).n_traced == 0


KEY = StepKey("a-001", 3, "rollout")


def test_a_close_is_read_back_with_its_parts(tmp_path):
    path = tmp_path / "closes.jsonl"
    close = Close(KEY, ("b1", "b2"), "quiet", 1)
    CloseLog(path).record(close)
    again = CloseLog(path)
    assert again.of_part("b1") == again.of_part("b2") == close
    assert again.of_part("b3") is None
    assert (again.n_closed(KEY), again.n_closed(KEY._replace(step=4))) == (1, 0)


def test_late_parts_are_counted_by_their_step(tmp_path):
    log = CloseLog(tmp_path / "closes.jsonl")
    log.record(Close(KEY, ("b1",), "announced", 0))
    log.record(Close(KEY._replace(late=1), ("b2",), "quiet", 0))
    assert log.n_closed(KEY) == 2


def test_a_line_that_was_torn_is_passed_over(tmp_path):
    path = tmp_path / "closes.jsonl"
    log = CloseLog(path)
    log.record(Close(KEY, ("b1",), "announced", 0))
    with path.open("ab") as file:
        file.write(b'{"step": ["a-001", 4')
    assert CloseLog(path).n_closed(KEY) == 1


def test_in_memory_nothing_is_written(tmp_path):
    log = CloseLog()
    log.record(Close(KEY, ("b1",), "announced", 0))
    assert log.n_closed(KEY) == 1 and not list(tmp_path.iterdir())


def test_a_line_that_was_torn_takes_none_that_follows_along(tmp_path):
    path = tmp_path / "closes.jsonl"
    path.write_bytes(b'{"step": ["a-001", 4')
    log = CloseLog(path)
    log.record(Close(KEY, ("b1",), "announced", 0))
    log.record(Close(KEY._replace(late=1), ("b2",), "quiet", 0))
    assert CloseLog(path).n_closed(KEY) == 2


def test_a_line_that_the_disk_cut_off_takes_none_that_follows_along(tmp_path, monkeypatch):
    path = tmp_path / "closes.jsonl"
    log = CloseLog(path)
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda fd, data: write(fd, data[:9]))
        with pytest.raises(OSError, match="no room"):
            log.record(Close(KEY, ("b1",), "announced", 0))
    log.record(Close(KEY, ("b1",), "announced", 0))
    assert CloseLog(path).of_part("b1") == Close(KEY, ("b1",), "announced", 0)


def test_the_file_of_closes_is_this_users_alone(tmp_path):
    file = tmp_path / "closes.jsonl"
    CloseLog(file).record(Close(STEP, ("a",), "announced", 2))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    close = CloseLog(file).of_part("a")
    assert close == Close(STEP, ("a",), "announced", 2) and CloseLog(file).of_part("b") is None
