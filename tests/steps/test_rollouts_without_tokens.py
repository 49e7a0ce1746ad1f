"""Rollouts that come as messages alone go the whole way: ledger, flags from text, traces, and nothing made up."""

from __future__ import annotations

import pytest

import rollout_traces as rt
from rollout_traces.capture.host_copy import capture
from rollout_traces.decode.messages import transcript_of_messages
from rollout_traces.flags.detect import off_flags
from rollout_traces.ledger.build import build_ledger
from rollout_traces.model.batch import RolloutBatch
from tests.worker.readback import ledger_uids, trace_uids

CALL = '<think>hm</think>Let me see.\n<tool_call>\n{"name": "look", "arguments": {"x": 1}}\n</tool_call>'
BROKEN = "<tool_call>\n{not json\n</tool_call>"


def conversation(answer: str) -> list[dict]:
    return [
        {"role": "user", "content": "How many?"},
        {"role": "assistant", "content": answer},
        {"role": "tool", "content": "Error: no such thing"},
        {"role": "assistant", "content": "Four."},
    ]


@pytest.fixture
def batch() -> RolloutBatch:
    return RolloutBatch.from_messages(
        [conversation(CALL), conversation(BROKEN)],
        rewards=[1.0, 0.0],
        group_ids=["a", "a"],
        episode_ids=["e", "e"],
        sample_ids=["0", "1"],
        parents=[None, "0"],
    )


class TestLedger:
    def test_what_needs_tokens_is_unknown_and_the_rest_is_there(self, batch):
        ledger = build_ledger(capture([batch], step=1, split="rollout"))
        first = ledger.row(0)
        assert (first["reward"], first["episode"], first["n_turns"]) == (1.0, "e", 2)
        assert ledger.row(1)["parent"] == "0"
        absent = {"n_prompt", "n_sampled", "n_environment", "trained", "mean_logprob", "version_min"}
        assert not absent & set(ledger.columns)

    def test_flags_that_need_tokens_are_off_and_say_so(self, batch):
        off = off_flags(capture([batch], step=1, split="rollout"))
        assert off["mask_leak"] == ("tokens", "response_mask")
        assert off["repetition"] == ("tokens",)
        assert "tool_error" not in off and "tool_call_unparsed" not in off


class TestMessagesThatAreNone:
    @pytest.mark.parametrize("odd", [[1, 2], 3, "text", {"role": "user"}, [None, {"role": "assistant"}]])
    def test_spoil_neither_their_row_nor_the_step(self, odd, trackio_dir):
        logger = rt.RolloutLogger("p", "run", max_rollout_traces_per_step=8, selection="all", worker="thread")
        logger.log_rollouts(RolloutBatch.from_messages([conversation(CALL), odd], rewards=[1.0, 0.0]), step=1)
        assert logger.finish(180)
        assert logger.counters["rollouts_stored"] == 2
        assert logger.counters["process_errors"] == logger.counters["selection_errors"] == 0
        assert set(trace_uids(trackio_dir)) <= set(ledger_uids(trackio_dir))
        assert len(trace_uids(trackio_dir)) == 1 + isinstance(odd, list)


class TestTranscript:
    def test_calls_thinking_and_results_are_read_from_the_text(self):
        transcript = transcript_of_messages(conversation(CALL))
        turn, result = transcript.turns[1], transcript.turns[2]
        assert (turn.thinking, turn.content) == ("hm", "Let me see.")
        assert [(call.name, call.arguments) for call in turn.tool_calls] == [("look", {"x": 1})]
        assert result.tool_call_id == turn.tool_calls[0].id
        assert len(transcript.tokens) == 0

    def test_structured_calls_are_kept_and_broken_arguments_are_said(self):
        call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{oops"}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        turn = transcript_of_messages([message]).turns[0]
        assert not turn.tool_calls[0].parsed and turn.tool_calls[0].id == "c1"
        assert turn.warnings[0].startswith("tool_call_unparsed")


class TestWholeWay:
    def test_without_a_tokenizer_conversations_and_flags_from_text_are_stored(self, batch, trackio_dir):
        logger = rt.RolloutLogger(
            "text-only", "run", max_rollout_traces_per_step=10, selection="all", worker="thread"
        )
        logger.log_rollouts(batch, step=1)
        assert logger.flush(180)
        logger.finish()
        store = rt.open_store(project="text-only")
        rows = {row["sample"]: row for row in store.query().rows}
        assert rows[0]["ids_from"] == "unobserved" and rows[0]["n_tokens"] is None
        assert rows[0]["flags"] == ("tool_error",)
        assert set(rows[1]["flags"]) == {"tool_call_unparsed", "tool_error"}
        transcript = store.transcript(rows[0].id)
        assert transcript.warnings == ()
        assert [turn.raw for turn in transcript.turns] == [
            message["content"] for message in conversation(CALL)
        ]
