"""Calls of a model put end to end: what goes on is one row, what begins anew another."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rollout_traces.errors import BatchError
from rollout_traces.model.model_calls import MergedRow, ModelCall, batch_of_rows, merge_calls

NAN = float("nan")


def known(values: list[float]) -> list[float | None]:
    """NaN as None, which is equal to itself."""
    return [None if math.isnan(value) else value for value in values]


class TestMerging:
    def test_a_call_that_goes_on_adds_what_the_environment_wrote_and_its_answer(self) -> None:
        first = ModelCall([1, 2], [3, 4], logprobs=[-0.5, -0.25], version=7, advantages=0.5)
        second = ModelCall([1, 2, 3, 4, 9, 9], [5], version=8, trained=False)
        (row,) = merge_calls([first, second])
        assert (row.prompt_ids, row.response_ids) == ([1, 2], [3, 4, 9, 9, 5])
        assert row.sampled == [1, 1, 0, 0, 1] and row.trained == [1, 1, 0, 0, 0]
        assert row.turn_ids == [0, 0, -1, -1, 1] and row.versions == [7, 7, -1, -1, 8]
        assert known(row.logprobs) == [-0.5, -0.25, None, None, None]
        assert known(row.advantages) == [0.5, 0.5, None, None, None]
        assert row.calls == [0, 1]

    def test_a_prompt_that_was_rewritten_begins_another_row(self) -> None:
        rows = merge_calls([ModelCall([1, 2], [3]), ModelCall([1, 2, 4], [5]), ModelCall([2, 2, 3], [5])])
        assert [(row.prompt_ids, row.calls) for row in rows] == [
            ([1, 2], [0]),
            ([1, 2, 4], [1]),
            ([2, 2, 3], [2]),
        ]

    def test_a_call_goes_on_with_the_newest_row_that_it_can(self) -> None:
        calls = [ModelCall([1], [2]), ModelCall([1], [2]), ModelCall([1, 2, 3], [4])]
        first, second = merge_calls(calls)
        assert (first.calls, second.calls) == ([0], [1, 2])

    def test_a_prompt_that_ends_within_the_answer_does_not_go_on(self) -> None:
        assert len(merge_calls([ModelCall([1], [2, 3]), ModelCall([1, 2], [3])])) == 2
        assert len(merge_calls([ModelCall([1], [2, 3]), ModelCall([1, 2, 3], [4])])) == 1

    @pytest.mark.parametrize("key", ["logprobs", "advantages"])
    def test_values_that_are_not_one_a_token_are_refused(self, key: str) -> None:
        with pytest.raises(BatchError, match=rf"model call 1: 1 {key}. Expected 2, one a response token"):
            merge_calls([ModelCall([1], [2]), ModelCall([5], [6, 7], **{key: [0.5]})])
        assert merge_calls([ModelCall([5], [6, 7], **{key: [0.5, 1]})])


class TestTheBatch:
    def test_rows_are_padded_on_the_right_with_what_is_known_of_each_token(self) -> None:
        rows = merge_calls(
            [
                ModelCall([1, 2], [3, 4], logprobs=[-0.5, -0.25], version=7, advantages=[1.0, 2.0]),
                ModelCall([8], [9], version=7),
            ]
        )
        batch = batch_of_rows(rows, rewards=[1.0, 0.0])
        kept = np.asarray(batch.attention_mask).astype(bool)
        ids, versions, turns = (
            np.asarray(getattr(batch, name)) for name in ("input_ids", "versions", "turn_ids")
        )
        assert [ids[b][kept[b]].tolist() for b in range(2)] == [[1, 2, 3, 4], [8, 9]]
        assert [versions[b][kept[b]].tolist() for b in range(2)] == [[-1, -1, 7, 7], [-1, 7]]
        assert turns[0][kept[0]].tolist() == [-1, -1, 0, 0]
        assert np.asarray(batch.advantages)[0][kept[0]][2:].tolist() == [1.0, 2.0]
        assert np.asarray(batch.rewards).tolist() == [1.0, 0.0]

    def test_a_row_with_a_call_of_unknown_version_has_none(self) -> None:
        rows = merge_calls(
            [ModelCall([1], [2], version=7), ModelCall([1, 2], [3]), ModelCall([8], [9], version=5)]
        )
        batch = batch_of_rows(rows)
        assert set(np.asarray(batch.versions)[0].tolist()) == {-1}
        assert 5 in np.asarray(batch.versions)[1].tolist()

    def test_columns_that_no_row_knows_are_not_given(self) -> None:
        batch = batch_of_rows(merge_calls([ModelCall([1], [2])]))
        assert batch.versions is None and batch.advantages is None

    def test_a_row_that_was_made_by_hand_is_continued_by_what_begins_with_it(self) -> None:
        row = MergedRow([1, 2], [3])
        assert row.is_continued_by(ModelCall([1, 2, 3], [4]))
        assert not row.is_continued_by(ModelCall([1, 3, 3], [4])) and not row.is_continued_by(
            ModelCall([1, 2], [4])
        )
