"""The consumer: a record leaves its spool once the store is seen to hold it, and each rule of a close is counted."""

from __future__ import annotations

import pytest

from rollout_traces.worker.priority import CalledAway
from tests.worker.held_sink import WritePath


@pytest.fixture
def path():
    return WritePath()


class TestLettingGo:
    def test_a_record_waits_until_its_step_is_stored(self, path):
        path.log(1)
        path.close(1)
        path.turns()
        assert path.kinds() == ["rollouts", "close"] and path.sink.summaries == []
        path.sink.let_through()
        path.turns()
        assert path.kinds() == [] and path.sink.summaries == [(1, 0, 4)]
        assert path.counters["rollouts_stored"] == 4 and path.counters["step_summaries_stored"] == 1

    def test_a_record_is_let_go_as_soon_as_trackio_has_stored_all(self, path, monkeypatch):
        monkeypatch.setattr("rollout_traces.worker.consumer.CONFIRM_EVERY", 1e9)
        path.log(1)
        path.close(1)
        path.consumer.turn()
        path.sink.let_through()
        path.consumer.turn()
        assert path.kinds() == []

    def test_a_flush_is_not_let_go_before_what_came_before_it_is_stored(self, path):
        path.log(1)
        path.put("flush")
        path.turns()
        assert path.kinds() == ["rollouts", "flush"]
        path.sink.let_through()
        path.turns()
        assert path.kinds() == []

    def test_a_flush_behind_another_that_is_stored_waits_for_its_own_step(self, path):
        path.put("flush")
        path.log(1)
        path.put("flush")
        path.turns()
        assert path.kinds() == ["rollouts", "flush"]

    def test_what_trackio_dropped_is_sent_again_and_stored_once(self, path):
        path.log(1)
        path.put("flush")
        path.turns()
        path.sink.drop()
        path.turns()
        assert path.counters["sent_again"] == 1
        path.sink.let_through()
        path.turns()
        assert path.sink.drops == 1 and path.sink.summaries == [(1, 0, 4)] and path.kinds() == []

    def test_a_store_that_cannot_be_read_is_asked_again_later(self, path, monkeypatch):
        path.log(1)
        path.put("flush")

        def fails():
            raise OSError("locked")

        monkeypatch.setattr(path.sink.stored, "refresh", fails)
        path.turns()
        assert path.counters["store_unreadable"] >= 1 and path.kinds() == ["rollouts", "flush"]
        monkeypatch.undo()
        path.sink.let_through()
        path.turns()
        assert path.kinds() == []

    def test_it_is_asked_ever_later_and_that_is_said_now_and_then(self, path, caplog):
        for _ in range(120):
            path.consumer._back_off("store_unreadable", OSError("locked"))
        said = [message for message in caplog.messages if "store_unreadable" in message]
        assert said == [
            f"store_unreadable ({n} so far), next attempt in {pause} s: locked"
            for n, pause in ((1, "0.2"), (10, "30.0"), (100, "30.0"))
        ]
        assert path.counters["store_unreadable"] == 120

    def test_each_pause_is_twice_the_one_before(self, path, caplog):
        for n in range(9):
            path.consumer._back_off(f"counter {n}", OSError("locked"))
        pauses = [float(message.split(" s: ")[0].split()[-1]) for message in caplog.messages]
        assert pauses == [0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]

    def test_what_was_stored_is_counted_by_its_kind(self, path):
        path.log(1)
        path.put("flush")
        path.put("scalars", step=1, scalars={"loss": 1.0})
        path.turns()
        path.sink.let_through()
        path.turns()
        counted = {name: n for name, n in path.counters.items() if name.endswith("_stored")}
        assert counted == {
            "rollouts_stored": 4,
            "traces_stored": len(path.sink.rows) - 1,
            "step_summaries_stored": 1,
            "flush_stored": 1,
            "scalars_stored": 1,
        }

    def test_a_record_that_cannot_be_processed_is_set_aside_and_its_siblings_go_on(self, path):
        path.put("scalars", step=1)
        path.put("scalars", step=2, scalars={"loss": 1.0})
        path.turns()
        assert path.counters["process_errors"] == 1
        assert path.sink.scalars == [(2, {"loss": 1.0})] and path.kinds() == []

    def test_it_runs_until_it_is_told_to_end(self, path):
        path.put("scalars", step=2, scalars={"loss": 1.0})
        turns = []
        path.consumer.run_until(lambda: len(turns) >= 3, lambda: turns.append(1))
        assert path.sink.scalars == [(2, {"loss": 1.0})]


