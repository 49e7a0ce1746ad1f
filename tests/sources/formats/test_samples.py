"""Each format reads what its trainer's own code wrote, and says nothing that the file does not say."""

from __future__ import annotations

import json
import pickle
from collections import deque
from pathlib import Path

import numpy as np
import pytest

from rollout_traces.sources.base import FileReading
from rollout_traces.sources.problems import Problems
from rollout_traces.sources.rows import batch_of
from tests.sources.reading import SAMPLES, rows_of, runs_of

EXPECTED = {
    "areal": ("areal", 4, False),
    "atif": ("atif", 2, True),
    "inspect": ("inspect", 4, False),
    "atropos": ("atropos", 4, True),
    "nemo-gym": ("nemo-gym", 2, True),
    "nemo-rl": ("nemo-rl", 4, True),
    "open-instruct": ("open-instruct", 8, True),
    "rllm": ("rllm", 8, False),
    "scout": ("scout", 5, False),
    "skyrl": ("skyrl-evals", 4, False),
    "skyrl-training": ("skyrl-training", 3, True),
    "slime": ("slime", 4, True),
    "tinker": ("tinker", 8, False),
    "tinker-capture": ("tinker-capture", 12, True),
    "trl": ("trl", 8, False),
    "verifiers": ("verifiers", 6, True),
    "verifiers-results": ("verifiers-results", 4, False),
    "verl": ("verl", 16, False),
}
"""Sample -> its format, its rollouts, and whether it has token ids."""


@pytest.mark.parametrize("sample", EXPECTED)
def test_a_sample_is_recognised_and_read_whole(sample):
    name, n_rows, has_ids = EXPECTED[sample]
    problems = Problems()
    formats = {file.format.name for run in runs_of(SAMPLES / sample) for file in run.files}
    rows = rows_of(SAMPLES / sample, problems, trust_pickle=True)
    assert (formats, len(rows)) == ({name}, n_rows)
    assert any(row.input_ids is not None for row in rows) == has_ids
    assert set(problems.counts) == ({"splits_not_told"} if sample == "trl" else set())


@pytest.mark.parametrize("sample", EXPECTED)
def test_what_a_file_lacks_is_what_its_rows_lack(sample):
    for run in runs_of(SAMPLES / sample):
        for file in run.files:
            rows = [row for row, _, _ in file.format.rows(FileReading(file, Problems(), trust_pickle=True))]
            assert ("token ids" in file.claim.lacks) == all(row.input_ids is None for row in rows)
            assert ("rewards" in file.claim.lacks) == all(row.reward is None for row in rows)


