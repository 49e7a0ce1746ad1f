"""Left, right and shifted layouts all come out as the one canonical batch."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rollout_traces.capture.host_copy import capture
from rollout_traces.errors import BatchError
from rollout_traces.integrations import areal, openrlhf, rllm, slime, trl, verl_v1
from rollout_traces.integrations.base import watched
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.stats import trajectories


def rows_of(batches):
    """Each row as (ids, loss mask, response mask), padding gone."""
    host = capture(RolloutBatch.from_any(batches), step=0, split="rollout")
    return host, [
        (
            host.input_ids[host.row(b)].tolist(),
            host.loss_mask[host.row(b)].astype(int).tolist(),
            host.response_mask[host.row(b)].astype(int).tolist(),
        )
        for b in range(host.n_rows)
    ]


class TestTrl:
    def scored(self, **output):
        tensors = {
            "prompt_ids": torch.tensor([[0, 5, 6], [4, 5, 6]]),
            "prompt_mask": torch.tensor([[0, 1, 1], [1, 1, 1]]),
            "completion_ids": torch.tensor([[7, 8, 9, 2], [7, 2, 0, 0]]),
            "completion_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]),
            "advantages": torch.tensor([1.0, -1.0]),
        }
        return {**tensors, **output}

    def test_left_padded_prompts_and_right_padded_completions_join(self):
        output = self.scored(tool_mask=torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1]]))
        _, rows = rows_of(trl.batches_from(trl.ScoredCompletions(output)))
        assert rows == [
            ([5, 6, 7, 8, 9, 2], [0, 0, 1, 0, 1, 1], [0, 0, 1, 0, 1, 1]),
            ([4, 5, 6, 7, 2], [0, 0, 0, 1, 1], [0, 0, 0, 1, 1]),
        ]

    def test_a_completion_that_trl_masked_because_it_was_cut_keeps_its_tokens(self):
        output = self.scored(completion_mask=torch.tensor([[0, 0, 0, 0], [1, 1, 0, 0]]))
        scored = trl.ScoredCompletions(output, completion_lengths=[4, 2], sampled=[[1, 0, 1, 1], [1, 1]])
        _, rows = rows_of(trl.batches_from(scored))
        assert rows[0] == ([5, 6, 7, 8, 9, 2], [0] * 6, [0, 0, 1, 0, 1, 1])

    def test_rewards_are_the_weighted_sum_and_those_that_gave_none_are_left_out(self):
        scored = trl.ScoredCompletions(
            self.scored(),
            rewards={"correct": [1.0, float("nan")], "short": [0.5, float("nan")]},
            reward_weights=[1.0, 0.5],
            global_step=4,
        )
        host, _ = rows_of(trl.batches_from(scored))
        assert host.row_floats["rewards"][0] == 1.25
        assert np.isnan(host.row_floats["rewards"][1])
        assert host.train_version == 4
        assert set(host.tracks["versions"].tolist()) == {-1, 4}

    def test_recomputed_logprobs_are_prox_and_an_engines_own_are_the_rollouts(self):
        output = self.scored(
            old_per_token_logps=torch.full((2, 4), -0.5), sampling_per_token_logps=torch.full((2, 4), -0.25)
        )
        host, _ = rows_of(trl.batches_from(trl.ScoredCompletions(output)))
        assert host.tracks["logprobs"][2] == -0.25
        assert host.tracks["prox_logprobs"][2] == -0.5
        assert np.isnan(host.tracks["logprobs"][0])

    def observed(self, rank: int, names: list[str]):
        """An observer of rank `rank` of two, after its reward functions gave 0 to 7 and their tens."""
        trainer = SimpleNamespace(
            accelerator=SimpleNamespace(num_processes=2, process_index=rank),
            num_generations=2,
            num_generations_eval=2,
            reward_func_names=names,
            reward_weights=torch.tensor([1.0, 1.0]),
            state=SimpleNamespace(global_step=3),
            _pending_extra_logs={"note": ["a", "b", "c", "d"], "of_other_rows": ["a"]},
        )
        observer = trl._TrlObserver("trl", trainer, None, {})
        rewards_B_F = torch.stack([torch.arange(8.0), torch.arange(8.0) * 10], dim=1)
        texts = [f"p{rank}-{i}" for i in range(4)]
        calculate = watched(
            "trl", lambda inputs, prompts, completions, ids: rewards_B_F, after=observer.on_rewards
        )
        calculate(None, texts, texts, None)
        return observer, [{"prompt": prompt, "answer": "4"} for prompt in texts]

    @pytest.mark.parametrize("rank", [0, 1])
    def test_each_process_takes_its_own_slice_of_the_gathered_rewards(self, rank):
        observer, rows = self.observed(rank, ["right", "short"])
        scored = observer._scored(rows, {}, range(4))
        assert scored.rewards["right"] == [4.0 * rank + i for i in range(4)]
        assert scored.messages is None

    @pytest.mark.parametrize("rank", [0, 1])
    def test_the_groups_of_a_step_are_numbered_over_all_processes_and_calls(self, rank):
        observer, _ = self.observed(rank, ["right", "short"])
        trainer = observer.trainer
        trainer.model = SimpleNamespace(training=True)
        own = [2 * rank, 2 * rank, 2 * rank + 1, 2 * rank + 1]
        first, again = observer._place_of(4), observer._place_of(4)
        assert (first.step, first.split, first.groups) == (4, "rollout", own)
        assert again.groups == [4 + group for group in own]
        trainer.model.training = False
        evaluated = observer._place_of(4)
        assert (evaluated.step, evaluated.split, evaluated.groups) == (3, "eval-rollout", own)
        trainer.model.training, trainer.state.global_step = True, 4
        assert observer._place_of(4).groups == own

    def test_two_reward_functions_of_one_name_stay_two(self):
        observer, rows = self.observed(0, ["<lambda>", "<lambda>"])
        rewards = observer._scored(rows, {}, range(4)).rewards
        assert rewards == {"<lambda>": [0.0, 1.0, 2.0, 3.0], "<lambda>_2": [0.0, 10.0, 20.0, 30.0]}

    def test_what_a_reward_function_logged_is_kept_where_it_speaks_of_every_row(self):
        observer, rows = self.observed(0, ["right", "short"])
        columns = observer._scored(rows, {}, range(4)).columns
        assert columns == {"answer": ["4"] * 4, "note": ["a", "b", "c", "d"]}
        [batch] = trl.batches_from(
            trl.ScoredCompletions(self.scored(), columns={"note": ["a", "b"], "images": [[], []]})
        )
        assert batch.extras == [{"note": "a"}, {"note": "b"}]

    def test_rewards_of_another_call_are_not_taken(self):
        observer, rows = self.observed(0, ["right", "short"])
        with pytest.raises(BatchError, match=r"saw 4 rows\. Expected the batch's 3"):
            observer._scored(rows[:3], {}, range(3))

    def test_a_missing_key_is_named(self):
        with pytest.raises(BatchError, match="TRL's batch: key 'completion_mask' is missing"):
            trl.batches_from(trl.ScoredCompletions({"prompt_ids": 1, "prompt_mask": 1, "completion_ids": 1}))


class TestAreal:
    def trajectory(self, **more):
        return {
            "input_ids": torch.tensor([[5, 6, 7], [5, 8, 0]]),
            "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]).bool(),
            "loss_mask": torch.tensor([[0, 1, 1], [0, 1, 0]]),
            "versions": torch.tensor([[-1, 3, 4], [-1, 3, 0]]),
            "rewards": torch.tensor([1.0, 0.0]),
            **more,
        }

    def test_each_dict_is_a_group_and_a_dropped_one_does_not_shift_those_after_it(self):
        batches = areal.batches_from([self.trajectory(), None, self.trajectory()])
        host, rows = rows_of(batches)
        assert host.group_ids.tolist() == [0, 0, 2, 2]
        assert rows[1] == ([5, 8], [0, 1], [0, 1])

    def test_padding_whose_versions_are_zero_is_not_taken_for_sampled(self):
        host, _ = rows_of(areal.batches_from([self.trajectory()]))
        assert host.tracks["versions"].tolist() == [-1, 3, 4, -1, 3]

    def test_a_flat_conversation_of_a_group_is_not_given_to_every_row(self):
        flat = [{"role": "user", "content": "a"}]
        [batch] = areal.batches_from([self.trajectory(messages=flat)])
        assert batch.messages is None

    def test_one_conversation_a_row_is_kept(self):
        both = [[{"role": "user", "content": "a"}], None]
        [batch] = areal.batches_from([self.trajectory(conversation=both)])
        assert batch.messages == both

    def test_interactions_without_tensors_keep_their_text_and_reward(self):
        interaction = {"request": [{"role": "user", "content": "hi"}], "response": "hello", "reward": 0.5}
        [batch] = areal.batches_from([{"interactions": [interaction]}])
        assert batch.messages[0][-1] == {"role": "assistant", "content": "hello"}
        host, rows = rows_of([batch])
        assert rows == [([], [], [])]
        assert host.row_floats["rewards"].tolist() == [0.5]

    @pytest.mark.parametrize(
        ("given", "seen"), [({"foo": 1}, "foo"), ({"rewards": torch.ones(2)}, "rewards")]
    )
    def test_a_dict_that_is_no_rollout_is_refused_with_its_keys(self, given, seen):
        with pytest.raises(BatchError, match=rf"neither .input_ids. nor .interactions.\. Seen {seen}"):
            areal.batches_from([given])

    def test_a_dict_whose_tokens_were_left_out_keeps_its_rewards(self):
        left = {"rewards": torch.tensor([1.0, 0.5]), trajectories.TOKENS_LEFT_OUT: True}
        host, rows = rows_of(areal.batches_from([left]))
        assert rows == [([], [], [])] * 2
        assert host.row_floats["rewards"].tolist() == [1.0, 0.5]


class TestSlime:
    def sample(self, **more):
        fields = {
            "tokens": [5, 6, 7, 8, 9],
            "response_length": 3,
            "loss_mask": [1, 0, 1],
            "rollout_log_probs": [-0.5, 0.0, -0.25],
            "reward": 1.0,
            "group_index": 2,
            "index": 11,
            "weight_versions": ["4"],
            "status": SimpleNamespace(value="truncated"),
        }
        return SimpleNamespace(**{**fields, **more})

    def test_a_response_mask_lands_behind_its_prompt(self):
        host, rows = rows_of(slime.batches_from([self.sample(), self.sample(tokens=[1, 2, 3, 4])]))
        assert rows[0] == ([5, 6, 7, 8, 9], [0, 0, 1, 0, 1], [0, 0, 1, 0, 1])
        assert rows[1] == ([1, 2, 3, 4], [0, 1, 0, 1], [0, 1, 0, 1])
        assert host.row_lists["stop_reasons"] == ["length", "length"]
        assert host.tracks["versions"][:5].tolist() == [-1, -1, 4, -1, 4]

    def test_a_sample_of_two_versions_or_of_none_leaves_the_others_theirs(self):
        mixed = self.sample(weight_versions=["4", "5"], metadata={"level": 2, "tags": ["x"]})
        aborted = self.sample(weight_versions=[], status=SimpleNamespace(value="aborted"))
        host, _ = rows_of(slime.batches_from([self.sample(), mixed, aborted]))
        versions = host.tracks["versions"].reshape(3, 5).tolist()
        assert versions == [[-1, -1, 4, -1, 4], [-1] * 5, [-1] * 5]
        assert host.response_mask.reshape(3, 5).any(1).all()
        assert host.row_lists["extras"] == [None, {"level": 2}, None]
        assert host.row_lists["known_columns"] == [None, {"version_min": 4, "version_max": 5}, None]

    def test_the_reward_is_the_named_one_that_slime_trains_on(self):
        reward = {"right": 1.0, "short": 0.5, "judge": "fine"}
        [batch] = slime.batches_from([self.sample(reward=reward)], reward_key="right")
        assert batch.rewards.tolist() == [1.0]
        assert {name: column.tolist() for name, column in batch.reward_components.items()} == {
            "right": [1.0],
            "short": [0.5],
        }

    def test_named_rewards_without_a_key_leave_the_reward_unknown(self):
        [batch] = slime.batches_from([self.sample(reward={"right": 1.0}), self.sample(reward=0.25)])
        assert batch.rewards.tolist() == [None, 0.25]

    def test_a_reward_that_is_a_text_raises_nothing(self):
        [batch] = slime.batches_from([self.sample(reward={"judge": "fine"}), self.sample(reward="fine")])
        assert batch.extras == [{"judge": "fine"}, None]
        assert batch.rewards is None

    def test_a_mask_of_another_length_is_refused_with_both(self):
        with pytest.raises(BatchError, match=r"loss_mask has 2 values\. Expected response_length = 3"):
            slime.batches_from([self.sample(loss_mask=[1, 1])])

    @pytest.mark.parametrize("length", [-1, 6])
    def test_a_response_longer_than_its_tokens_is_refused(self, length):
        with pytest.raises(BatchError, match=rf"response_length is {length}\. Expected 0 to the 5"):
            slime.batches_from([self.sample(response_length=length)])


class TestVerlV1:
    def test_a_row_whose_weights_changed_leaves_the_others_their_versions(self):
        fetched = verl_v1.Fetched(
            keys=["a_0_0", "a_1_0"],
            tags=[
                {"min_global_steps": 3, "max_global_steps": 3},
                {"min_global_steps": 3, "max_global_steps": 4},
            ],
            fields={"prompts": [[1], [1]], "responses": [[5, 6], [7, 8]], "response_mask": [[1, 0], [1, 1]]},
        )
        host, _ = rows_of(verl_v1.batches_from(fetched))
        assert host.tracks["versions"].reshape(2, 3).tolist() == [[-1, 3, -1], [-1, -1, -1]]
        assert host.response_mask.reshape(2, 3).tolist() == [[0, 1, 0], [0, 1, 1]]


class TestRllm:
    def test_metrics_of_an_episode_and_signals_of_a_trajectory_are_the_row_s_own_numbers(self):
        step = SimpleNamespace(prompt_ids=[1, 2], response_ids=[3], logprobs=[-0.5])
        trajectory = SimpleNamespace(name="solver", reward=1.0, steps=[step], signals={"format": 0.5})
        episode = SimpleNamespace(
            id="t:0", is_correct=True, metrics={"acc": 1.0, "by": "judge"}, trajectories=[trajectory]
        )
        [batch] = rllm.batches_from([episode])
        assert {k: list(v) for k, v in batch.sample_metrics.items()} == {"acc": [1.0], "format": [0.5]}


class TestOpenRlhf:
    def test_the_shifted_action_mask_comes_back_into_the_ids_frame(self):
        experience = SimpleNamespace(
            sequences=torch.tensor([[0, 5, 6, 7, 2]]),
            attention_mask=torch.tensor([[0, 1, 1, 1, 1]]),
            action_mask=torch.tensor([[0, 0, 1, 1]]),
            rollout_log_probs=torch.tensor([[0.0, 0.0, -0.5, -0.25]]),
            rewards=torch.tensor([1.0]),
        )
        host, rows = rows_of(openrlhf.batches_from([experience]))
        assert rows == [([5, 6, 7, 2], [0, 0, 1, 1], [0, 0, 1, 1])]
        assert host.tracks["logprobs"][2:].tolist() == [-0.5, -0.25]

    def test_one_experience_a_sample_makes_groups_of_equal_prompts(self):
        def experience(prompt: str) -> dict:
            return {
                "sequences": torch.tensor([[5, 6, 7]]),
                "attention_mask": torch.ones(1, 3),
                "action_mask": torch.tensor([[0, 1]]),
                "prompts": [prompt],
            }

        host, _ = rows_of(openrlhf.batches_from([experience("a"), experience("b"), experience("a")]))
        assert host.group_ids.tolist() == [0, 1, 0]

    def test_two_groups_of_one_prompt_stay_two_where_the_group_size_is_given(self):
        experience = SimpleNamespace(
            sequences=torch.tensor([[5, 6]] * 4),
            attention_mask=torch.ones(4, 2),
            action_mask=torch.ones(4, 1),
            prompts=["a"] * 4,
            index=[2, 3, 0, 1],
            info={"reward": torch.ones(4), "format": torch.arange(4.0), "of_all": torch.ones(1)},
        )
        [batch] = openrlhf.batches_from([experience], group_size=2)
        assert batch.group_ids == [1, 1, 0, 0]
        assert list(batch.sample_metrics) == ["format"]

    def test_a_mask_that_is_not_one_shorter_is_refused_with_both_shapes(self):
        experience = {
            "sequences": torch.ones(1, 5, dtype=torch.int64),
            "attention_mask": torch.ones(1, 5),
            "action_mask": torch.ones(1, 5),
        }
        with pytest.raises(BatchError, match=r"seen shape \(1, 5\). Expected \[B, T - 1\] = \(1, 4\)"):
            openrlhf.batches_from([experience])
