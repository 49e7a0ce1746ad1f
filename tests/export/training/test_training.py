"""What training data holds, and what is left out."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from rollout_traces.errors import ConfigError
from rollout_traces.export import ExportQuery
from rollout_traces.export.training import export_training
from rollout_traces.export.training_samples import TrainingOptions
from rollout_traces.store import open_store
from tests.export.training.conftest import LONG
from tests.generator import CALCULATOR
from tests.store.projects import PROJECT as RESUMED
from tests.store.projects import make_ledger, write_resumed, write_step


def rows_of(folder: Path, name: str = "train") -> list[dict]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def said(message: dict) -> tuple:
    """Who spoke, what was called and what was answered, in a session of Pi."""
    calls = [(b["id"], b["name"], b["arguments"]) for b in message["content"] if b["type"] == "toolCall"]
    return message["role"], calls, message.get("toolCallId"), message.get("toolName")


@pytest.fixture
def written(store, tmp_path):
    """Writes training data and reads its rows."""

    def write(query: ExportQuery = ExportQuery(), folder: str = "out", **options):  # noqa: B008
        manifest = export_training(store, tmp_path / folder, TrainingOptions(**options), query)
        return rows_of(tmp_path / folder), manifest

    return write


class TestChat:
    def test_thinking_is_where_it_is_wanted(self, store, tmp_path):
        said = {}
        for thinking in ("content", "reasoning_content", "drop"):
            export_training(store, tmp_path / thinking, TrainingOptions("sft", thinking=thinking))
            said[thinking] = rows_of(tmp_path / thinking)[0]["messages"][1]
        assert said["content"]["content"].startswith("<think>\ntwo and two\n</think>")
        assert "think" not in said["drop"]["content"] and "reasoning_content" not in said["drop"]
        assert said["reasoning_content"]["reasoning_content"] == "two and two"
        assert said["reasoning_content"]["content"] == said["drop"]["content"]

    def test_tools_and_arguments_are_in_the_schema_of_chat_templates(self, written):
        rows, _ = written(format="sft")
        assert rows[0]["tools"] == [CALCULATOR]
        [call] = rows[0]["messages"][1]["tool_calls"]
        assert call["function"] == {"name": "calculator", "arguments": {"expression": "2 + 2"}}
        assert all("tools" not in row for row in rows[1:])

    def test_tools_that_the_prompt_describes_are_not_given_twice(self):
        from rollout_traces.export.training_samples import _tools_beside

        described = [{"role": "system", "content": f"Tools: {json.dumps(CALCULATOR)}"}]
        assert _tools_beside([CALCULATOR], described) == ()
        assert _tools_beside([CALCULATOR], [{"role": "system", "content": "Use the calculator."}]) == (
            CALCULATOR,
        )

    def test_a_filter_and_a_label_choose(self, store, written, tmp_path, monkeypatch):
        rows, manifest = written(ExportQuery(where="reward > 0.8"), format="sft")
        assert [row["reward"] for row in rows] == pytest.approx([1.0, 0.9])
        assert manifest.made_from.query["where"] == "reward > 0.8"


class TestPairs:
    def test_best_against_worst_of_each_group(self, written):
        rows, manifest = written(format="dpo")
        assert [(row["score_chosen"], row["score_rejected"]) for row in rows] == [(1.0, 0.0)]
        assert rows[0]["prompt"] == [{"role": "user", "content": "What is 2 + 2?"}]
        assert "four" in rows[0]["chosen"][0]["content"] and "five" in rows[0]["rejected"][0]["content"]
        assert manifest.left_out["no pair in its group"] >= 2

    def test_a_margin_leaves_out_pairs_that_are_closer(self, store, tmp_path):
        with pytest.raises(ConfigError, match="no rollout is left"):
            export_training(store, tmp_path / "out", TrainingOptions("dpo", margin=1.5))

    def test_where_nothing_matches_that_is_said(self, store, tmp_path):
        """Seen once: “Left out: none; none matches.”"""
        with pytest.raises(ConfigError, match=r"^no rollout matches, so nothing was written"):
            export_training(store, tmp_path / "out", TrainingOptions("dpo"), ExportQuery(where="reward > 99"))

    def test_lengths_are_matched_on_request(self, written):
        [row], _ = written(format="dpo", match_length=0.5)
        assert LONG not in row["rejected"][0]["content"]
        assert (row["score_chosen"], row["score_rejected"]) == pytest.approx((0.9, 0.2))


class TestScored:
    def test_prompt_completion_and_reward(self, written):
        rows, _ = written(format="reward")
        assert {tuple(row["prompt"][0].items()) for row in rows} == {
            (("role", "user"), ("content", prompt)) for prompt in ("What is 2 + 2?", "Say hello.")
        }
        assert all(isinstance(row["reward"], float) for row in rows)


class TestSessions:
    def test_a_file_a_rollout_with_a_header_and_a_line_a_message(self, store, tmp_path):
        manifest = export_training(store, tmp_path / "out", TrainingOptions("hub-sts"))
        files = list((tmp_path / "out" / "train").glob("*.jsonl"))
        assert len(files) == manifest.splits["train"]
        lines = {path: [json.loads(line) for line in path.read_text().splitlines()] for path in files}
        for header, *messages in lines.values():
            assert header["type"] == "session" and header["harness"] and header["id"]
            assert [line["type"] for line in messages] == ["message"] * len(messages)
            assert all(isinstance(line["message"]["content"], str) for line in messages)
        [called] = [
            line["message"] for row in lines.values() for line in row[1:] if "toolCalls" in line["message"]
        ]
        assert called["reasoningContent"] == "two and two"
        assert called["toolCalls"] == [
            {
                "id": called["toolCalls"][0]["id"],
                "function": {"name": "calculator", "arguments": '{"expression":"2 + 2"}'},
            }
        ]

    def test_pi_s_sessions_are_what_trackio_writes_of_the_same_rollouts(self, store, tmp_path):
        from trackio.agent_sessions import is_hub_native_jsonl, trace_to_records

        export_training(store, tmp_path / "out", TrainingOptions("hub"))
        kept = 0
        for path in (tmp_path / "out" / "train").glob("*.jsonl"):
            assert is_hub_native_jsonl(path)
            header, *entries = [json.loads(line) for line in path.read_text().splitlines()]
            assert datetime.fromisoformat(header["timestamp"]) and header["version"] == 3
            assert [e["parentId"] for e in entries] == [None, *(e["id"] for e in entries[:-1])]
            record = store.record(header["id"])
            theirs = trace_to_records({"messages": record.messages})[1:]
            assert [said(entry["message"]) for entry in entries] == [
                said(entry["message"]) for entry in theirs
            ]
            kept += any(block["type"] == "toolCall" for e in entries for block in e["message"]["content"])
        assert kept


class TestLeftOut:
    def test_evaluation_and_its_prompts_unless_asked(self, store, written, tmp_path):
        rows, manifest = written(format="sft")
        assert not any("evaluated" in str(row["messages"]).lower() for row in rows)
        assert manifest.left_out["evaluation"] == 1 and manifest.left_out["a prompt of evaluation"] == 2
        asked = export_training(store, tmp_path / "all", TrainingOptions("sft", evaluation=True))
        assert asked.splits["train"] == manifest.splits["train"] + 3

    def test_evaluation_alone_is_refused_with_what_to_do(self, store, tmp_path):
        with pytest.raises(ConfigError, match="--evaluation"):
            export_training(
                store, tmp_path / "out", TrainingOptions("sft"), ExportQuery(split="eval-rollout")
            )
        assert not (tmp_path / "out").exists()

    def test_near_duplicates_of_one_prompt(self, store, written, tmp_path):
        _, manifest = written(format="sft")
        assert manifest.left_out["near-duplicate"] == 1
        kept = export_training(store, tmp_path / "all", TrainingOptions("sft", near_duplicates=None))
        assert kept.splits["train"] == manifest.splits["train"] + 1


class TestLimit:
    @pytest.mark.parametrize("file_format", ["sft", "reward"])
    def test_counts_what_is_written_and_not_what_was_left_out(self, written, file_format):
        """Seen once: of 50 rollouts that were asked for 32 were written, and the manifest counted others."""
        every, _ = written(format=file_format)
        rows, manifest = written(ExportQuery(limit=len(every)), folder="as-many", format=file_format)
        assert rows == every and len(rows) == manifest.splits["train"] == manifest.made_from.rows
        assert len(written(ExportQuery(limit=2), folder="two", format=file_format)[0]) == 2


class TestFiles:
    def test_a_prompt_is_in_one_file_alone(self, store, tmp_path):
        prompts = []
        for seed in range(6):
            folder = tmp_path / str(seed)
            made = export_training(store, folder, TrainingOptions("sft", test_share=0.5, seed=seed))
            found = {n: {r["prompt_key"] for r in rows_of(folder, n)} for n in made.splits if made.splits[n]}
            assert not found.get("train", set()) & found.get("test", set())
            prompts.append(len(found))
        assert max(prompts) == 2

    def test_the_manifest_says_what_of_and_how(self, written, tmp_path):
        _, manifest = written(format="sft", test_share=0.3)
        stored = json.loads((tmp_path / "out" / "manifest.json").read_text())
        assert stored["made_from"]["project"] == "training"
        assert stored["options"]["test_share"] == 0.3
        for name, checksum in stored["files"].items():
            assert hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest() == checksum
        assert stored["splits"] == dict(manifest.splits)

    def test_a_folder_that_holds_something_is_left_alone(self, store, tmp_path):
        (tmp_path / "mine").write_text("x")
        with pytest.raises(ConfigError, match="not empty"):
            export_training(store, tmp_path, TrainingOptions("sft"))
        assert [path.name for path in tmp_path.iterdir()] == ["mine"]

    @pytest.mark.parametrize(
        "options",
        [
            {"format": "csv"},
            {"thinking": "loud"},
            {"margin": -1},
            {"test_share": 1.0},
            {"match_length": 0},
            {"near_duplicates": 2},
        ],
    )
    def test_options_that_cannot_be_meant_are_refused(self, options):
        with pytest.raises(ConfigError, match="expected"):
            TrainingOptions(**{"format": "sft", **options})

    def test_the_command_says_what_was_left_out(self, store, folder, tmp_path):
        from typer.testing import CliRunner

        from rollout_traces.cli import build_app

        out = tmp_path / "out"
        done = CliRunner().invoke(build_app(["export"]), ["export", str(out), "-p", "training", "-f", "dpo"])
        assert done.exit_code == 0, done.output
        assert "left out: 1, evaluation" in done.output
        assert (out / "train.jsonl").exists()


class TestWhatSaysNothing:
    def test_what_a_later_attempt_superseded_is_left_out_and_counted(self, trackio_dir, tmp_path):
        write_resumed()
        options = TrainingOptions("reward", near_duplicates=None)
        store = open_store(RESUMED)
        manifest = export_training(store, tmp_path / "current", options)
        assert manifest.left_out == {"superseded by a later attempt": 4, "no reward": 1}
        assert [(row["step"], row["reward"]) for row in rows_of(tmp_path / "current")] == [
            (0, 1.0),
            (0, 1.0),
            (1, 1.0),
        ]
        assert manifest.made_from.matched == 8
        manifest = export_training(store, tmp_path / "lost", options, ExportQuery(where="superseded"))
        assert manifest.left_out == {} and manifest.splits == {"train": 4}

    def test_a_reward_whose_function_failed_is_none(self, trackio_dir, tmp_path):
        status = np.array([None, "error"], object)
        write_step(make_ledger([[1.0, 0.0]], step=0, traced=(0, 1), reward_status=status), (0, 1))
        manifest = export_training(open_store(RESUMED), tmp_path / "out", TrainingOptions("reward"))
        assert manifest.left_out == {"no reward": 1} and manifest.splits == {"train": 1}