def write_completions(folder: Path, step: int, completions: list) -> None:
    import pandas as pd

    folder.mkdir(exist_ok=True)
    n = len(completions)
    table = {"step": [step] * n, "prompt": ["q"] * n, "completion": completions, "right": [1.0] * n}
    pd.DataFrame(table | {"advantage": [0.0] * n}).to_parquet(folder / f"completions_{step:05d}.parquet")


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class TestTokensAreTheDumps:
    """Ids, masks and float tracks arrive in the batch as they are in the file, value for value; floats as float32."""

    def test_nemo_rl(self):
        path = SAMPLES / "nemo-rl/train_data_step1.jsonl"
        rows = rows_of(path)
        batch = batch_of(rows, decodes_tokens=True)
        for b, given in enumerate(lines(path)):
            n = given["input_lengths"][0]
            assert batch.input_ids[b, :n].tolist() == given["token_ids"][0][:n]
            assert batch.loss_mask[b, :n].tolist() == [bool(v) for v in given["token_loss_mask"][0][:n]]
            assert batch.logprobs[b, :n].tolist() == np.float32(given["generation_logprobs"][0][:n]).tolist()
            assert batch.prox_logprobs[b, :n].tolist() == np.float32(given["prev_logprobs"][0][:n]).tolist()
            assert batch.advantages[b, :n].tolist() == np.float32(given["advantages"][0][:n]).tolist()
            assert batch.attention_mask[b].sum() == n
            assert batch.rewards[b] == given["rewards"][0]

    def test_open_instruct(self):
        path = SAMPLES / "open-instruct/tulu_rollouts_000000.jsonl"
        for row, given in zip(rows_of(path), lines(path), strict=True):
            prompt, response = given["prompt_tokens"], given["response_tokens"]
            assert row.input_ids == prompt + response
            assert row.loss_mask == [0] * len(prompt) + [1] * len(response)
            assert row.tracks["logprobs"] == [None] * len(prompt) + given["logprobs"]
            assert (row.reward, row.advantage, row.group) == (
                given["reward"],
                given["advantage"],
                given["prompt_idx"],
            )

    def test_slime(self):
        import torch

        path = SAMPLES / "slime/rollout_data/3.pt"
        samples = torch.load(path, weights_only=True)["samples"]
        for row, given in zip(rows_of(path), samples, strict=True):
            before = len(given["tokens"]) - given["response_length"]
            mask = given["loss_mask"] or [1] * given["response_length"]
            assert row.input_ids == given["tokens"]
            assert list(row.loss_mask) == [0] * before + mask
            expected = np.where(mask, given["rollout_log_probs"], np.nan).astype(np.float32)
            np.testing.assert_array_equal(row.tracks["logprobs"][before:], expected)
            assert set(np.asarray(row.tracks["versions"])[np.asarray(row.loss_mask) == 1]) == {4}
        assert [row.stop_reason for row in rows_of(path)] == ["stop", "stop", "stop", "length"]

    @pytest.mark.parametrize(
        "told, of_tokens, of_row",
        [
            (["4", "4"], {4}, {}),
            (["3", "5", "4"], None, {"version_min": 3, "version_max": 5}),
            (["default", "4"], None, {}),
            ([], None, {}),
        ],
    )
    def test_slime_tells_versions_a_call_and_each_row_has_its_own(self, tmp_path, told, of_tokens, of_row):
        import torch

        path = tmp_path / "rollout_data/3.pt"
        path.parent.mkdir()
        sample = {"tokens": [1, 2, 3], "response_length": 2, "prompt": "q", "response": "r"}
        samples = [sample | {"weight_versions": ["7"]}, sample | {"weight_versions": told}]
        torch.save({"rollout_id": 3, "samples": samples}, path)
        [other, row] = rows_of(path)
        assert list(other.tracks["versions"]) == [-1, 7, 7]
        assert ("versions" in row.tracks and set(row.tracks["versions"][1:])) == (of_tokens or False)
        assert row.known_columns == of_row

    def test_miles_writes_the_same_with_its_metadata_and_no_logprob_where_nothing_was_sampled(self, tmp_path):
        import torch

        sample = {
            "tokens": [1, 2, 3, 4],
            "response_length": 3,
            "loss_mask": [1, 0, 1],
            "reward": 1.0,
            "index": 0,
        }
        sample |= {
            "rollout_log_probs": [-0.5, 0.0, -0.25],
            "group_index": 0,
            "status": "completed",
            "metadata": {},
        }
        path = tmp_path / "dump_details" / "rollout_data" / "7.pt"
        path.parent.mkdir(parents=True)
        torch.save({"rollout_id": 7, "metadata": {"n": 1}, "samples": [sample]}, path)
        [row] = rows_of(path)
        assert (row.step, list(row.loss_mask)) == (7, [0, 1, 0, 1])
        np.testing.assert_array_equal(row.tracks["logprobs"], [np.nan, -0.5, np.nan, -0.25])

    def test_atropos(self):
        path = SAMPLES / "atropos/groups.jsonl"
        rows = iter(rows_of(path))
        for given in lines(path):
            for n, ids in enumerate(given["tokens"]):
                row, sampled = next(rows), [value != -100 for value in given["masks"][n]]
                assert (row.input_ids, row.reward, row.group) == (ids, given["scores"][n], row.group)
                assert [bool(value) for value in row.loss_mask] == sampled
                expected = [
                    v if own else None for v, own in zip(given["inference_logprobs"][n], sampled, strict=True)
                ]
                assert row.tracks["logprobs"] == expected

    def test_nemo_gym(self):
        [given] = lines(SAMPLES / "nemo-gym/competitive_coding_challenges_rollouts.jsonl")
        [row] = rows_of(SAMPLES / "nemo-gym/competitive_coding_challenges_rollouts.jsonl")
        call = given["response"]["output"][-1]
        n = len(call["prompt_token_ids"])
        assert row.input_ids == call["prompt_token_ids"] + call["generation_token_ids"]
        assert row.loss_mask == [0] * n + [1] * len(call["generation_token_ids"])
        assert row.tracks["logprobs"][n:] == call["generation_log_probs"]
        assert row.messages[-1]["reasoning_content"] and row.messages[-1]["content"]
        assert [message["role"] for message in row.messages] == ["user", "assistant"]

    @pytest.mark.parametrize("place", ["store", "lines"])
    def test_tinker_capture_calls_are_put_together_by_trajectory_and_branch(self, place):
        calls = lines(SAMPLES / "tinker-capture/lines/capture/sample.jsonl")
        rows = rows_of(SAMPLES / "tinker-capture" / place)
        assert [(row.step, row.sample_id, row.parent) for row in rows[:3]] == [
            (0, "0-0-0", None),
            (0, "0-0-1", None),
            (0, "0-0-1/1", "0-0-1"),
        ]
        at = 0
        for row in rows:
            own = calls[at : at + (1 if row.parent else 2)]
            at += len(own)
            assert row.input_ids == own[-1]["prompt_tokens"] + own[-1]["samples"][0]["tokens"]
            for call in own:
                start, sampled = len(call["prompt_tokens"]), call["samples"][0]
                assert row.tracks["logprobs"][start : start + 3] == sampled["logprobs"]
                assert row.loss_mask[start : start + 3] == [1, 1, 1]
            assert sum(row.loss_mask) == 3 * len(own)

    def test_prime_rl_token_exports(self):
        path = SAMPLES / "prime-rl/token_exports/step_5/rank_0.jsonl"
        [row], [given] = rows_of(path), lines(path)
        assert row.input_ids == given["token_ids"]
        assert row.tracks["logprobs"] == given["inference_logprobs"]
        assert row.tracks["prox_logprobs"] == given["trainer_logprobs"]
        assert "loss_weights" not in row.tracks
        batch = batch_of([row], decodes_tokens=True)
        assert np.ma.getmaskarray(batch.prox_logprobs).tolist() == [[False] * 4]
        assert np.isnan(batch.prox_logprobs[0, 0])

    def test_verifiers_along_each_path(self):
        path = SAMPLES / "verifiers/traces.jsonl"
        nodes = lines(path)[0]["traces"][0]["nodes"]
        first, second, third, *_ = rows_of(path)
        for row, numbers in ((first, [0, 1, 2, 3, 4]), (second, [0, 5, 6]), (third, [7, 8])):
            along = [nodes[n] for n in numbers]
            assert row.input_ids == [i for node in along for i in node["token_ids"]]
            sampled = [m for node in along for m in node["mask"]]
            assert row.response_mask == sampled
            known = [v for v, m in zip(row.tracks["logprobs"], sampled, strict=True) if m]
            assert known == [v for node in along for v in node.get("logprobs", [])]


