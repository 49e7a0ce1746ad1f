"""Traces that trainers write by themselves are known by key and fields, and read as the rollouts they show."""

from __future__ import annotations

import pytest

import rollout_traces as rt
from rollout_traces.sources.importing import import_rollouts
from rollout_traces.sources.rows import RolloutRow
from rollout_traces.sources.trackio_traces import fields_of, rollout_of, text_facts, writer_of
from tests.sources.trl_run import PROJECT, log_run

CHAT = [{"role": "user", "content": "What is 2 + 3?"}, {"role": "assistant", "content": "It is 5."}]

TRACES = {
    "TRL": (
        "rollouts",
        {
            "reward": 0.5, "reward_std": 0.1, "rewards/right": 0.5, "advantage": -1.0, "group_id": 3,
            "model_version": 7, "prompt_tokens": 11, "completion_tokens": 22, "tools/call_frequency": 0.0,
        },
        {"reward": 0.5, "component/right": 0.5, "advantage": -1.0, "group": 3, "version_max": 7},
    ),
    "verl": (
        "val/generations",
        {"source": "validation", "sample_index": 4, "score": 1.0},
        {"reward": 1.0, "split": "eval-rollout"},
    ),
    "AReaL": (
        "eval-rollout/trajectories",
        {
            "split": "eval-rollout", "global_step": 9, "trajectory_index": 2, "sample_index": 1, "seqlen": 40,
            "prompt_len": 10, "reward": 1.0, "head_version": 3, "tail_version": 4,
        },
        {"reward": 1.0, "group": 2, "step": 9, "split": "eval-rollout", "version_max": 4},
    ),
    "slime": (
        "rollout/trajectories",
        {"rollout_id": 3, "sample_index": 5, "group_index": 1, "status": "truncated", "reward": 0.0},
        {"reward": 0.0, "group": 1, "stop_reason": "truncated"},
    ),
    "ROLL": (
        "rollout/rlvr",
        {"prompt_id": "p1", "scores": 1.0, "response_level_rewards": 0.9, "domain": "math", "sample_uuid": "u"},
        {"reward": 1.0, "group": "p1", "source": "math"},
    ),
    "open-instruct": (
        "train/rollouts",
        {"sample_idx": 3, "prompt_idx": 1, "reward": 1.0, "finish_reason": "stop", "dataset": "gsm8k", "model_step": 5},
        {"group": 1, "stop_reason": "stop", "source": "gsm8k", "version_max": 5},
    ),
    "SkyRL": (
        "rollout/traces",
        {"sample_index": 0, "step": 6, "reward": [0.0, 0.0, 1.0], "stop_reason": "stop", "instance_id": "i7", "trajectory_id": "i7_0"},
        {"reward": 1.0, "group": "i7", "step": 6},
    ),
    "Tunix": (
        "rollout/traces",
        {"mode": "eval", "sample_index": 5, "step": 2, "reward": 0.25, "advantages": 0.5, "num_generations": 4},
        {"reward": 0.25, "group": 1, "advantage": 0.5, "split": "eval-rollout"},
    ),
    "Inspect": (
        "sample",
        {"sample_id": "s1", "epoch": 2, "target": "5", "eval_id": "e", "run_id": "r", "score/match": 1.0},
        {"reward": 1.0, "component/match": 1.0, "group": "sample s1", "split": "eval-rollout"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("writer", TRACES)
def test_a_writer_is_known_and_its_fields_have_our_names(writer):
    key, metadata, expected = TRACES[writer]
    assert writer_of(key, metadata).name == writer
    row = rollout_of(key, 1, CHAT, metadata)
    fields = fields_of(row)
    assert {name: fields.get(name) for name in expected} == expected
    assert fields["n_turns"] == 1 and fields["flags"] == []


def test_no_two_writers_claim_the_same_trace():
    for key, metadata, _ in TRACES.values():
        from rollout_traces.sources.trackio_traces import WRITERS

        assert sum(writer.claims(key, metadata) for writer in WRITERS) == 1


def test_our_own_traces_and_those_of_unknown_tools_are_nobody_s():
    assert writer_of("rollout/trajectories", {"kind": "rollout", "schema": 1, "reward": 1.0}) is None
    assert writer_of("chat", {"reward": 1.0}) is None


def test_flags_from_text_are_found():
    chat = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "<tool_call>\n{broken\n</tool_call>"},
        {"role": "tool", "content": "Error: no such file"},
        {"role": "assistant", "content": "<think>and so"},
    ]
    fields = fields_of(rollout_of("rollouts", 1, chat, TRACES["TRL"][1]))
    assert fields["flags"] == ["tool_error", "tool_call_unparsed", "thinking_unclosed"]
    assert (fields["n_turns"], fields["n_tool_errors"]) == (2, 1)


class TestFields:
    def row(self, **more) -> RolloutRow:
        return RolloutRow(step=1, split="rollout", messages=CHAT, **more)

    def test_of_tokens_are_counted_where_they_are_known(self):
        row = self.row(input_ids=[1, 2, 3, 4], response_mask=[0, 1, 0, 1])
        row.tracks["logprobs"] = [-9.0, -1.0, None, None]
        fields = fields_of(row)
        assert (fields["n_tokens"], fields["n_prompt"], fields["n_sampled"]) == (4, 1, 2)
        assert fields["mean_logprob"] == -1.0
        silent = fields_of(self.row(input_ids=[1, 2], response_mask=[0, 0]))
        assert (silent["n_prompt"], silent["n_sampled"]) == (2, 0) and "mean_logprob" not in silent
        assert "n_tokens" not in fields_of(self.row(input_ids=[1, 2]))

    def test_that_are_unknown_are_left_out_and_whole_numbers_are_whole(self):
        fields = fields_of(self.row(known_columns={"n_prompt": 3.0, "n_sampled": 2.5}, success=True))
        assert fields["success"] == 1 and type(fields["n_prompt"]) is int and fields["n_sampled"] == 2.5
        assert not {"reward", "version_max", "sample_id", "group"} & set(fields)
        assert fields_of(self.row(train_version=0, success=False))["version_max"] == 0
        assert fields_of(self.row(success=False))["success"] == 0

    def test_a_sample_is_named_where_it_is_of_an_episode(self):
        assert "sample_id" not in fields_of(self.row(sample_id=3))
        assert fields_of(self.row(sample_id=3, episode="e"))["sample_id"] == "3"

    def test_of_components_and_metrics_stand_under_their_names(self):
        fields = fields_of(self.row(components={"a": 0.5}, metrics={"b": 2}))
        assert (fields["component/a"], fields["sample/b"]) == (0.5, 2)


class TestTextFacts:
    @pytest.mark.parametrize(
        ("said", "flags"),
        [
            ("", ["empty_completion"]),
            (" \n", ["empty_completion"]),
            ("x", []),
            ("<think>and so", ["thinking_unclosed"]),
            ("<think>a</think>x", []),
        ],
    )
    def test_of_what_was_said_last(self, said, flags):
        facts = text_facts([CHAT[0], {"role": "assistant", "content": said}])
        assert (facts["flags"], facts["n_turns"], facts["n_tool_calls"]) == (flags, 1, 0)

    def test_a_call_without_words_is_not_empty(self):
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        facts = text_facts([CHAT[0], {"role": "assistant", "content": "", "tool_calls": [call, call]}])
        assert (facts["flags"], facts["n_tool_calls"], facts["n_tool_errors"]) == ([], 2, 0)


class TestSingleValues:
    def read(self, **metadata):
        return rollout_of("rollout/trajectories", 4, CHAT, {"rollout_id": 3, "group_index": 1, **metadata})

    def test_other_numbers_are_metrics_and_names_are_not(self):
        row = self.read(reward=0.5, status="done", sample_index=5, length=7, ok=True, note="x")
        assert row.metrics == {"rollout_id": 3, "length": 7}
        assert (row.step, row.stop_reason, row.sample_id) == (4, "done", 5)

    def test_rewards_of_tokens_are_summed(self):
        assert self.read(reward=[0.5, None, 1, "x"]).reward == 1.5
        assert self.read(reward="high").reward is None and self.read().reward is None

    @pytest.mark.parametrize(
        ("key", "split"),
        [
            ("eval/trajectories", "eval-rollout"),
            ("val/trajectories", "eval-rollout"),
            ("value/trajectories", "rollout"),
            ("train/eval/trajectories", "rollout"),
        ],
    )
    def test_the_folder_tells_the_split(self, key, split):
        assert rollout_of(key, 0, CHAT, {"rollout_id": 3, "group_index": 1}).split == split

    def test_of_tunix_are_grouped_by_their_number(self):
        def row(**more):
            return rollout_of("rollout/traces", 0, CHAT, {"num_generations": 4, "mode": "train", **more})

        assert (row(sample_index=7).group, row(sample_index=8).group) == (1, 2)
        assert row().group is None and row(sample_index=7).split == "rollout"
        assert row(sample_index=3, num_generations=0).group is None


class TestVerlAgentLoop:
    METADATA = {
        "op": "ToolAgentLoop.run",
        "backend": "trackio",
        "inputs": {"kwargs": {"raw_prompt": CHAT[:1]}},
        "output": {
            "prompt_ids": [1, 2, 3],
            "response_ids": [4, 5, 6, 7],
            "response_mask": [1, 1, 0, 1],
            "response_logprobs": [-0.5, -0.25, 0.0, -1.0],
            "reward_score": 1.0,
        },
        "status": "success",
        "sample_index": 8,
        "step": 4,
        "rollout_n": 1,
        "validate": False,
    }

    def test_tokens_masks_and_logprobs_are_rebuilt(self):
        row = rollout_of("rollout_trace/ToolAgentLoop.run", 0, CHAT, self.METADATA)
        assert row.input_ids == [1, 2, 3, 4, 5, 6, 7]
        assert row.response_mask == [0, 0, 0, 1, 1, 0, 1]
        assert row.tracks["logprobs"][3:] == [-0.5, -0.25, 0.0, -1.0]
        assert (row.step, row.group, row.reward, row.messages) == (4, 8, 1.0, CHAT[:1])
        fields = fields_of(row)
        assert (fields["n_tokens"], fields["n_prompt"], fields["n_sampled"]) == (7, 3, 3)
        assert fields["mean_logprob"] == pytest.approx((-0.5 - 0.25 - 1.0) / 3)

    def read(self, at: int = 0, output: dict | None = None, **more):
        given = {**self.METADATA, **more, "output": {**self.METADATA["output"], **(output or {})}}
        return rollout_of("rollout_trace/ToolAgentLoop.run", at, CHAT, given)

    def test_what_does_not_fit_the_response_is_left_out(self):
        row = self.read(output={"response_mask": [1, 1], "response_logprobs": [-1.0], "prompt_ids": None})
        assert row.response_mask == row.loss_mask == [1, 1, 1, 1] and "logprobs" not in row.tracks
        assert row.input_ids == [4, 5, 6, 7]
        assert self.read(output={"response_ids": None}) is None
        assert rollout_of("rollout_trace/x", 0, CHAT, {**self.METADATA, "output": "text"}) is None

    def test_the_prompt_stands_in_its_inputs_and_the_reply_beside_its_tokens(self):
        row = self.read(output={"response_text": "It is 5."})
        assert row.messages == CHAT and row.n_prompt_messages == 1
        plain = self.read(inputs={"raw_prompt": CHAT[:1]}, step=None)
        assert plain.messages == CHAT[:1] and plain.step == 0
        assert self.read(7, step=None).step == 7
        assert self.read(inputs=None).messages is None

    def test_it_says_whether_it_validated_or_failed(self):
        assert (self.read().split, self.read().reward_status) == ("rollout", None)
        assert (self.read(validate=True).split, self.read(status="error").reward_status) == (
            ("eval-rollout", "error")
        )
        assert self.read().sample_id == "8-1"

    def test_a_single_call_of_an_engine_is_no_rollout(self):
        metadata = {**self.METADATA, "op": "LLMServerClient.generate", "output": {"token_ids": [1]}}
        assert rollout_of("rollout_trace/LLMServerClient.generate", 0, CHAT, metadata) is None


@pytest.mark.usefixtures("trackio_dir")
class TestCopy:
    def test_a_project_is_copied_once_and_the_original_is_left_as_it_is(self):
        import trackio

        run = trackio.init(project="theirs", name="r1", embed=False, auto_log_gpu=False)
        key, metadata, _ = TRACES["TRL"]
        run.log({key: [trackio.Trace([dict(m) for m in CHAT], metadata) for _ in range(4)]}, step=1)
        run.log(
            {
                "completions": trackio.Table(
                    data=[[1, "q", "a", 1.0, 0.5]],
                    columns=["step", "prompt", "completion", "right", "advantage"],
                )
            },
            step=2,
        )
        trackio.finish()
        before = rt.open_store(project="theirs").runs()
        assert import_rollouts("trackio:theirs", "ours").rows == 5
        assert import_rollouts("trackio:theirs", "ours").rows == 0
        assert rt.open_store(project="theirs").runs() == before
        [copied] = rt.open_store(project="ours").runs()
        assert (copied.name, copied.n_rollouts, copied.n_traces) == ("r1", 5, 5)

    def test_a_project_of_our_own_is_read_where_it_lies(self):
        logger = rt.RolloutLogger(project="mine", name="r1", worker="thread", max_rollout_traces_per_step=1)
        logger.log_rollouts(rt.RolloutBatch.from_messages([CHAT], rewards=[1.0]), step=0)
        logger.finish()
        [said] = import_rollouts("trackio:mine", "copy", worker="thread").problems.kept
        assert (
            "2 traces were logged by rollout-traces, which reads them here: rollout-traces show -p mine"
            in str(said)
        )

    def test_a_real_run_s_tables_are_copied_without_what_they_repeat(self):
        log_run()
        report = import_rollouts(f"trackio:{PROJECT}", "copy", worker="thread")
        assert (report.rows, report.problems.counts) == (12, {"repeated_rows": 1})
        assert "repeat those of the table before" in str(report.problems.kept[0])
        in_place, copied = rt.open_store(project=PROJECT), rt.open_store(project="copy")
        for row in in_place.query(limit=100).rows:
            [same] = [
                r for r in copied.query(limit=100).rows if copied.messages(r.id) == in_place.messages(row.id)
            ]
            for name in ("step", "split", "reward", "advantage", "prompt_key", "component/brief"):
                assert same[name] == pytest.approx(row[name])
        assert import_rollouts(f"trackio:{PROJECT}", "copy", worker="thread").rows == 0
