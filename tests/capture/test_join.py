"""What is joined finds its rows and tokens, whatever became of the trainer's memory meanwhile."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_traces.capture.host_copy import Capture
from rollout_traces.capture.join import join_record
from rollout_traces.errors import BatchError
from rollout_traces.model.batch import RolloutBatch


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