class TestVerifiersTree:
    def test_branches_are_rows_of_one_episode_with_their_parents(self):
        rows = rows_of(SAMPLES / "verifiers/traces.jsonl")[:3]
        assert len({row.episode for row in rows}) == 1
        assert [row.parent for row in rows] == [None, rows[0].sample_id, rows[0].sample_id]
        assert [len(row.messages) for row in rows] == [5, 3, 2]

    def test_an_episode_that_was_trained_on_is_read_once_and_the_rest_is_marked(self):
        runs = {run.name: run for run in runs_of(SAMPLES / "prime-rl")}
        assert set(runs) == {"prime-rl", "token_exports"}
        rows = [row for row in rows_of(SAMPLES / "prime-rl") if row.episode is not None]
        trained = {row.episode for row in rows if row.discard_reason is None}
        dropped = {row.episode for row in rows if row.discard_reason == "not_in_a_batch"}
        assert (len(trained), len(dropped), len(rows)) == (3, 1, 6)
        assert not trained & dropped


class TestWhatEachSays:
    def test_verl_knows_train_from_validation_and_its_groups(self):
        [run] = runs_of(SAMPLES / "verl")
        rows = rows_of(SAMPLES / "verl")
        assert run.name == "verl" and run.steps == (1, 2)
        assert {row.split for row in rows} == {"rollout", "eval-rollout"}
        assert [row.group for row in rows if row.split == "rollout"][:4] == ["a", "a", "b", "b"]
        assert rows[0].metrics == {"format": 1.0} and rows[0].success is True

    def test_areal_roles_come_from_the_special_tokens_that_it_keeps(self):
        row = rows_of(SAMPLES / "areal")[0]
        assert row.conversation() == [
            {"role": "user", "content": "What is 2 + 3?"},
            {"role": "assistant", "content": "It is 5."},
        ]
        assert "n_prompt" not in row.metrics

    def test_trl_a_batch_that_was_logged_again_is_read_once_and_that_is_said(self, tmp_path):
        """Files as `GRPOTrainer.log` writes them: its queue of one generation batch, at each log."""
        queue: deque = deque(maxlen=4)
        log = ((1, "abcd"), (2, ""), (3, "efgh"), (4, ""), (4, "xy"), (5, "ijkl"))
        for step, completions in log:
            queue.extend(completions)
            write_completions(tmp_path / "completions", step, list(queue))
        history = [{"step": 4, "train_loss": 0.0}, {"step": 4, "eval_loss": 0.1}]
        (tmp_path / "checkpoint-5").mkdir()
        (tmp_path / "checkpoint-5/trainer_state.json").write_text(
            json.dumps({"global_step": 5, "log_history": history})
        )
        problems = Problems()
        rows = [(row.step, row.split, row.messages[-1]["content"]) for row in rows_of(tmp_path, problems)]
        assert rows == [
            *((1, "rollout", text) for text in "abcd"),
            *((3, "rollout", text) for text in "efgh"),
            *((4, "eval-rollout", text) for text in "xy"),
            *((5, "rollout", text) for text in "ijkl"),
        ]
        assert problems.counts == {"repeated_rows": 2}
        assert "first 4 rows" in str(problems.kept[0])

    def test_trl_arguments_have_no_nulls_that_only_the_columns_of_other_calls_made(self, tmp_path):
        def call(**arguments):
            return {"type": "function", "function": {"name": "add", "arguments": arguments}}

        replies = [[{"role": "assistant", "tool_calls": [call(**given)]}] for given in ({"x": 1}, {"a": 1})]
        write_completions(tmp_path / "completions", 1, replies)
        calls = [row.messages[-1]["tool_calls"][0]["function"] for row in rows_of(tmp_path)]
        assert [json.loads(function["arguments"]) for function in calls] == [{"x": 1}, {"a": 1}]

    def test_trl_sums_its_rewards_and_says_that_weights_are_not_there(self):
        rows = rows_of(SAMPLES / "trl")
        assert set(rows[0].components) == {"correct", "brief"}
        assert rows[0].reward == sum(rows[0].components.values())
        assert {row.step for row in rows} == {1, 2}

    def test_verifiers_results_are_those_of_the_file_and_group_by_example(self):
        rows = rows_of(SAMPLES / "verifiers-results")
        for row, value in zip(rows, lines(SAMPLES / "verifiers-results/results.jsonl"), strict=True):
            assert row.messages == [*value["prompt"], *value["completion"]]
            assert (row.reward, row.ground_truth) == (value["reward"], value["answer"])
            assert row.metrics == value["metrics"]
            assert row.group == f"example {value['example_id']}" and row.extras == value["info"]
            assert row.timings["generation"] == value["timing"]["generation"]["duration"]
            assert row.known_columns == {"n_sampled": value["token_usage"]["output_tokens"]}
        assert {row.split for row in rows} == {"eval-rollout"}

    def test_inspect_epochs_are_a_group(self):
        rows = rows_of(SAMPLES / "inspect")
        assert sorted(row.group for row in rows) == ["sample product"] * 2 + ["sample sum"] * 2
        assert {row.reward for row in rows} == {0.0, 1.0}

    def test_scout_s_reasoning_is_thinking_and_its_scores_are_rewards(self):
        rows = {row.sample_id: row for row in rows_of(SAMPLES / "scout")}
        thoughtful = rows.pop("by-hand")
        assert thoughtful.messages[1]["reasoning_content"] == "Two and three."
        assert thoughtful.messages[1]["content"] == "Let me add."
        assert json.loads(thoughtful.messages[1]["tool_calls"][0]["function"]["arguments"]) == {
            "a": 2,
            "b": 3,
        }
        assert (thoughtful.messages[2]["name"], thoughtful.messages[2]["tool_call_id"]) == ("add", "call_1")
        assert (thoughtful.reward, thoughtful.success, thoughtful.timings) == (0.75, True, {"total": 1.5})
        assert thoughtful.extras["level"] == "easy" and thoughtful.known_columns == {"n_tokens": 40}
        assert sorted(row.group for row in rows.values()) == ["product"] * 2 + ["sum"] * 2
        assert {row.extras["score_match"]: row.reward for row in rows.values()} == {"C": 1.0, "I": 0.0}

    def test_rllm_agents_of_an_episode_share_it(self):
        rows = rows_of(SAMPLES / "rllm")
        assert {row.source for row in rows if row.episode == "task0:0"} == {"solver", "judge"}
        assert {row.group for row in rows} == {
            f"task{n}:{name}" for n in (0, 1) for name in ("solver", "judge")
        }


