"""What is written into Trackio's traces table reads well there and comes back whole."""

from __future__ import annotations

import numpy as np
import orjson

from rollout_traces.model.plain_values import MAX_TEXT, plain
from rollout_traces.model.transcript import Flag
from rollout_traces.trace.conversion import (
    METADATA,
    read_details,
    read_ledger,
    read_transcript,
    rollout_trace,
    step_summary_trace,
)
from tests.builders import make_transcript
from tests.ledger.test_columns import make_ledger
from tests.trace.test_packing import assert_same

CHAT = [
    ("user", "What is 3 + 9?"),
    ("assistant", "Let me compute that."),
    ("tool", "12"),
    ("assistant", "It is 12."),
]


def make_trace(turns=CHAT, **options):
    transcript = make_transcript(turns, **options)
    ledger = make_ledger().with_columns(n_turns=np.asarray([2, 2, 2, 2]))
    flag = Flag("truncated", "warn", "cut after 12 tokens", turn=3, start=4, stop=9)
    return transcript, rollout_trace(transcript, ledger, 1, flags=[flag], extra={"ground_truth": "12"})


class TestRolloutTrace:
    def test_the_transcript_comes_back_from_the_stored_json(self):
        transcript, record = make_trace(thinking="add them", calls=[("calculator", {"expression": "3 + 9"})])
        stored = orjson.loads(orjson.dumps(plain([record.messages, record.metadata, record.spans])))
        assert_same(transcript, read_transcript(type(record)(*stored)))

    def test_every_metadata_key_is_in_the_schema(self):
        _, record = make_trace()
        assert set(record.metadata) <= set(METADATA)

    def test_the_tokens_of_all_spans_add_up_to_the_rollouts(self):
        """Seen once: Trackio's page added up twelve times a rollout's tokens."""
        from trackio.cli_helpers import trace_rollup

        transcript, record = make_trace()
        assert sum("usage" in span for span in record.spans) == 2
        shown = trace_rollup({"spans": record.spans, "metadata": record.metadata})
        written = sum(t.n_sampled for t in transcript.turns)
        assert shown["output_tokens"] == written
        assert shown["input_tokens"] + written == len(transcript.tokens)

    def test_the_status_says_the_reward(self):
        _, record = make_trace()
        assert record.metadata["status"] == "reward 0.3333"

    def test_the_root_span_says_the_outcome(self):
        _, record = make_trace()
        assert record.spans[0]["output"] == "reward 0.3333\nflags: truncated"

    def test_unknown_values_are_left_out_of_the_metadata(self):
        _, record = make_trace()
        assert "advantage" not in record.metadata
        assert None not in record.metadata.values()

    def test_flags_are_names_in_the_metadata_and_sentences_in_the_details(self):
        _, record = make_trace()
        assert record.metadata["flags"] == ["truncated"]
        assert read_details(record)["flags"][0]["message"] == "cut after 12 tokens"

    def test_generation_spans_carry_token_counts_and_the_policy_version(self):
        _, record = make_trace()
        spans = [span for span in record.spans if span["kind"] == "generation"]
        assert [span["usage"]["output_tokens"] for span in spans] == [6, 4]
        assert spans[0]["model"] == "policy version 7"

    def test_spans_preview_a_long_tool_result_and_do_not_repeat_it(self):
        _, record = make_trace([*CHAT[:2], ("tool", "x" * 5000), CHAT[3]])
        tool = next(span for span in record.spans if span["kind"] == "tool")
        assert len(tool["output"]) < 200

    def test_a_message_beyond_the_limit_is_cut_visibly_and_its_tokens_stay_whole(self):
        text = "word " * (MAX_TEXT // 5 + 100)
        transcript, record = make_trace([("user", text), CHAT[1]])
        assert (
            "[cut: 499 of" in record.messages[0]["content"] or "[cut: 500 of" in record.messages[0]["content"]
        )
        assert_same(transcript, read_transcript(record))

    def test_a_trace_of_another_tool_has_no_transcript(self):
        from rollout_traces.trace.conversion import TraceRecord

        assert read_transcript(TraceRecord([{"role": "user", "content": "hi"}], {}, [])) is None


class TestStepSummary:
    def test_the_ledger_comes_back(self):
        ledger = make_ledger()
        record = step_summary_trace(ledger, summary=[{"role": "user", "content": "?"}], metadata={"step": 3})
        np.testing.assert_array_equal(read_ledger(record).columns["reward"], ledger.columns["reward"])
        assert record.metadata["kind"] == "digest"


def test_components_that_a_rollout_knows_are_in_the_metadata_and_others_are_not():
    ledger = make_ledger().with_columns(**{"component/judge": np.asarray([0.5, 0.25, np.nan, np.nan])})
    of_row = [rollout_trace(make_transcript(CHAT), ledger, row).metadata for row in (1, 2)]
    assert of_row[0]["component/judge"] == 0.25 and "component/judge" not in of_row[1]
