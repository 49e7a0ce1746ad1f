"""What a dump says is read where that is safe; what is not understood is named with its line and key, never lost in silence."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from rollout_traces.sources.chat import messages_of
from rollout_traces.sources.formats.inspect_eval import unpacked
from rollout_traces.sources.lines import objects
from rollout_traces.sources.problems import Problems
from tests.sources.reading import SAMPLES, rows_of

CHAT = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


def written(folder: Path, *records: Any, name: str = "dump.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


class TestNumbers:
    def test_numbers_written_as_text_are_read_and_counted(self, tmp_path):
        problems = Problems()
        path = written(tmp_path, {"messages": CHAT, "step": "7", "reward": "0.5", "advantage": " -1e-1 "})
        [row] = rows_of(path, problems)
        assert (row.step, row.reward, row.advantage) == (7, 0.5, -0.1)
        assert problems.counts == {"numbers_written_as_text": 3}
        assert str(problems.kept[0]) == f"{path}:1: step: '7' is text; it is read as a number."

    @pytest.mark.parametrize(
        "wrong",
        [
            {"step": "seven"},
            {"step": 1.5},
            {"step": 2**60},
            {"reward": "high"},
            {"reward": [1, 2]},
        ],
    )
    def test_what_is_no_number_is_unknown_and_named_with_line_and_key(self, tmp_path, wrong):
        [(key, value)] = wrong.items()
        problems = Problems()
        path = written(tmp_path, {"messages": CHAT}, {"messages": CHAT, **wrong})
        row = rows_of(path, problems)[1]
        assert (row.step, row.reward) == (0, None)
        assert problems.counts == {"values_not_understood": 1}
        assert str(problems.kept[0]).startswith(f"{path}:2: {key}: seen {value!r}. Expected ")

    def test_a_key_that_no_column_holds_is_named_once(self, tmp_path):
        problems = Problems()
        rows_of(written(tmp_path, *[{"messages": CHAT, "probs": [0.5]}] * 3), problems)
        assert problems.counts == {"keys_left_out": 1}
        assert "dump.jsonl:1: probs: holds a list" in str(problems.kept[0])

    def test_the_other_formats_read_texts_as_numbers_too(self, tmp_path):
        problems = Problems()
        row = {"input": "q", "output": "a", "gts": "1", "score": "0.5", "step": "3"}
        [row] = rows_of(written(tmp_path, row), problems)
        assert (row.step, row.reward, problems.counts["numbers_written_as_text"]) == (3, 0.5, 2)


class TestNames:
    @pytest.mark.parametrize(
        "record",
        [
            {"prompt": "q", "response": "a", "reward": 1},
            {"question": "q", "answer": "a", "score": 1},
            {"instruction": "q", "output": "a", "total_reward": 1.0},
            {"query": "q", "generated_text": "a", "rewards": [1.0]},
            {"problem": "q", "generation": "a", "reward": {"total": 1.0, "format": 0.5}, "answer": "7"},
            {"prompt": [CHAT[0]], "completion": [CHAT[1]], "reward": "1"},
            {"input": CHAT[:1], "model_output": "a", "score": 1},
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "reward": 1},
        ],
    )
    def test_prompt_reply_and_reward_under_the_names_that_people_use(self, tmp_path, record):
        [row] = rows_of(written(tmp_path, record))
        assert (row.messages, row.reward) == (CHAT, 1.0)

    def test_a_reply_of_several_messages_is_one_rollout(self, tmp_path):
        more = [CHAT[1], {"role": "tool", "content": "seen"}, {"role": "assistant", "content": "b"}]
        [row] = rows_of(written(tmp_path, {"prompt": [CHAT[0]], "completion": more, "reward": 1}))
        assert [message["content"] for message in row.messages] == ["q", "a", "seen", "b"]
        assert row.n_prompt_messages == 1

    def test_a_prompt_with_several_replies_is_a_group(self, tmp_path):
        record = {
            "prompt": "q",
            "responses": ["a", "b"],
            "rewards": [1.0, 0.0],
            "finish_reason": ["stop", "length"],
        }
        rows = rows_of(written(tmp_path, record, record))
        assert [(r.group, r.messages[-1]["content"], r.reward, r.stop_reason) for r in rows] == [
            ("record 1", "a", 1.0, "stop"),
            ("record 1", "b", 0.0, "length"),
            ("record 2", "a", 1.0, "stop"),
            ("record 2", "b", 0.0, "length"),
        ]

    @pytest.mark.parametrize("indent", [None, 2])
    def test_an_array_and_one_object_over_many_lines_are_read(self, tmp_path, indent):
        records = [{"prompt": "q", "response": f'a {n} "}}]\\', "reward": n} for n in range(5)]
        path = tmp_path / "dump.json"
        path.write_text(json.dumps(records, indent=indent))
        rows = rows_of(path)
        assert [row.reward for row in rows] == [0, 1, 2, 3, 4]
        assert rows[3].messages[1]["content"] == 'a 3 "}]\\'
        assert [row.line for row in rows] == [1, 2, 3, 4, 5]
        path.write_text("\n".join(json.dumps(record, indent=2) for record in records))
        assert len(rows_of(path)) == 5

    @pytest.mark.parametrize("chunk", [1, 2, 3, 7, 50])
    def test_texts_with_quotes_and_backslashes_are_whole_wherever_a_chunk_ends(self, chunk, monkeypatch):
        monkeypatch.setattr("rollout_traces.sources.lines.CHUNK", chunk)
        records = [{"a": 'x"}]\\', "b": [{"c": '\\"'}]}, {"a": "\\"}]
        found = [json.loads(raw) for _, raw in objects(io.BytesIO(json.dumps(records).encode()), 1000)]
        assert found == records

    def test_an_array_that_is_cut_off_gives_what_is_whole(self, tmp_path):
        path = tmp_path / "dump.json"
        path.write_text(json.dumps([{"prompt": "q", "response": "a"}] * 3, indent=1)[:-20])
        problems = Problems()
        assert len(rows_of(path, problems)) == 2
        assert (problems.counts, problems.kept[0].line) == ({"unfinished_lines": 1}, 3)


class TestParts:
    def test_anthropic_s_blocks(self):
        found = messages_of(
            [
                {"role": "user", "content": [{"type": "text", "text": "Add 2 and 3."}]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Let me add.", "signature": "x"},
                        {"type": "text", "text": "I add."},
                        {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 2, "b": 3}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "t1",
                            "content": [{"type": "text", "text": "5"}],
                        },
                        {"type": "text", "text": "Go on."},
                    ],
                },
            ]
        )
        call = {"id": "t1", "type": "function", "function": {"name": "add", "arguments": '{"a":2,"b":3}'}}
        assert found == [
            {"role": "user", "content": "Add 2 and 3."},
            {
                "role": "assistant",
                "content": "I add.",
                "reasoning_content": "Let me add.",
                "tool_calls": [call],
            },
            {"role": "tool", "content": "5", "tool_call_id": "t1"},
            {"role": "user", "content": "Go on."},
        ]

    def test_calls_as_openai_and_sharegpt_once_wrote_them(self):
        call = {"name": "add", "arguments": '{"a": 1}'}
        old = messages_of([{"role": "assistant", "content": None, "function_call": call}])
        share = messages_of(
            [{"from": "function_call", "value": json.dumps(call)}, {"from": "observation", "value": "5"}]
        )
        for found in (old, share):
            assert (found[0]["role"], found[0]["content"]) == ("assistant", "")
            assert found[0]["tool_calls"][0]["function"] == call
        assert share[1] == {"role": "tool", "content": "5"}

    def test_items_of_responses_are_one_turn_until_a_tool_answers(self):
        found = messages_of(
            [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
                {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "5"},
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "five"}],
                },
            ]
        )
        assert [m["role"] for m in found] == ["user", "assistant", "tool", "assistant"]
        assert (found[1]["reasoning_content"], found[1]["tool_calls"][0]["id"]) == ("hm", "c1")
        assert (found[2]["tool_call_id"], found[3]["content"]) == ("c1", "five")

    def test_a_part_that_is_not_understood_is_named_with_its_line(self, tmp_path):
        parts = [{"type": "hologram", "data": 1}, {"type": "image_url", "image_url": {}}]
        problems = Problems()
        [row] = rows_of(
            written(tmp_path, {"messages": [{"role": "user", "content": parts}, CHAT[1]]}), problems
        )
        assert row.messages[0]["content"] == "[hologram][image]"
        assert problems.counts == {"parts_not_read": 1}
        assert "dump.jsonl:1: messages: 1 parts of the kind 'hologram'" in str(problems.kept[0])


class TestForced:
    def test_a_named_format_reads_what_is_not_recognised(self, tmp_path):
        path = written(
            tmp_path, {"input": "q", "output": "a", "score": 1.0, "step": 2, "messages": 1}, name="1.txt"
        )
        assert rows_of(path, file_format="chat")[0].messages == CHAT
        assert rows_of(path, file_format="verl")[0].reward == 1.0

    def test_a_file_of_no_known_format_is_said_with_its_keys(self, tmp_path):
        problems = Problems()
        assert rows_of(written(tmp_path, {"colour": 1, "weight": 2}), problems) == []
        assert "its first record has the keys colour, weight" in str(problems.kept[0])


class TestApiLogs:
    ASKED = {"model": "m", "system": "Be exact.", "messages": [{"role": "user", "content": "q"}]}
    BLOCKS = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}]

    def test_a_plain_completion_keeps_its_prompt_and_a_refused_one_says_why(self, tmp_path):
        problems = Problems()
        answer = {"choices": [{"text": " upon", "finish_reason": "length"}]}
        refused = {"custom_id": "r", "response": {"status_code": 400, "body": {"error": {"message": "nope"}}}}
        path = written(
            tmp_path, {"request": {"prompt": "Once"}, "response": answer, "custom_id": "a"}, refused
        )
        [row] = rows_of(path, problems)
        assert [message["content"] for message in row.messages] == ["Once", " upon"]
        assert "nope" in str(problems.kept[0])

    def test_anthropic_s_requests_with_their_responses_and_results_of_batches(self, tmp_path):
        message = {
            "role": "assistant",
            "content": self.BLOCKS,
            "stop_reason": "max_tokens",
            "usage": {"output_tokens": 3},
        }
        logged = {"request": self.ASKED, "response": message}
        result = {"custom_id": "c1", "result": {"type": "succeeded", "message": message}}
        failed = {"custom_id": "c2", "result": {"type": "errored", "error": {"type": "overloaded"}}}
        problems = Problems()
        first, second = rows_of(written(tmp_path, logged, result, failed), problems)
        reply = {"role": "assistant", "content": "a", "reasoning_content": "hm"}
        assert first.messages == [{"role": "system", "content": "Be exact."}, CHAT[0], reply]
        assert (first.stop_reason, first.known_columns, first.n_prompt_messages) == (
            "length",
            {"n_sampled": 3.0},
            2,
        )
        assert (second.messages, second.sample_id) == ([reply], "c1")
        assert problems.counts == {"rows_refused": 1} and "overloaded" in str(problems.kept[0])

    def test_openai_s_choices_are_a_group_and_its_responses_are_items(self, tmp_path):
        choices = [{"message": {"role": "assistant", "content": t}, "finish_reason": "stop"} for t in "ab"]
        chat = {
            "request": {"messages": CHAT[:1]},
            "response": {"status_code": 200, "body": {"choices": choices}},
        }
        output = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}]
        items = {"request": {"input": "q"}, "response": {"output": output}}
        rows = rows_of(written(tmp_path, chat, items))
        assert [row.messages[-1]["content"] for row in rows] == ["a", "b", "a"]
        assert [row.group for row in rows] == ["request 1", "request 1", None]
        assert rows[2].messages == CHAT


def test_inspect_s_json_log_gives_the_rows_of_its_archive(tmp_path):
    with zipfile.ZipFile(SAMPLES / "inspect/sums.eval") as archive:
        names = sorted(name for name in archive.namelist() if name.startswith("samples/"))
        log = json.loads(unpacked(archive, archive.getinfo("header.json"))) | {
            "samples": [json.loads(unpacked(archive, archive.getinfo(n))) for n in names]
        }
    (tmp_path / "sums.json").write_text(json.dumps(log, indent=2))
    assert [vars(row) for row in rows_of(tmp_path)] == [vars(row) for row in rows_of(SAMPLES / "inspect")]