class TestSkyrlTraining:
    """The values that `make_samples.skyrl_training` gave SkyRL's own code."""

    def test_ids_masks_and_logprobs_are_those_that_went_in_and_rows_that_fill_up_are_left_out(self):
        rows = rows_of(SAMPLES / "skyrl-training", trust_pickle=True)
        assert [list(row.input_ids) for row in rows] == [
            [5, 6, 7, 8, 2],
            [5, 6, 7, 2],
            [4, 5, 6, 9, 9, 9, 2],
        ]
        assert [list(row.loss_mask) for row in rows] == [
            [0, 0, 1, 0, 1],
            [0, 0, 1, 1],
            [0, 0, 0, 1, 1, 1, 1],
        ]
        logprobs = [[-0.5, -0.25, -1.0], [-0.125, -2.0], [-0.5, -0.75, -3.0, -0.0625]]
        for row, given in zip(rows, logprobs, strict=True):
            n = len(given)
            assert [bool(sampled) for sampled in row.response_mask] == [False] * (len(row.input_ids) - n) + [
                True
            ] * n
            assert list(row.tracks["logprobs"][-n:]) == given
            assert list(row.tracks["prox_logprobs"][-n:]) == [value - 0.25 for value in given]
            assert list(row.tracks["advantages"][-n:]) == [0.5] * n
        assert [row.group for row in rows] == ["prompt 0", "prompt 0", "prompt 1"]
        assert {(row.step, row.reward) for row in rows} == {(12, None)}

    def test_without_trust_the_pickle_is_refused(self):
        problems = Problems()
        assert rows_of(SAMPLES / "skyrl-training", problems) == []
        assert problems.counts == {"pickles_refused": 1}

    def test_a_pickle_of_something_else_is_named(self, tmp_path):
        path = tmp_path / "global_step_3_training_input.pkl"
        for value in (["no", "batch"], {"sequences": 1}, None):
            path.write_bytes(pickle.dumps(value))
            problems = Problems()
            assert rows_of(path, problems, trust_pickle=True) == []
            assert problems.counts == {"unreadable_files": 1}


