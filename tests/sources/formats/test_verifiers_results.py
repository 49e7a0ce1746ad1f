"""What rows of verifiers hold."""

from __future__ import annotations

import json

import pytest

from rollout_traces.sources.formats.verifiers_results import _listed
from tests.sources.reading import rows_of, runs_of


@pytest.mark.parametrize(
    ("value", "expected"),
    [([1], [1]), ("[1, 2]", [1, 2]), ([], None), ("no JSON", None), ({"a": 1}, None), (None, None)],
)
def test_messages_of_verifiers_are_a_list_or_one_as_json(value, expected):
    assert _listed(value) == expected


ASKED = {"role": "user", "content": "2+2?"}
SAID = {"role": "assistant", "content": "4"}
RECORD = {"example_id": 5, "prompt": [ASKED], "completion": [SAID], "reward": 0.5}


@pytest.fixture
def read(tmp_path):
    """Reads a record with these values beside the ones that every record has."""

    def of(**more):
        path = tmp_path / "results.jsonl"
        path.write_text(json.dumps(RECORD | more) + "\n")
        [row] = rows_of(path)
        return row

    return of


class TestRows:
    def test_are_of_an_evaluation_and_their_example_is_their_group(self, read):
        row = read(task="math", answer="4", info={"level": 3}, tool_defs='[{"name": "add"}]')
        assert (row.step, row.split, row.messages, row.n_prompt_messages) == (
            (0, "eval-rollout", [ASKED, SAID], 1)
        )
        assert (row.group, row.prompt_key, row.reward) == ("example 5", "example-5", 0.5)
        assert (row.source, row.ground_truth, row.extras) == ("math", "4", {"level": 3})
        assert row.tools == [{"name": "add"}]

    def test_a_reply_may_be_a_text(self, read):
        assert read(completion="4").messages == [ASKED, SAID]
        assert read(prompt=[], completion=[]).messages is None

    def test_metrics_are_those_that_are_named_so_else_every_other_number(self, read):
        assert read(metrics={"format": 1.0}, other=2.0).metrics == {"format": 1.0}
        assert read(other=2.0, id=7).metrics == {"other": 2.0}

    def test_what_was_truncated_was_stopped_by_length(self, read):
        assert read(is_truncated=True, stop_condition="eos").stop_reason == "length"
        assert read(is_truncated=False, stop_condition="eos").stop_reason == "eos"

    def test_timings_are_seconds_whichever_way_they_are_written(self, read):
        timing = {"start_time": 1e9, "generation": {"duration": 1.5}, "scoring_ms": 250.0, "total": 2.0}
        assert read(timing=timing).timings == {"generation": 1.5, "scoring": 0.25, "total": 2.0}
        assert read(timing="soon").timings is None and read(timing={"start_time": 1.0}).timings is None

    def test_sampled_tokens_are_known_where_their_usage_is(self, read):
        assert read(token_usage={"output_tokens": 8}).known_columns == {"n_sampled": 8}
        assert read(token_usage=3).known_columns == {} == read(token_usage={}).known_columns

    def test_an_empty_answer_or_a_task_that_is_no_text_is_unknown(self, read):
        row = read(answer="", task=3)
        assert row.ground_truth is None and row.source is None


def test_a_file_is_claimed_by_what_every_record_has(tmp_path):
    path = tmp_path / "results.jsonl"
    for missing in ("", *RECORD):
        path.write_text(json.dumps({k: v for k, v in RECORD.items() if k != missing}) + "\n")
        names = [file.format.name for run in runs_of(path) for file in run.files]
        assert ("verifiers-results" in names) == (missing == "")
