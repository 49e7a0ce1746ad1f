"""Rollouts end to end on the host, and hand-overs of one step as one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rollout_traces.model.packed_batch import ASSUMED_MASK, PackedBatch, concatenate, hash_ids


def packed(lengths: list[int], sampled: list[int], name: str = "b", **more: object) -> PackedBatch:
    """Rows of ids 0, 1, 2, ...; the flat positions `sampled` were sampled."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    n, rows = int(offsets[-1]), len(lengths)
    mask = np.isin(np.arange(n), sampled)
    known = {
        "batch_id": name,
        "step": 1,
        "split": "rollout",
        "offsets": offsets,
        "input_ids": np.arange(n),
        "loss_mask": mask,
        "response_mask": mask,
        "response_mask_source": "given",
        "tracks": {},
        "n_tokens": np.asarray(lengths),
        "has_tokens": np.ones(rows, bool),
        "group_ids": np.arange(rows),
    }
    return PackedBatch(**{**known, **more})


class TestRows:
    batch = packed(
        [2, 0, 3], [1, 3], row_lists={"stop_reasons": ["stop", None, "length"], "messages": [[1], "x", None]}
    )

    def test_lie_between_their_offsets(self) -> None:
        assert self.batch.n_rows == 3
        assert [self.batch.input_ids[self.batch.row(b)].tolist() for b in range(3)] == [[0, 1], [], [2, 3, 4]]
        assert self.batch.lengths.tolist() == [2, 0, 3]

    def test_have_ids_of_their_hand_over_unless_they_came_with_some(self) -> None:
        assert self.batch.uid(2) == "b-2"
        assert replace(self.batch, row_lists={"uids": ["x", "y", "z"]}).uid(2) == "z"

    def test_have_values_where_a_list_was_given(self) -> None:
        assert self.batch.row_value("stop_reasons", 2) == "length"
        assert self.batch.row_value("sources", 0) is None
        assert [self.batch.conversation(b) for b in range(3)] == [[1], None, None]

    @pytest.mark.parametrize(
        ("values", "sums", "kind"),
        [
            (np.array([True, True, False, True, True]), [2, 0, 2], np.int64),
            (np.array([1, 2, 3, 4, 5], np.int32), [3, 0, 12], np.int64),
            (np.array([1, 2, 3, 4, 5], np.uint8), [3, 0, 12], np.int64),
            (np.array([0.5, 1, 2, 3, 4], np.float32), [1.5, 0, 9], np.float64),
        ],
    )
    def test_sum_what_is_known_of_their_tokens(self, values, sums, kind) -> None:
        found = self.batch.sum_rows(values)
        assert found.tolist() == sums and found.dtype == kind

    def test_count_what_was_sampled_and_what_is_in_the_loss(self) -> None:
        assert self.batch.sampled_positions.tolist() == [1, 3] and self.batch.sampled_counts.tolist() == [
            1,
            0,
            1,
        ]
        assert self.batch.loss_is_sampled and self.batch.loss_counts.tolist() == [1, 0, 1]
        other = replace(self.batch, loss_mask=np.array([False, True, False, False, False]))
        assert not other.loss_is_sampled
        assert other.loss_positions.tolist() == [1] and other.loss_counts.tolist() == [1, 0, 0]

    def test_prompts_end_at_the_first_sampled_token_or_with_the_row(self) -> None:
        assert self.batch.prompt_stops.tolist() == [1, 2, 3]
        assert packed([2, 3], []).prompt_stops.tolist() == [2, 5]
        assert packed([2, 3], [0]).prompt_stops.tolist() == [0, 5]
        assert packed([2, 3], [4]).prompt_stops.tolist() == [2, 4]

    def test_prompt_keys_are_the_callers_else_a_hash_of_the_prompts_ids(self) -> None:
        own = replace(self.batch, row_lists={"prompt_keys": ["p", None, 7]})
        assert own.prompt_keys() == ["p", hash_ids(np.array([])), "7"]
        assert self.batch.prompt_keys() == [
            hash_ids(np.array([0])),
            hash_ids(np.array([])),
            hash_ids(np.array([2])),
        ]
        assert len(hash_ids(np.array([1, 2]))) == 16 != hash_ids(np.array([2, 1]))


class TestJoined:
    def test_columns_take_the_place_of_those_that_were_not_given(self) -> None:
        lacking = np.array([True, False])
        batch = packed(
            [1, 1], [0, 1], not_given={"tracks/a": lacking, "row_floats/c": lacking, "tracks/d": lacking}
        )
        found = batch.joined({"a": np.zeros(2)}, {"c": np.ones(2)})
        assert set(found.tracks) == {"a"} and set(found.row_floats) == {"c"}
        assert list(found.not_given) == ["tracks/d"]
        assert found.lacks("tracks", "a").tolist() == [False, False]
        assert found.lacks("tracks", "d").tolist() == [True, False]
        assert found.lacks("tracks", "z").tolist() == [True, True]


class TestConcatenated:
    first = packed(
        [2, 1],
        [1],
        "a",
        tracks={"versions": np.array([1, 2, 3], np.int32)},
        row_floats={"rewards": np.array([1.0, 0.5])},
        row_lists={"sources": ["x", "y"], "successes": [True, None]},
        notes=("n1",),
    )
    second = packed(
        [1],
        [],
        "b",
        tracks={"logprobs": np.array([-0.5], np.float32)},
        reward_components={"style": np.array([0.25])},
        train_version=4,
        notes=("n1", "n2"),
    )

    def test_one_hand_over_is_itself(self) -> None:
        assert concatenate([self.first]) is self.first

    def test_rows_stand_in_order_with_the_ids_of_their_parts(self) -> None:
        both = concatenate([self.first, self.second])
        assert both.offsets.tolist() == [0, 2, 3, 4] and both.input_ids.tolist() == [0, 1, 2, 0]
        assert [both.uid(b) for b in range(3)] == ["a-0", "a-1", "b-0"]
        assert both.train_version == 4 and both.notes == ("n1", "n2")
        assert both.row_lists["sources"] == ["x", "y", None]

    def test_what_one_part_lacks_is_unknown_there_and_said_not_to_be_given(self) -> None:
        both = concatenate([self.first, self.second])
        assert both.tracks["versions"].tolist() == [1, 2, 3, -1]
        assert np.isnan(both.tracks["logprobs"]).tolist() == [True, True, True, False]
        assert np.isnan(both.row_floats["rewards"]).tolist() == [False, False, True]
        assert {key: rows.tolist() for key, rows in both.not_given.items()} == {
            "tracks/versions": [False, False, True],
            "tracks/logprobs": [True, True, False],
            "row_floats/rewards": [False, False, True],
            "reward_components/style": [True, True, False],
            "row_lists/successes": [False, False, True],
        }

    def test_a_mask_that_is_assumed_in_one_part_is_said_to_be(self) -> None:
        assumed = replace(self.second, response_mask_source="loss_mask")
        both = concatenate([self.first, assumed])
        assert both.response_mask_source == "given"
        assert both.not_given[ASSUMED_MASK].tolist() == [False, False, True]
        again = concatenate([both, assumed])
        assert again.not_given[ASSUMED_MASK].tolist() == [False, False, True, True]
        alike = concatenate([assumed, assumed])
        assert alike.response_mask_source == "loss_mask" and ASSUMED_MASK not in alike.not_given