class TestBeingCalledAway:
    """A thread that gives way leaves a step as it was; another judges it from the beginning."""

    def test_within_a_step_leaves_it_to_be_judged_once(self, path):
        calls = []

        def call_away():
            calls.append(1)
            if len(calls) == 3:
                raise CalledAway

        path.log(1)
        path.log(2)
        path.put("flush")
        path.checkpoint = call_away
        with pytest.raises(CalledAway):
            path.turns()
        assert path.sink.waiting == []
        path.turns()
        path.sink.let_through()
        path.turns()
        assert path.sink.summaries == [(1, 0, 4), (2, 0, 4)] and path.kinds() == []
        assert path.counters["steps_closed"] == 2 and path.counters["closed_next_step"] == 1

    def test_is_asked_for_at_the_beginning_and_while_a_flush_waits(self, path):
        assert path.consumer.is_awaited, "nothing is stored yet"
        path.log(1)
        path.log(2)
        path.turns()
        assert path.consumer.is_awaited, "the first step is not stored yet"
        path.sink.let_through()
        path.turns()
        assert not path.consumer.is_awaited
        path.put("flush")
        path.turns()
        assert path.consumer.is_awaited
        path.sink.let_through()
        path.turns()
        assert not path.consumer.is_awaited


class TestHowOftenTheStoreIsAsked:
    def test_rollouts_of_an_open_step_alone_ask_nothing(self, path, monkeypatch):
        path.log(1)
        path.turns()
        asked = []
        monkeypatch.setattr(path.sink.stored, "refresh", lambda: asked.append(1))
        path.turns()
        assert asked == []
        path.close(1)
        path.turns()
        assert asked

    def test_a_turn_takes_many_records_however_long_listing_them_takes(self, path, monkeypatch):
        monkeypatch.setattr("rollout_traces.worker.consumer.TURN", -1.0)
        for step in range(20):
            path.put("scalars", step=step, scalars={"loss": 1.0})
        path.consumer.turn()
        assert len(path.sink.scalars) == 20


class TestClosing:
    """Every rule of "bad input" with its counter."""

    def test_calls_of_a_step_are_judged_together_when_the_next_step_begins(self, path):
        path.log(1, 4)
        path.log(1, 2)
        path.turns()
        assert path.counters["steps_closed"] == 0
        path.log(2)
        path.turns()
        path.sink.let_through()
        assert path.sink.summaries == [(1, 0, 6)]

    def test_rows_that_come_late_are_a_part_of_their_own(self, path):
        path.log(1)
        path.close(1)
        path.log(1, 2)
        path.put("flush")
        path.turns()
        path.sink.let_through()
        assert path.sink.summaries == [(1, 0, 4), (1, 1, 2)]
        assert (path.counters["late_parts"], path.counters["rollouts_late"]) == (1, 2)

    def test_a_close_for_a_step_nobody_logged_is_counted(self, path):
        path.close(7)
        path.turns()
        assert path.counters["closes_of_nothing"] == 1 and path.kinds() == []

    def test_a_close_called_twice_is_counted_and_closes_once(self, path):
        path.log(1)
        path.close(1)
        path.close(1)
        path.turns()
        path.sink.let_through()
        assert path.counters["closes_repeated"] == 1 and path.sink.summaries == [(1, 0, 4)]

    def test_a_step_that_goes_back_within_an_attempt_is_a_late_part(self, path):
        for step in (1, 2, 1):
            path.log(step)
        path.put("flush")
        path.turns()
        path.sink.let_through()
        assert path.sink.summaries == [(1, 0, 4), (1, 1, 4), (2, 0, 4)] or path.sink.summaries == [
            (1, 0, 4),
            (2, 0, 4),
            (1, 1, 4),
        ]
        assert path.counters["rollouts_late"] == 4

    def test_another_attempt_closes_what_the_one_before_left_open(self, path):
        path.log(3, attempt="a-1")
        path.log(1, attempt="a-2")
        path.turns()
        path.sink.let_through()
        assert path.sink.summaries == [(3, 0, 4)] and path.counters["closed_attempt"] == 1

    def test_a_step_that_never_closes_is_closed_once_its_owner_is_gone(self, path):
        path.log(1, announced=True)
        path.turns()
        assert path.counters["steps_closed"] == 0
        path.spool.close()
        path.turns()
        assert path.counters["steps_closed"] == path.counters["closed_gone"] == 1

    def test_a_join_that_is_awaited_holds_the_step_until_a_later_one_is_due(self, path):
        path.log(1, await_join=["advantages"])
        path.close(1)
        path.turns()
        assert path.counters["steps_closed"] == 0
        path.log(2)
        path.close(2)
        path.turns()
        assert path.counters["steps_closed"] == 2 and path.counters["joins_missed"] == 1

    def test_a_join_after_the_close_is_counted(self, path):
        path.log(1, name="0" * 12)
        path.close(1)
        path.put("join", batch_id="0" * 12)
        path.turns()
        assert path.counters["joins_too_late"] == 1

    def test_a_close_that_cannot_be_written_down_leaves_the_step_open(self, path, monkeypatch):
        def full(close):
            raise OSError("disk full")

        monkeypatch.setattr(path.closes, "record", full)
        path.log(1)
        path.put("flush")
        path.turns()
        assert path.counters["closes_unwritten"] >= 1 and path.counters["steps_closed"] == 0
        monkeypatch.undo()
        path.turns()
        assert path.counters["steps_closed"] == 1
