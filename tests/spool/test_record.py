"""Records come back as they were, and never as something else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rollout_traces.capture.host_copy import capture
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.spool.record import (
    Record,
    RecordBuffer,
    RecordError,
    batch_from_record,
    decode,
    encode,
    float16_overflows,
    narrowest_int,
)
from tests.capture.packing import batch_to_record

RESERVED = (6, 7)
"""Bytes of the prefix that mean nothing."""


def as_bytes(record: Record) -> bytes:
    return b"".join(bytes(part) for part in encode(record))


def make_record() -> Record:
    arrays = {
        "ids": np.arange(1000, dtype=np.uint32),
        "logprobs": np.array([0.5, np.nan, np.inf, -np.inf], np.float16),
        "empty": np.zeros(0, np.int64),
        "grid": np.arange(6, dtype=np.int16).reshape(2, 3),
    }
    return Record("rollouts", {"step": 3, "names": ["a", None]}, arrays)


class TestRoundTrip:
    def test_gives_back_what_was_written(self):
        record = make_record()
        back = decode(as_bytes(record))
        assert (back.kind, back.meta) == (record.kind, record.meta)
        for name, array in record.arrays.items():
            assert back.arrays[name].dtype == array.dtype
            np.testing.assert_array_equal(back.arrays[name], array)

    def test_ignores_what_an_earlier_and_longer_record_left_behind_it(self):
        assert decode(as_bytes(make_record()) + b"old bytes" * 100).kind == "rollouts"

    def test_reads_from_memory_of_any_alignment(self):
        data = b"x" + as_bytes(make_record())
        assert decode(memoryview(data)[1:]).meta["step"] == 3

    def test_a_buffer_serves_one_record_after_another(self):
        buffer = RecordBuffer()
        for n in (5, 100_000, 3):
            buffer.clear(4 * n)
            buffer.reserve("ids", np.int32, n)[:] = n
            data = b"".join(bytes(part) for part in buffer.finish("rollouts", {"n": n}))
            np.testing.assert_array_equal(decode(data).arrays["ids"], np.full(n, n))

    def test_says_what_json_cannot(self):
        meta = {"set": {1}, "text": "\ud800", "big": 2**80, 3: "key", "bytes": b"x", "nan": float("nan")}
        back = decode(as_bytes(Record("scalars", meta))).meta
        assert back == {
            "set": [1],
            "text": "\ufffd",
            "big": str(2**80),
            "3": "key",
            "bytes": "x",
            "nan": None,
        }


class TestDamage:
    @given(cut=st.integers(0, 5000))
    def test_every_cut_is_noticed(self, cut):
        data = as_bytes(make_record())
        if cut < len(data):
            with pytest.raises(RecordError, match="torn"):
                decode(data[:cut])

    @example(at=4, bit=0)
    @given(at=st.integers(0, 5000), bit=st.integers(0, 7))
    def test_every_flipped_bit_is_noticed(self, at, bit):
        data = bytearray(as_bytes(make_record()))
        at %= len(data)
        data[at] ^= 1 << bit
        if at in RESERVED:
            return
        with pytest.raises(RecordError):
            decode(bytes(data))

    def test_a_newer_schema_is_named(self):
        data = bytearray(as_bytes(make_record()))
        data[4] = 9
        with pytest.raises(RecordError, match=r"schema 9.*Upgrade"):
            decode(bytes(data))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([], np.int8),
        ([-128, 127], np.int8),
        ([-129], np.int16),
        ([128], np.int16),
        ([-(2**15), 2**15 - 1], np.int16),
        ([2**15], np.int32),
        ([-(2**31), 2**31 - 1], np.int32),
    ],
)
def test_integers_are_kept_in_the_narrowest_kind_that_holds_them(values, kind):
    assert narrowest_int(np.asarray(values, np.int64)) == kind


@pytest.mark.parametrize(
    ("values", "overflows"),
    [
        ([], False),
        ([1.0, -1.0, 65504.0, -65504.0], False),
        ([np.inf, -np.inf, 1.0], False),
        ([np.nan, 1.0], False),
        ([np.nan, -np.inf], False),
        ([1.0, 1e6], True),
        ([-1e6, 1.0], True),
        ([np.nan, np.inf, 1e6], True),
    ],
)
def test_a_finite_value_that_float16_cannot_hold_is_noticed(values, overflows):
    wide = np.asarray(values, np.float32)
    with np.errstate(over="ignore"):
        assert float16_overflows(wide.astype(np.float16), wide) is overflows


@pytest.mark.parametrize("source", ["given", "versions", "loss_mask"])
def test_masks_of_a_batch_come_back_to_the_last_row(source):
    """They are packed to bits over all rows: how many of these there are is what the rows say."""
    lengths, draw = np.array([3, 1, 9]), np.random.default_rng(0)
    is_there = np.arange(9) < lengths[:, None]
    loss, response = (draw.integers(0, 2, (3, 9)) * is_there for _ in range(2))
    loss[2, 8] = response[2, 8] = 1
    further = {
        "given": {"response_mask": response},
        "versions": {"versions": np.where(response, 2, -1)},
        "loss_mask": {},
    }
    given = {
        "input_ids": np.arange(27).reshape(3, 9),
        "attention_mask": is_there.astype(int),
        "loss_mask": loss,
    }
    batch = capture([RolloutBatch(**given, **further[source], rewards=np.zeros(3))], step=1, split="rollout")
    back = batch_from_record(decode(as_bytes(batch_to_record(batch))))
    assert back.offsets.tolist() == [0, 3, 4, 13]
    np.testing.assert_array_equal(back.loss_mask, loss[is_there])
    np.testing.assert_array_equal(back.response_mask, (loss if source == "loss_mask" else response)[is_there])
