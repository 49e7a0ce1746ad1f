"""What a full or a slow disk cannot take waits in memory, in order, and holds nobody up longer than the bound."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest

from rollout_traces.capture.device_copy import MAX_IN_FLIGHT, TooManyInFlight
from rollout_traces.capture.hand_over import HandOver, join_record
from rollout_traces.capture.host_copy import Capture
from rollout_traces.errors import BatchError, Warnings
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.spool.folder import DiskFull
from rollout_traces.spool.patient_writer import PatientWriter
from rollout_traces.spool.record import Record, decode
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer


class Disk:
    """A spool whose disk is full, slow or neither, as a test wants."""

    def __init__(self) -> None:
        self.full = False
        self.may_write = threading.Event()
        self.may_write.set()
        self.steps: list[int] = []
        self.ids: list[Any] = []
        self.left = 1 << 30

    def append(self, buffers) -> str:
        if self.full:
            raise DiskFull("full")
        assert self.may_write.wait(20)
        record = decode(b"".join(bytes(part) for part in buffers))
        self.steps.append(record.meta["step"])
        self.ids.append(record.arrays.get("input_ids"))
        return f"{len(self.steps):020d}"

    def room(self) -> int:
        return self.left

    def count_waiting(self) -> int:
        return 0

    def keep_ahead(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def hand_over(disk):
    warnings = Warnings(Counter())
    return HandOver(PatientWriter(disk, warnings, 0.2), warnings, 1 << 30)


def scalars(step):
    return Record("scalars", {"step": step, "scalars": {}})


def rollouts():
    return RolloutBatch(**batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=1, group_size=2)))


class TestAFullDisk:
    def test_has_records_wait_in_their_order(self, disk, hand_over):
        disk.full = True
        assert [hand_over.put(scalars(step)) for step in range(3)] == [None] * 3
        assert hand_over.writer.n_pending == 3 and not hand_over.writer.wait(0)
        disk.full = False
        assert hand_over.writer.wait(10)
        assert hand_over.put(scalars(4)) is not None
        assert disk.steps == [0, 1, 2, 4]

    def test_that_stays_full_to_the_end_loses_what_waited_and_says_how_much(self, disk, hand_over):
        disk.full = True
        arrays = batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=2, group_size=2))
        hand_over.rollouts([RolloutBatch(**arrays)], step=1, split="rollout")
        for record in (scalars(1), scalars(2), Record("finish", {})):
            hand_over.put(record)
        hand_over.writer.close()
        hand_over.put(scalars(3))
        counters = hand_over._warnings.counters
        assert (counters["rollouts_dropped"], counters["records_dropped"]) == (4, 3)
        assert hand_over.writer.n_pending == 0


class TestASlowDisk:
    def test_is_waited_for_up_to_the_bound_and_then_by_nobody(self, disk, hand_over):
        disk.may_write.clear()
        assert [hand_over.put(scalars(step)) for step in range(3)] == [None] * 3
        counters = hand_over._warnings.counters
        assert hand_over.writer.n_pending == counters["records_kept_in_memory"] == 3
        disk.may_write.set()
        assert hand_over.writer.wait(10)
        assert disk.steps == [0, 1, 2]
        assert hand_over.put(scalars(3)) is not None, "a healthy disk has written when the call returns"

    def test_keeps_a_record_as_it_was_while_the_next_ones_are_made(self, disk, hand_over):
        batches = [
            RolloutBatch(**batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=1, group_size=2, seed=seed)))
            for seed in range(3)
        ]
        disk.may_write.clear()
        for step, batch in enumerate(batches):
            hand_over.rollouts([batch], step=step, split="rollout")
        disk.may_write.set()
        assert hand_over.writer.wait(10)
        assert [len(ids) for ids in disk.ids] == [int(batch.attention_mask.sum()) for batch in batches]
        for ids, batch in zip(disk.ids, batches, strict=True):
            assert ids.tolist() == batch.input_ids[batch.attention_mask].tolist()

    def test_leaves_tokens_out_where_memory_has_no_room_and_drops_what_is_too_much(
        self, disk, hand_over, monkeypatch
    ):
        arrays = batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=4, group_size=2))
        size = sum(map(len, hand_over.rollouts([RolloutBatch(**arrays)], step=0, split="rollout").buffers))
        monkeypatch.setattr("rollout_traces.spool.patient_writer.MAX_PENDING_BYTES", int(size * 2.5))
        disk.may_write.clear()
        taken = [
            hand_over.rollouts([RolloutBatch(**arrays)], step=step, split="rollout") for step in range(1, 40)
        ]
        counters = hand_over._warnings.counters
        assert taken[0].n_without_tokens == 0 and taken[-1].n_without_tokens == 8
        assert 0 < counters["rollouts_dropped"] < 8 * 36
        n_pending = hand_over.writer.n_pending
        disk.may_write.set()
        assert hand_over.writer.wait(10)
        assert len(disk.steps) == 1 + n_pending == 40 - counters["rollouts_dropped"] // 8

    def test_ends_with_what_is_pending_counted_as_lost(self, disk, hand_over, monkeypatch):
        monkeypatch.setattr("rollout_traces.spool.patient_writer.LAST_WAIT", 0.1)
        disk.may_write.clear()
        for step in range(3):
            hand_over.put(scalars(step))
        hand_over.writer.close()
        assert hand_over._warnings.counters["records_dropped"] == 3
        disk.may_write.set()

    def test_whose_writer_fails_holds_nobody_up_and_the_failure_is_counted(
        self, disk, hand_over, monkeypatch
    ):
        monkeypatch.setattr(disk, "append", lambda buffers: 1 // 0)
        assert hand_over.put(scalars(0)) is None
        assert hand_over._warnings.counters["records_dropped"] == 1
        monkeypatch.undo()
        assert hand_over.put(scalars(1)) is not None


class TestARecordPostedInTheBackground:
    def test_holds_nobody_up_and_comes_after_it(self, disk, hand_over):
        disk.may_write.clear()
        hand_over.later(lambda: hand_over.put(scalars(0)))
        caller = threading.Thread(target=lambda: [hand_over.post(scalars(step)) for step in (1, 2)])
        caller.start()
        caller.join(10)
        held_up = caller.is_alive()
        disk.may_write.set()
        assert hand_over.wait_for_device(10)
        assert not held_up
        assert disk.steps == [0, 1, 2]
        hand_over.post(scalars(3))
        assert disk.steps == [0, 1, 2, 3], "at once where there is nothing to wait for"

    def test_goes_behind_rollouts_that_went_behind_it_themselves(self, disk, hand_over):
        disk.may_write.clear()
        hand_over.later(lambda: hand_over.put(scalars(0)))
        caller = threading.Thread(
            target=lambda: (
                hand_over.rollouts([rollouts()], step=1, split="rollout"),
                hand_over.post(scalars(2)),
                hand_over.rollouts([rollouts()], step=3, split="rollout"),
            )
        )
        caller.start()
        caller.join(10)
        held_up = caller.is_alive()
        disk.may_write.set()
        assert hand_over.wait_for_device(10)
        assert not held_up
        assert disk.steps == [0, 1, 2, 3]
        hand_over.rollouts([rollouts()], step=4, split="rollout")
        assert disk.steps == [0, 1, 2, 3, 4], "at once where there is nothing to wait for"

    def test_is_refused_where_too_many_rollouts_wait_already(self, disk, hand_over):
        has_arrived = threading.Event()
        hand_over.later(lambda: has_arrived.wait(20) and hand_over.put(scalars(0)))
        for step in range(MAX_IN_FLIGHT):
            hand_over.rollouts([rollouts()], step=step, split="rollout")
        with pytest.raises(TooManyInFlight, match=str(MAX_IN_FLIGHT)):
            hand_over.rollouts([rollouts()], step=99, split="rollout")
        has_arrived.set()
        assert hand_over.wait_for_device(10)
        hand_over.rollouts([rollouts()], step=99, split="rollout")
        assert disk.steps == [0, *range(MAX_IN_FLIGHT), 99]

    def test_waits_in_memory_like_any_other_while_the_disk_is_full(self, disk, hand_over):
        disk.full = True
        may_go = threading.Event()
        hand_over.later(lambda: may_go.wait(20))
        hand_over.post(scalars(0))
        may_go.set()
        assert hand_over.wait_for_device(10)
        disk.full = False
        assert hand_over.writer.wait(10)
        assert disk.steps == [0]


class TestAPartThatCannotBeCaptured:
    def test_does_not_take_its_siblings(self, disk, hand_over):
        bad = RolloutBatch(
            **batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=1, group_size=2)) | {"group_ids": [[1], [2]]}
        )
        captured = hand_over.rollouts([rollouts(), bad, rollouts()], step=1, split="rollout")
        counters = hand_over._warnings.counters
        assert (captured.n_rows, counters["rollouts_handed_over"], counters["batches_refused"]) == (4, 4, 1)
        with pytest.raises(TypeError):
            hand_over.rollouts([bad], step=2, split="rollout")
        assert counters["batches_refused"] == 1, "whoever is told counts it"
        assert disk.steps == [1]


class TestWaitingForTheDevice:
    def test_needs_no_thread_that_works(self, hand_over):
        assert hand_over.wait_for_device(0)
        hand_over.later(lambda: None)
        hand_over._background_writer.shutdown()
        assert hand_over.wait_for_device(1)


class TestASpoolNearItsLimit:
    def test_takes_the_groups_that_there_is_room_for(self, disk, hand_over):
        arrays = batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=4, group_size=2))
        whole = hand_over.rollouts([RolloutBatch(**arrays)], step=1, split="rollout")
        disk.left = int(sum(map(len, whole.buffers)) * 1.2)
        part = hand_over.rollouts([RolloutBatch(**arrays)], step=2, split="rollout")
        assert whole.n_without_tokens == 0
        assert 0 < part.n_without_tokens < part.n_rows


class TestWarnings:
    def test_are_said_once_a_kind_and_counted_each_time(self, caplog):
        warnings = Warnings(Counter())
        for row in range(3):
            warnings.count("batches_refused", f"element {row}: loss_mask: seen shape (2, {row}).")
        warnings.count("batches_refused", "element 0: logprobs: seen shape (2, 3).")
        assert [record.getMessage().split("goes on: ")[1][:21] for record in caplog.records] == [
            "element 0: loss_mask:",
            "element 0: logprobs: ",
        ]
        assert warnings.counters["batches_refused"] == 4

    def test_of_too_many_kinds_count_as_one(self, caplog):
        warnings = Warnings(Counter())
        for number in range(1000):
            letters = "".join(chr(97 + int(digit)) for digit in str(number))
            warnings.count("batches_refused", letters)
        assert 100 <= len(caplog.records) <= 101

    def test_of_an_error_without_a_text_raise_nothing(self, caplog):
        class Mute(Exception):
            def __str__(self):
                raise RuntimeError("no text")

        Warnings(Counter()).count("batches_refused", Mute())
        assert "[Mute whose text failed: RuntimeError]" in caplog.text


def take(mask, **given):
    ids = np.arange(mask.size).reshape(mask.shape)
    batch = RolloutBatch(input_ids=ids, attention_mask=mask, loss_mask=mask, **given)
    return Capture().take([batch], step=1, split="rollout")


class TestTokens:
    def test_are_found_where_they_were_handed_over(self):
        mask = np.array([[1, 0, 1, 1, 0, 1], [1, 1, 0, 1, 1, 0]], bool)
        expected = np.flatnonzero(mask).tolist()
        captured = take(mask)
        mask[:] = mask[::-1].copy()
        record = join_record(captured, {"advantages": np.arange(12.0).reshape(2, 6)})
        assert record.arrays["track/advantages"].tolist() == expected


class TestSampleIds:
    def test_that_are_equal_are_matched_in_their_order(self):
        captured = take(np.ones((4, 2), bool), sample_ids=["a", "a", "b", "b"])
        columns = {"losses": np.arange(4.0), "sample_ids": ["b", "a", "b", "a"]}
        assert join_record(captured, columns).arrays["row/losses"].tolist() == [1, 3, 0, 2]

    def test_may_be_arrays_on_either_side(self):
        captured = take(np.ones((2, 2), bool), sample_ids=np.array([7, 8]))
        columns = {"losses": np.arange(2.0), "sample_ids": [8, 7]}
        assert join_record(captured, columns).arrays["row/losses"].tolist() == [1, 0]

    def test_that_are_missing_are_named(self):
        captured = take(np.ones((2, 2), bool), sample_ids=["a", "a"])
        with pytest.raises(BatchError, match="lack 'a'"):
            join_record(captured, {"losses": np.zeros(2), "sample_ids": ["a", "b"]})