BY_FIELDS = {
    "chat": ("chat", 3, False),
    "areal-segments": ("areal", 2, False),
}
"""Samples made from field names: format, rollouts, and whether they have token ids."""


@pytest.mark.parametrize("sample", BY_FIELDS)
def test_a_sample_made_from_field_names_is_recognised_and_read_whole(sample):
    name, n_rows, has_ids = BY_FIELDS[sample]
    problems = Problems()
    [run] = runs_of(SAMPLES / sample)
    rows = rows_of(SAMPLES / sample, problems)
    assert ({file.format.name for file in run.files}, len(rows)) == ({name}, n_rows)
    assert all((row.input_ids is not None) == has_ids for row in rows)
    assert ("token ids" in run.lacks) == (not has_ids)
    assert not problems.counts


class TestByFieldNames:
    def test_chat_columns_and_tools(self):
        first, second, third = rows_of(SAMPLES / "chat")
        assert (first.step, first.group, first.reward, first.metrics) == (3, 7, 1.0, {"length_penalty": 0.25})
        assert [m["role"] for m in second.messages] == ["user", "assistant", "tool", "assistant"]
        assert (third.step, third.stop_reason, third.n_prompt_messages) == (4, "stop", 1)

    def test_atif_calls_lie_at_their_place_in_the_last_one(self):
        row, inner = rows_of(SAMPLES / "atif")
        assert (inner.parent, inner.episode, inner.reward) == ("t1", "s1", None)
        assert (row.sample_id, row.episode, inner.source) == ("t1", "s1", "sums")
        assert row.input_ids == [1, 2, 3, 4, 5, 6, 7, 8]
        assert row.response_mask == [0, 0, 1, 1, 0, 1, 1, 1]
        assert row.tracks["logprobs"] == [None, None, -0.25, -0.5, None, -0.25, -0.5, -0.75]
        assert (row.reward, row.source) == (1.0, "sums")
        assert [m["role"] for m in row.messages] == ["user", "assistant", "tool", "assistant"]

    def test_areal_segments_are_a_conversation_of_several_turns(self):
        row = rows_of(SAMPLES / "areal-segments")[0]
        assert [m["role"] for m in row.conversation()] == ["user", "assistant", "user", "assistant"]
        assert row.conversation()[-1]["content"] == "Yes."


