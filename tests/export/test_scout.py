"""Inspect Scout's transcript database: its columns, its message types, and the rollout behind each transcript."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import rollout_traces as rt
from rollout_traces.cli import build_app
from rollout_traces.errors import ConfigError
from rollout_traces.export import export_atif, export_scout
from rollout_traces.export.scout import transcript
from rollout_traces.export.training import export_training
from rollout_traces.export.training_samples import TrainingOptions
from tests.generator import BatchPlan, rollout_batch, tiny_tokenizer

KINDS = {
    **dict.fromkeys(
        ("transcript_id", "source_type", "source_id", "task_id", "agent", "score", "messages", "events"),
        pa.string(),
    ),
    **dict.fromkeys(("task_repeat", "message_count", "total_tokens"), pa.int64()),
    **dict.fromkeys(("success", "trust_content"), pa.bool_()),
}
"""Kinds that inspect_scout 0.6.2 asks of its columns."""


@pytest.fixture
def store(trackio_dir):
    tokenizer = tiny_tokenizer("qwen3")
    logger = rt.RolloutLogger(
        "scouted", "r1", tokenizer, max_rollout_traces_per_step=100, selection="all", worker="thread"
    )
    logger.log_rollouts(rollout_batch(tokenizer, BatchPlan(seed=1, group_size=4)), step=1)
    assert logger.finish()
    return rt.open_store(project="scouted")


def test_every_rollout_is_a_transcript_of_scout_s_kinds(store, tmp_path):
    assert export_scout(store, tmp_path / "out") == 16
    table = pq.read_table(tmp_path / "out" / "transcripts.parquet")
    assert {name: table.schema.field(name).type for name in KINDS} == KINDS
    for row in table.to_pylist():
        given = store.messages(row["transcript_id"])
        messages = json.loads(row["messages"])
        assert [m["role"] for m in messages] == [m["role"] for m in given]
        assert json.loads(row["score"]) == pytest.approx(row["reward"])
        for mine, theirs in zip(given, messages, strict=True):
            parts = (
                theirs["content"] if isinstance(theirs["content"], list) else [{"text": theirs["content"]}]
            )
            assert all(part.get("text", part.get("reasoning")) in mine["content"] for part in parts)
            for called, call in zip(mine.get("tool_calls", ()), theirs.get("tool_calls", ()), strict=True):
                written = called["function"]["arguments"]
                assert (
                    written in call["parse_error"]
                    if "parse_error" in call
                    else call["arguments"] == json.loads(written)
                )
            if mine["role"] == "tool":
                assert theirs["tool_call_id"] == mine["tool_call_id"] and theirs["function"]
    with pytest.raises(ConfigError, match="not empty"):
        export_scout(store, tmp_path / "out")


RECORD = {
    "id": "a",
    "run": "r1",
    "run_id": "1",
    "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "yes"}],
}


def test_a_reply_that_was_cut_off_says_its_limit_to_scout():
    limits = [
        transcript({**RECORD, "stop_reason": why}, "p").get("limit") for why in ("length", "stop", None)
    ]
    assert limits == ["token", None, None]


def test_a_reply_s_tokens_are_its_step_s_metrics(store, tmp_path):
    export_atif(store, tmp_path / "atif")
    steps = [
        step for path in (tmp_path / "atif").iterdir() for step in json.loads(path.read_bytes())["steps"]
    ]
    counted = [step for step in steps if "metrics" in step]
    assert counted and {step["source"] for step in counted} == {"agent"}
    for step in counted:
        assert len(step["metrics"]["completion_token_ids"]) == step["metrics"]["completion_tokens"] > 0


def part(kind, name, text):
    return {"type": kind, name: text}


@pytest.mark.parametrize(
    ("written", "thought", "said"),
    [
        ({"content": "<think>\nplan\n</think>\n\nanswer"}, "plan", "answer"),
        ({"content": "<think>plan</think>answer"}, "plan", "answer"),
        ({"content": "its template opened it\n</think>\nanswer"}, "its template opened it", "answer"),
        ({"content": "<think>never closed"}, "never closed", ""),
        ({"content": "<thinking>plan</thinking>answer"}, "plan", "answer"),
        ({"content": [part("text", "text", "<think>plan</think>answer")]}, "plan", "answer"),
        ({"content": "answer", "reasoning_content": "beside"}, "beside", "answer"),
        ({"content": "a `<think>` that is spoken of"}, None, "a `<think>` that is spoken of"),
    ],
)
def test_thinking_in_another_tool_s_text_is_reasoning_to_scout(trackio_dir, tmp_path, written, thought, said):
    import trackio

    trackio.init(project="foreign", name="r1")
    question = {"role": "user", "content": "<think> is a tag?"}
    spoken = [question, {"role": "assistant", **written}]
    about = {"reward": 1.0, "group_id": 0, "model_version": 1, "prompt_tokens": 1, "completion_tokens": 2}
    trackio.log({"rollouts": trackio.Trace(messages=spoken, metadata=about)}, step=1)
    trackio.finish()
    store = rt.open_store(project="foreign")
    assert export_scout(store, tmp_path / "out") == export_atif(store, tmp_path / "atif") == 1
    row = pq.read_table(tmp_path / "out" / "transcripts.parquet").to_pylist()[0]
    asked, replied = json.loads(row["messages"])
    parts = [part("reasoning", "reasoning", thought), part("text", "text", said)]
    assert asked["content"] == question["content"]
    assert replied["content"] == (said if thought is None else parts)
    step = json.loads(next((tmp_path / "atif").iterdir()).read_bytes())["steps"][1]
    assert (step["message"], step.get("reasoning_content")) == (said, thought)
    session = TrainingOptions("hub", near_duplicates=None, evaluation=True)
    export_training(store, tmp_path / "hub", session)
    lines = [json.loads(line) for line in next((tmp_path / "hub").rglob("*.jsonl")).read_text().splitlines()]
    blocks = lines[-1]["message"]["content"]
    assert [b.get("thinking", b.get("text")) for b in blocks] == [text for text in (thought, said) if text]


def test_thinking_that_quotes_its_own_end_stays_whole(trackio_dir, tmp_path):
    logger = rt.RolloutLogger("quoting", "r1", max_rollout_traces_per_step=9, worker="thread")
    thought = "models write\n</think>\n\nat the end"
    reply = {"role": "assistant", "content": "yes", "reasoning_content": thought}
    logger.log_rollouts(rt.RolloutBatch.from_messages([[{"role": "user", "content": "q"}, reply]]), step=1)
    assert logger.finish()
    export_scout(rt.open_store(project="quoting"), tmp_path / "out")
    row = pq.read_table(tmp_path / "out" / "transcripts.parquet").to_pylist()[0]
    told = json.loads(row["messages"])[1]["content"]
    assert told == [part("reasoning", "reasoning", thought), part("text", "text", "yes")]


@pytest.mark.parametrize(("name", "what"), [("scout", "16 rollouts"), ("atif", "16 rollouts")])
def test_the_command_writes_a_folder(store, tmp_path, name, what):
    done = CliRunner().invoke(
        build_app(["export"]), ["export", str(tmp_path / "out"), "-p", "scouted", "-f", name]
    )
    assert done.exit_code == 0 and what in done.output
    assert any((tmp_path / "out").iterdir())
