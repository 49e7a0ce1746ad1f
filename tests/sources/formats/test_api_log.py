"""Requests and responses of model APIs, as logs and as lines of batch files."""

from __future__ import annotations

import json

import pytest

from rollout_traces.sources.problems import Problems
from tests.sources.reading import rows_of, runs_of

ASKED = {"role": "user", "content": "2+2?"}
SAID = {"role": "assistant", "content": "4"}
TOOLS = [{"type": "function", "function": {"name": "add"}}]


@pytest.fixture
def read(tmp_path):
    """Reads records as a file of their own."""

    def of(*records: dict, name: str = "log.jsonl", problems: Problems | None = None):
        path = tmp_path / "logs" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return rows_of(path, problems)

    return of


class TestAnthropic:
    REQUEST = {"model": "asked", "system": "Be brief.", "messages": [ASKED], "tools": TOOLS}
    RESPONSE = {
        "model": "served",
        "content": [{"type": "text", "text": "4"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 9, "output_tokens": 3},
    }

    def test_a_request_and_its_response_are_a_conversation(self, read):
        [row] = read({"request": self.REQUEST, "response": self.RESPONSE})
        assert row.messages == [{"role": "system", "content": "Be brief."}, ASKED, SAID]
        assert (row.step, row.split, row.n_prompt_messages, row.tools) == (0, "rollout", 2, TOOLS)
        assert (row.stop_reason, row.group, row.sample_id) == ("stop", None, None)
        assert row.metrics == {"input_tokens": 9, "output_tokens": 3}
        assert row.known_columns == {"n_sampled": 3} and row.extras == {"model": "served"}

    def test_a_line_of_a_batch_holds_the_same(self, read):
        result = {"type": "succeeded", "message": {**self.RESPONSE, "stop_reason": "max_tokens"}}
        [row] = read({"custom_id": "a1", "params": self.REQUEST, "result": result}, name="eval.jsonl")
        assert row.messages[-1] == SAID and row.stop_reason == "length"
        assert (row.sample_id, row.split) == ("a1", "eval-rollout")

    def test_a_result_without_its_request_is_the_answer_alone(self, read):
        [row] = read({"custom_id": "a1", "result": {"message": self.RESPONSE}})
        assert row.messages == [SAID] and row.n_prompt_messages == 0 and row.tools is None


class TestOpenAI:
    def test_choices_are_a_group_of_one_request(self, read):
        choices = [
            {"message": SAID, "finish_reason": "stop"},
            {"message": {"role": "assistant", "content": "5"}, "finish_reason": "length"},
            "damaged",
        ]
        request = {"messages": [ASKED], "model": "asked", "tools": "none"}
        usage = {"completion_tokens": 6}
        first, second = read(
            {"custom_id": "b", "body": request, "response": {"body": {"choices": choices, "usage": usage}}}
        )
        assert (first.messages, second.messages[-1]["content"]) == ([ASKED, SAID], "5")
        assert [row.sample_id for row in (first, second)] == ["b", "b-1"]
        assert [row.stop_reason for row in (first, second)] == ["stop", "length"]
        assert first.group == second.group == "request 1"
        assert (first.known_columns, first.metrics, first.tools) == ({}, {}, None)
        assert first.extras == {"model": "asked"}

    def test_one_choice_is_no_group_and_knows_its_tokens(self, read):
        response = {"choices": [{"text": "4", "finish_reason": 7}], "usage": {"completion_tokens": 6}}
        [row] = read({"request": {"prompt": "2+2?"}, "response": response})
        assert row.messages == [ASKED, SAID] and row.group is None and row.stop_reason is None
        assert row.known_columns == {"n_sampled": 6} and row.extras == {}

    def test_an_output_of_items_is_one_answer(self, read):
        items = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "4"}]}]
        request = {"body": {"input": "2+2?", "instructions": "Be brief."}}
        cut = {"output": items, "incomplete_details": {"reason": "max_output_tokens"}}
        whole, short = read(
            {"request": request, "response": {"output": items}}, {"request": request, "response": cut}
        )
        assert whole.messages == [{"role": "system", "content": "Be brief."}, ASKED, SAID]
        assert (whole.stop_reason, short.stop_reason) == ("stop", "length")


class TestWhatIsNotThere:
    def test_a_request_that_was_not_answered_is_its_prompt(self, read):
        [row] = read({"request": {"messages": [ASKED]}, "response": {"error": "overloaded"}})
        assert row.messages == [ASKED] and row.stop_reason is None and row.known_columns == {}

    def test_a_record_of_neither_is_passed_over_and_told_of(self, read):
        problems = Problems()
        assert read({"request": {}, "response": {}, "error": "overloaded"}, problems=problems) == []
        assert problems.counts == {"rows_refused": 1} and "(overloaded)" in str(problems.kept[0])

    @pytest.mark.parametrize(
        ("record", "is_claimed"),
        [
            ({"request": {}, "response": {}}, True),
            ({"custom_id": "a", "params": {}}, True),
            ({"custom_id": "a", "result": {}}, True),
            ({"custom_id": "a"}, False),
            ({"request": {}}, False),
            ({"params": {}, "result": {}}, False),
        ],
    )
    def test_only_pairs_and_lines_of_batches_are_claimed(self, tmp_path, record, is_claimed):
        path = tmp_path / "log.jsonl"
        path.write_text(json.dumps(record) + "\n")
        names = [file.format.name for run in runs_of(path) for file in run.files]
        assert names == (["api-log"] if is_claimed else [])
