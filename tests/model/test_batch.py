"""A batch that cannot be understood is refused at the edge, by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rollout_traces as rt
from rollout_traces.capture.host_copy import capture
from rollout_traces.errors import BatchError
from rollout_traces.model.batch import RolloutBatch, keys_left_out
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer


def arrays(B: int = 2, T: int = 5, **more):
    return {
        "input_ids": torch.arange(B * T).reshape(B, T),
        "attention_mask": torch.ones(B, T, dtype=torch.bool),
        "loss_mask": torch.ones(B, T),
        **more,
    }


def test_a_version_that_is_no_number_is_refused():
    arrays = batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=1, group_size=2))
    with pytest.raises(BatchError, match=r"train_version: seen 'v1'\. Expected an int"):
        RolloutBatch(**{**arrays, "train_version": "v1"})


class TestRequiredKeys:
    @pytest.mark.parametrize("key", ["input_ids", "attention_mask", "loss_mask"])
    def test_a_missing_key_is_named_with_what_was_expected(self, key):
        given = arrays()
        del given[key]
        with pytest.raises(BatchError, match=rf"required key '{key}' is missing.*Expected"):
            RolloutBatch.from_dict(given)

    def test_the_seen_keys_are_listed(self):
        with pytest.raises(BatchError, match="Seen keys: prompt_ids, rewards"):
            RolloutBatch.from_dict({"prompt_ids": 1, "rewards": 2})


class TestShapes:
    def test_a_mask_of_another_length_names_both_shapes(self):
        with pytest.raises(BatchError, match=r"loss_mask: seen shape \(2, 4\).*Expected \[B, T\] = \(2, 5\)"):
            RolloutBatch(**arrays(loss_mask=torch.ones(2, 4)))

    def test_one_dimensional_ids_are_refused(self):
        with pytest.raises(BatchError, match=r"input_ids: seen shape \(5,\).*Expected \[B, T\]"):
            RolloutBatch(**arrays(input_ids=torch.arange(5)))

    def test_float_ids_are_refused(self):
        with pytest.raises(BatchError, match=r"input_ids: seen dtype torch\.float32"):
            RolloutBatch(**arrays(input_ids=torch.ones(2, 5)))

    def test_ragged_lists_are_refused(self):
        with pytest.raises(BatchError, match="input_ids: seen a ragged list"):
            RolloutBatch(**arrays(input_ids=[[1, 2], [3]]))

    def test_rewards_of_another_count_are_refused(self):
        with pytest.raises(BatchError, match=r"rewards: seen shape \(3,\).*Expected \[B\] = \(2,\)"):
            RolloutBatch(**arrays(rewards=torch.ones(3)))

    def test_a_list_of_another_length_is_refused(self):
        with pytest.raises(BatchError, match=r"stop_reasons: seen 1 values. Expected B = 2"):
            RolloutBatch(**arrays(stop_reasons=["stop"]))

    def test_a_component_is_named_in_its_error(self):
        with pytest.raises(BatchError, match=r"reward_components\['format'\]: seen shape \(1,\)"):
            RolloutBatch(**arrays(reward_components={"format": torch.ones(1)}))

    def test_advantages_may_be_one_a_row_or_one_a_token(self):
        assert RolloutBatch(**arrays(advantages=torch.ones(2))).advantages.shape == (2,)
        assert RolloutBatch(**arrays(advantages=torch.ones(2, 5))).advantages.shape == (2, 5)


class TestCoercion:
    def test_lists_become_arrays_and_tensors_stay_what_they_are(self):
        ids = torch.arange(10).reshape(2, 5)
        batch = RolloutBatch(ids, np.ones((2, 5), int), [[1] * 5, [0] * 5], rewards=[1, 2.5])
        assert batch.input_ids is ids
        assert batch.rewards.tolist() == [1, 2.5]

    def test_per_token_rewards_move_to_the_token_track(self):
        batch = RolloutBatch(**arrays(rewards=torch.ones(2, 5)))
        assert batch.rewards is None
        assert batch.token_rewards.shape == (2, 5)

    def test_a_zero_dimensional_reward_of_one_row_is_taken(self):
        assert RolloutBatch(**arrays(B=1, rewards=torch.tensor(0.5))).rewards.shape == (1,)

    def test_a_flat_list_of_messages_is_refused_because_it_would_give_every_row_the_same_conversation(self):
        flat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        with pytest.raises(BatchError, match="messages: seen a flat list of messages"):
            RolloutBatch(**arrays(messages=flat))


class TestFromPromptResponse:
    def test_responses_lie_behind_their_prompts_and_the_rest_is_unknown(self):
        batch = RolloutBatch.from_prompt_response(
            [[1, 2], [3]],
            [[4, 5, 6], [7]],
            loss_mask=[[1, 0, 1], [1]],
            logprobs=[[-1.0, -2.0, -3.0], None],
            versions=[[4, 4, 4], [5]],
            rewards=[1.0, 0.0],
        )
        assert batch.input_ids.tolist() == [[1, 2, 4, 5, 6], [3, 7, 0, 0, 0]]
        assert batch.attention_mask.sum(1).tolist() == [5, 2]
        assert batch.loss_mask.astype(int).tolist() == [[0, 0, 1, 0, 1], [0, 1, 0, 0, 0]]
        assert batch.versions.tolist() == [[-1, -1, 4, 4, 4], [-1, 5, -1, -1, -1]]
        assert batch.logprobs.tolist() == [[None, None, -1.0, -2.0, -3.0], [None] * 5]

    def test_without_a_mask_every_response_token_is_in_the_loss(self):
        batch = RolloutBatch.from_prompt_response([[1], []], [[2, 3], [4]], advantages=[0.5, -0.5])
        assert batch.loss_mask.astype(int).tolist() == [[0, 1, 1], [1, 0, 0]]
        assert batch.advantages.tolist() == [0.5, -0.5]

    def test_a_track_of_another_length_names_the_row_and_both_lengths(self):
        with pytest.raises(BatchError, match=r"logprobs: row 1 has 2 values. Expected 1"):
            RolloutBatch.from_prompt_response([[1], [1]], [[2, 3], [4]], logprobs=[[0, 0], [0, 0]])

    def test_a_missing_response_is_refused(self):
        with pytest.raises(BatchError, match="prompt_ids: 2 rows, response_ids: 1"):
            RolloutBatch.from_prompt_response([[1], [1]], [[2]])


class TestFromAny:
    def test_a_batch_is_itself_and_a_mapping_is_one(self):
        batch = RolloutBatch(**arrays())
        assert RolloutBatch.from_any(batch) == [batch]
        assert [one.n_rows for one in RolloutBatch.from_any(arrays(B=3))] == [3]
        assert [one.n_rows for one in RolloutBatch.from_any((batch, arrays(B=1)))] == [2, 1]

    def test_a_list_of_dicts_gives_a_batch_each_and_passes_over_dropped_trajectories(self):
        assert [b.n_rows for b in RolloutBatch.from_any([arrays(B=3), None, arrays(B=1)])] == [3, 1]

    def test_something_else_is_refused_by_type(self):
        with pytest.raises(BatchError, match="batch: seen int"):
            RolloutBatch.from_any(3)


class TestAsGroup:
    def test_rows_without_groups_become_one_and_the_batch_given_stays_as_it_was(self):
        batch = RolloutBatch.from_dict(arrays(rewards=[0.0, 1.0]))
        grouped = batch.as_group("part 3")
        assert grouped.group_ids == ["part 3", "part 3"] and batch.group_ids is None
        assert grouped.rewards is batch.rewards and grouped.input_ids is batch.input_ids

    def test_groups_that_are_given_stay(self):
        batch = RolloutBatch.from_dict(arrays(group_ids=[4, 5]))
        assert batch.as_group("part 3") is batch


class TestAsTensors:
    def test_arrays_become_tensors_and_the_rest_stays(self):
        rewards = np.ma.masked_array([1.0, 0.0], mask=[False, True])
        batch = RolloutBatch(
            **arrays(),
            rewards=rewards,
            reward_components={"judge": np.asarray([0.5, 1.0])},
            sources=["a", "b"],
        )
        tensors = batch.to_torch()
        assert isinstance(tensors.input_ids, torch.Tensor) and tensors.input_ids.dtype == torch.int64
        np.testing.assert_array_equal(tensors.input_ids.numpy(), batch.input_ids)
        np.testing.assert_array_equal(tensors.rewards.numpy(), [1.0, np.nan])
        assert isinstance(tensors.reward_components["judge"], torch.Tensor) and tensors.sources == ["a", "b"]


class TestKeysLeftOut:
    def test_all_are_named_with_what_may_have_been_meant(self):
        given = arrays(reward=[1.0, 0.0], old_logps=1, zzz=2)
        assert keys_left_out(given) == {"reward": "rewards", "old_logps": "prox_logprobs", "zzz": None}

    def test_a_canonical_key_that_was_given_too_is_not_meant(self):
        assert keys_left_out(arrays(reward=[1.0, 0.0], rewards=[1.0, 0.0])) == {"reward": None}

    def test_the_logger_names_them_once(self, trackio_dir, caplog):
        logger = rt.RolloutLogger("p", "r", worker="thread", max_rollout_traces_per_step=0)
        for step in range(3):
            logger.log_rollouts(arrays(reward=[1.0, 0.0], old_logps=[1, 2]), step=step)
        assert logger.finish() and logger.counters["keys_left_out"] == 6
        said = [record.getMessage() for record in caplog.records if "left out: reward" in record.getMessage()]
        assert len(said) == 1 and "reward (meant rewards?), old_logps (meant prox_logprobs?)" in said[0]


class TestPackedSequences:
    def test_more_edges_than_rows(self):
        with pytest.raises(BatchError, match=r"cu_seqlens: 4 edges, so 3 sequences.*packed.*pad_sequence"):
            RolloutBatch.from_dict(arrays(cu_seqlens=torch.tensor([0, 2, 4, 5])))

    def test_edges_of_the_rows_themselves_are_no_packing(self):
        assert RolloutBatch.from_dict(arrays(cu_seqlens=torch.tensor([0, 5, 10]))).n_rows == 2

    def test_positions_that_begin_anew(self):
        with pytest.raises(BatchError, match=r"position_ids: row 1 begins anew 1 times.*packed"):
            RolloutBatch.from_dict(arrays(position_ids=[[0, 1, 2, 3, 4], [0, 1, 0, 1, 2]]))

    def test_positions_of_padding_on_either_side_do_not(self):
        mask = [[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]]
        given = arrays() | {"attention_mask": torch.tensor(mask)}
        positions = torch.tensor([[1, 1, 0, 1, 2], [0, 1, 2, 0, 0]])
        assert RolloutBatch.from_dict({**given, "position_ids": positions}).n_rows == 2

    def test_an_attention_mask_that_numbers_sequences(self):
        given = arrays() | {"attention_mask": torch.tensor([[1, 1, 2, 2, 2], [1, 1, 1, 1, 1]])}
        with pytest.raises(BatchError, match=r"attention_mask: seen values up to 2.*packed"):
            capture([RolloutBatch.from_dict(given)], step=0, split="rollout")


class TestWhatHoldsNoNumbers:
    @pytest.mark.parametrize(
        ("value", "said"),
        [
            (lambda: torch.ones(2, device="meta"), "rewards: seen a tensor on the meta device.*no values"),
            (
                lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
                "rewards: seen a nested tensor",
            ),
            (lambda: torch.ones(2).to_sparse(), "rewards: seen a sparse tensor.*to_dense"),
            (
                lambda: {"task": [1, 0], "style": [0, 1]},
                "rewards: seen a mapping.*task, style.*reward_components",
            ),
            (lambda: [{"task": 1}, {"task": 0}], "rewards: seen a list of mappings.*task.*reward_components"),
        ],
    )
    def test_is_refused_by_its_key(self, value, said):
        with pytest.raises(BatchError, match=said):
            RolloutBatch.from_dict(arrays(rewards=value()))

    @pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
    def test_nested_ids_are_refused_by_their_key(self, layout):
        rows = [torch.tensor([5, 6]), torch.tensor([5, 6, 7])]
        with pytest.raises(BatchError, match=r"input_ids: seen a nested tensor.*to_padded_tensor"):
            RolloutBatch.from_dict(arrays(input_ids=torch.nested.nested_tensor(rows, layout=layout)))


def test_a_hole_in_the_attention_mask_is_said_and_counted(trackio_dir, caplog):
    logger = rt.RolloutLogger("p", "r", worker="thread", max_rollout_traces_per_step=0)
    mask = torch.tensor([[1, 0, 0, 1, 1], [0, 1, 1, 1, 0]])
    logger.log_rollouts({**arrays(), "attention_mask": mask}, step=0)
    assert logger.finish() and logger.counters["rollouts_with_holes"] == 1
    assert "2 tokens between first and last ones of 1 rollouts" in caplog.text