def test_rows_of_verls_v1_trainer_are_of_their_prompts_group_and_their_rollouts_episode(tmp_path):
    """Its keys are `<prompt>_<rollout>_<output>`: a rollout whose context was rewritten has several outputs."""
    uids = ["a-b_0_0", "a-b_1_0", "a-b_1_1", "a-c_0_0"]
    value = {"input": "q", "output": "r", "score": 1.0, "step": 1}
    path = tmp_path / "rollout_data/1.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps(value | {"uid": uid}) + "\n" for uid in uids))
    rows = rows_of(path)
    assert [row.group for row in rows] == ["a-b", "a-b", "a-b", "a-c"]
    assert [row.episode for row in rows] == ["a-b_0", "a-b_1", "a-b_1", "a-c_0"]


def test_trl_rows_count_as_training_and_that_is_said_where_no_checkpoint_tells(tmp_path):
    for step in (5, 10):
        write_completions(tmp_path / "completions", step, [f"a{step}", f"b{step}"])
    (tmp_path / "checkpoint-5").mkdir()
    history = [{"step": 5, "loss": 0.1}, {"step": 5, "eval_reward": 1.0}]
    state = {"global_step": 5, "log_history": history}
    (tmp_path / "checkpoint-5/trainer_state.json").write_text(json.dumps(state))
    problems = Problems()
    assert [row.split for row in rows_of(tmp_path, problems)] == ["eval-rollout"] * 2 + ["rollout"] * 2
    assert problems.counts == {"splits_not_told": 1}
    [run] = runs_of(tmp_path)
    assert [any("evaluation" in text for text in file.claim.lacks) for file in run.files] == [False, True]


def test_tokens_that_prime_rls_echo_weighs_are_in_the_loss_with_their_weight(tmp_path):
    nodes = [
        {"message": {"role": "user", "content": "q"}, "token_ids": [1, 2], "mask": [False, False]},
        {"parent": 0, "sampled": True, "message": {"role": "assistant", "content": "a"},
         "token_ids": [3, 4], "mask": [True, True], "logprobs": [-1.0, -2.0]},
        {"parent": 1, "message": {"role": "tool", "content": "t"}, "token_ids": [5, 6, 7], "mask": [False] * 3,
         "loss_weights": {"ce": [0.0, 0.25, 0.25]}},
        {"parent": 2, "sampled": True, "message": {"role": "assistant", "content": "b"},
         "token_ids": [8], "mask": [True], "logprobs": [-0.5]},
        {"parent": 2, "sampled": True, "message": {"role": "assistant", "content": "c"},
         "token_ids": [9], "mask": [True], "logprobs": [-0.5], "loss_weights": {"rl": [0.5], "ref_kl": [0.125]}},
    ]  # fmt: skip
    episode = {"id": "e", "env": {"id": "x"}, "task": {}, "traces": [{"id": "t", "nodes": nodes}]}
    path = tmp_path / "traces.jsonl"
    path.write_text(json.dumps(episode) + "\n")
    first, second = rows_of(path)
    assert first.response_mask == [False, False, True, True, False, False, False, True]
    assert first.loss_mask == [False, False, True, True, False, True, True, True]
    assert first.tracks["loss_weights"] == [0, 0, 1, 1, 0, 0.25, 0.25, 1]
    assert second.loss_mask == [False] * 7 + [True]
    assert second.tracks["loss_weights"] == [0] * 7 + [0.625]
