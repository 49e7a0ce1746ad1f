"""Conversations and prompts with replies, under every name that people give them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollout_traces.sources.formats.chat_jsonl import ChatJsonl
from rollout_traces.sources.problems import Problems
from tests.sources.reading import rows_of, runs_of

ASKED = {"role": "user", "content": "2+2?"}
SAID = {"role": "assistant", "content": "4"}
TOLD = {"role": "system", "content": "Be brief."}


def write(path: Path, *records: dict) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def read(tmp_path):
    """Reads records as a file of their own."""

    def of(*records: dict, name: str = "chats.jsonl", problems: Problems | None = None):
        return rows_of(write(tmp_path / "dumps" / name, *records), problems)

    return of


@pytest.fixture
def claim_of(tmp_path):
    """The claim to a file of one record; None where another format, or none, claims it."""

    def of(record: dict, name: str = "chats.jsonl"):
        found = [file for run in runs_of(write(tmp_path / name, record)) for file in run.files]
        return found[0].claim if found and isinstance(found[0].format, ChatJsonl) else None

    return of


class TestConversations:
    @pytest.mark.parametrize("key", ["messages", "conversations", "conversation", "chat", "dialogue"])
    def test_are_read_under_any_of_their_names(self, read, key):
        [row] = read({key: [ASKED, SAID]})
        assert row.messages == [ASKED, SAID] and row.n_prompt_messages is None and row.group is None

    def test_stand_behind_the_system_message_and_the_prompt_beside_them(self, read):
        [row] = read({"messages": [SAID], "prompt": [ASKED], "system": "Be brief."})
        assert row.messages == [TOLD, ASKED, SAID] and row.n_prompt_messages == 2
        [row] = read({"messages": [ASKED, SAID], "system": "Be brief."})
        assert row.messages == [TOLD, ASKED, SAID] and row.n_prompt_messages is None

    def test_are_whole_where_prompt_and_reply_stand_beside_them(self, read):
        [row] = read({"messages": [ASKED, SAID], "prompt": "2+2?", "completion": "4"})
        assert row.messages == [ASKED, SAID]

    def test_an_answer_beside_them_is_the_truth_and_no_reply(self, read):
        [row] = read({"messages": [ASKED, SAID], "answer": "4", "reward": 1.0})
        assert (row.messages, row.ground_truth) == ([ASKED, SAID], "4")


class TestPromptsAndReplies:
    @pytest.mark.parametrize(
        ("prompt", "reply"),
        [("prompt", "completion"), ("question", "response"), ("instruction", "output"), ("query", "reply")],
    )
    def test_are_read_under_any_of_their_names(self, read, prompt, reply):
        [row] = read({prompt: "2+2?", reply: "4"})
        assert row.messages == [ASKED, SAID] and row.n_prompt_messages == 1 and row.group is None

    def test_several_replies_are_a_group_with_a_value_each(self, read):
        first, second = read(
            {
                "prompt": "2+2?",
                "completions": ["4", "5"],
                "rewards": [1.0, 0.25],
                "stop_reason": ["stop", "length"],
                "advantages": [0.5, -0.5],
                "id": ["x", "y"],
                "system": "Be brief.",
            }
        )
        assert [row.messages[-1]["content"] for row in (first, second)] == ["4", "5"]
        assert first.messages == [TOLD, ASKED, SAID] and first.n_prompt_messages == 2
        assert (first.reward, first.stop_reason, first.advantage, first.sample_id) == (1.0, "stop", 0.5, "x")
        assert (second.reward, second.stop_reason, second.advantage) == (0.25, "length", -0.5)
        assert first.group == second.group == "record 1"

    def test_one_value_holds_for_all_replies_and_a_list_of_another_length_for_none(self, read):
        problems = Problems()
        rows = read(
            {"prompt": "2+2?", "completions": ["4", "5"], "reward": 2, "advantage": [1, 2, 3], "group": 7},
            problems=problems,
        )
        assert [(row.reward, row.advantage, row.group) for row in rows] == [(2.0, None, 7)] * 2
        assert set(problems.counts) == {"values_not_understood"}

    def test_one_reply_in_a_list_is_one_rollout_whose_values_may_be_in_lists_too(self, read):
        [row] = read({"prompt": "2+2?", "responses": ["4"], "score": [0.5]})
        assert (row.messages, row.reward, row.group) == ([ASKED, SAID], 0.5, None)

    def test_a_reply_of_messages_is_one_reply(self, read):
        tool = {"role": "tool", "content": "4"}
        [row] = read({"prompt": [ASKED], "completion": [tool, SAID]})
        assert row.messages == [ASKED, tool, SAID]

    def test_a_reply_that_says_no_role_is_the_assistants(self, read):
        [row] = read({"prompt": "2+2?", "completion": {"content": "4"}})
        assert row.messages == [ASKED, SAID]
        [row] = read({"prompt": "2+2?", "completion": {"role": "tool", "content": "4"}})
        assert row.messages[-1]["role"] == "tool"

    def test_an_answer_is_the_reply_where_there_is_a_reward_and_no_other(self, read):
        [row] = read({"question": "2+2?", "answer": "4", "reward": 1.0})
        assert row.messages == [ASKED, SAID] and row.ground_truth is None
        [row] = read({"question": "2+2?", "answer": "4", "reward": 1.0, "response": "5"})
        assert row.messages[-1]["content"] == "5" and row.ground_truth == "4"

    def test_a_record_without_text_has_its_numbers_and_is_told_of(self, read):
        problems = Problems()
        _, row, empty = read({"messages": [ASKED, SAID]}, {"reward": 0.5}, {}, problems=problems)
        assert (row.messages, row.reward) == (None, 0.5) and empty.messages is None
        assert problems.counts == {"rows_without_text": 2}
        assert "reward: expected messages" in str(problems.kept[0])
        assert "an empty object" in str(problems.kept[1])


class TestValues:
    def test_a_step_of_the_record_comes_before_that_of_the_file(self, read):
        rows = read({"messages": [SAID], "step": 0}, {"messages": [SAID]}, name="rollouts_step_7.jsonl")
        assert [row.step for row in rows] == [0, 7]
        assert read({"messages": [SAID]}, name="iter-3/chats.jsonl")[0].step == 3
        assert read({"messages": [SAID]})[0].step == 0
        assert read({"messages": [SAID], "global_step": 5})[0].step == 5

    def test_a_split_of_the_record_comes_before_that_of_the_file(self, read):
        rows = read({"messages": [SAID], "split": "train"}, {"messages": [SAID]}, name="eval.jsonl")
        assert [row.split for row in rows] == ["rollout", "eval-rollout"]
        rows = read({"messages": [SAID], "split": "validation"}, {"messages": [SAID], "split": 3})
        assert [row.split for row in rows] == ["eval-rollout", "rollout"]

    def test_named_rewards_are_components_and_their_total_the_reward(self, read):
        rewards = {"format": 1, "total": 2.5}
        [row] = read({"messages": [SAID], "reward": rewards, "reward_components": {"brief": 0.5}})
        assert (row.reward, row.components) == (2.5, {"format": 1.0, "total": 2.5, "brief": 0.5})
        [row] = read({"messages": [SAID], "rewards": {"format": 1}})
        assert (row.reward, row.components) == (None, {"format": 1.0})

    def test_other_numbers_are_metrics_and_other_texts_extras(self, read):
        problems = Problems()
        record = {"messages": [SAID], "metrics": {"calls": 2}, "info": {"topic": "sums", "level": 3}}
        record |= {"length": 9, "comment": "good", "kept": [1], "nested": {"a": 1}, "empty": []}
        rows = read(record, record, problems=problems)
        assert rows[0].metrics == {"calls": 2, "level": 3, "length": 9}
        assert rows[0].extras == {"topic": "sums", "comment": "good"}
        assert problems.counts == {"keys_left_out": 2}
        assert "kept: holds a list" in str(problems.kept[0]) and "nested: holds a dict" in str(
            problems.kept[1]
        )

    def test_what_is_of_another_kind_than_expected_is_unknown(self, read):
        record = {"messages": [SAID], "tools": "no", "success": "yes", "source": 3, "stop_reason": 7}
        [row] = read(record | {"group": 1.5})
        assert (row.tools, row.success, row.source, row.stop_reason, row.group) == (None,) * 5

    def test_what_is_of_the_expected_kind_is_kept(self, read):
        tools = [{"type": "function", "function": {"name": "add"}}]
        record = {"messages": [SAID], "tools": tools, "success": False, "dataset": "gsm8k", "episode_id": 4}
        [row] = read(record | {"finish_reason": "stop", "prompt_id": "p1", "id": "one", "target": "4"})
        assert (row.tools, row.success, row.source, row.episode) == (tools, False, "gsm8k", "4")
        assert (row.stop_reason, row.group, row.sample_id, row.ground_truth) == ("stop", "p1", "one", "4")


class TestClaims:
    @pytest.mark.parametrize(
        "record",
        [
            {"messages": []},
            {"prompt": "q", "completion": "a"},
            {"question": "q", "answer": "a", "score": 1},
        ],
    )
    def test_conversations_and_prompts_with_replies_are_claimed(self, claim_of, record):
        assert claim_of(record) is not None

    @pytest.mark.parametrize(
        "record", [{"prompt": "q"}, {"completion": "a"}, {"question": "q", "answer": "a"}, {"score": 1}]
    )
    def test_half_of_one_is_not(self, claim_of, record):
        assert claim_of(record) is None

    def test_what_is_no_json_by_its_name_is_not(self, claim_of):
        assert claim_of({"messages": [SAID]}, name="chats.txt") is None

    def test_the_conversations_beside_miles_tensors_are_not(self, claim_of, tmp_path):
        record = {"messages": [SAID], "sample_index": 0}
        assert claim_of(record, name="dump/chats/0.jsonl") is not None
        (tmp_path / "dump/rollout_data").mkdir()
        assert claim_of(record, name="dump/chats/0.jsonl") is None
        assert claim_of({"messages": [SAID]}, name="dump/chats/1.jsonl") is not None

    def test_what_is_lacking_is_said(self, claim_of):
        tokens = ["token ids", "loss mask", "logprobs"]
        groups, steps = "groups (equal prompts are one)", "steps (all are step 0)"
        assert claim_of({"messages": [SAID]}).lacks == [*tokens, "rewards", groups, steps]
        full = {"messages": [SAID], "reward": 1, "group": 2, "step": 3}
        assert claim_of(full).lacks == tokens
        assert claim_of({"messages": [SAID]}, name="step_4.jsonl").lacks == [*tokens, "rewards", groups]
