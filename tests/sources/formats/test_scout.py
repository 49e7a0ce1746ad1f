"""Transcripts of Inspect Scout, Inspect's own and those that were exported here."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollout_traces.sources.formats.scout import Scout
from rollout_traces.sources.problems import Problems
from tests.sources.reading import rows_of, runs_of

ASKED = {"role": "user", "content": "1+1"}
SAID = {"role": "assistant", "content": "2"}


@pytest.fixture
def read(tmp_path):
    """Reads a transcript with these columns beside the ones that every one has."""

    def of(problems: Problems | None = None, messages=(ASKED, SAID), **columns):
        text = messages if messages is None or isinstance(messages, str) else json.dumps(list(messages))
        row = {"transcript_id": "t1", "messages": text, **columns}
        path = tmp_path / "run" / "a.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist([row]), path)
        rows = rows_of(path, problems)
        return rows[0] if rows else None

    return of


class TestInspects:
    def test_are_of_an_evaluation_and_their_task_is_their_group(self, read):
        row = read(task_set="sums", task_id="sum", success=True, total_tokens=40, total_time=1.5, level=3)
        assert (row.step, row.split, row.line, row.messages) == (0, "eval-rollout", 1, [ASKED, SAID])
        assert (row.group, row.prompt_key, row.source) == ("sum", "sums-sum", "sums")
        assert (row.sample_id, row.identity, row.success) == ("t1", "t1", True)
        assert (row.known_columns, row.timings, row.extras) == (
            {"n_tokens": 40},
            {"total": 1.5},
            {"level": 3},
        )

    def test_without_a_task_or_numbers_have_none(self, read):
        row = read(note="{}", other="", more="x")
        assert (row.group, row.prompt_key, row.reward, row.timings, row.reward_status) == (None,) * 5
        assert row.known_columns == {} and row.extras == {"more": "x"} and row.stop_reason is None

    @pytest.mark.parametrize(
        ("score", "reward", "components"),
        [
            ("C", 1.0, {}),
            ("I", 0.0, {}),
            ("0.5", 0.5, {}),
            ("good", None, {}),
            ('{"match": "C", "length": 0.25, "why": "short"}', None, {"match": 1.0, "length": 0.25}),
        ],
    )
    def test_are_scored_by_grades_and_numbers(self, read, score, reward, components):
        row = read(score=score)
        assert (row.reward, row.components) == (reward, components)

    def test_stop_at_their_limit_and_say_where_they_failed(self, read):
        assert read(limit="token").stop_reason == "length" and read(limit="time").stop_reason == "time"
        assert read(limit="").stop_reason is None
        assert read(error="no").reward_status == "error" and read(error="").reward_status is None

    def test_name_tools_and_speakers_and_keep_arguments_that_are_no_json(self, read):
        sentence = "cannot be parsed. arguments:\n\n{a: 1\n\nError details: x"
        call = {"id": "c", "function": "add", "arguments": {}, "parse_error": sentence}
        row = read(
            messages=[
                {**ASKED, "metadata": {"role_label": "judge"}},
                {**SAID, "tool_calls": [call]},
                {"role": "tool", "content": "2", "function": "add", "metadata": {"role_label": "no"}},
            ]
        )
        assert row.messages[0]["name"] == "judge" and row.messages[2]["name"] == "add"
        assert row.messages[1]["tool_calls"][0]["function"]["arguments"] == "{a: 1"

    @pytest.mark.parametrize("messages", [None, "[]", "{}", '{"role": "user"}'])
    def test_of_events_alone_have_their_numbers_and_are_told_of(self, read, messages):
        problems = Problems()
        row = read(problems, messages, score="C")
        assert (row.messages, row.reward) == (None, 1.0) and problems.counts == {"rows_without_text": 1}


class TestOurs:
    def test_have_the_columns_that_they_had(self, read, tmp_path):
        row = read(source_type="rollout_traces", run="r", split="rollout", step=3, reward=0.5, group=7)
        assert (row.step, row.split, row.reward, row.messages) == (3, "rollout", 0.5, [ASKED, SAID])
        [run] = runs_of(tmp_path / "run")
        assert run.name == "r" and run.files[0].claim.step is None

    def test_others_with_such_columns_are_an_evaluation(self, read, tmp_path):
        row = read(source_type="eval_log", run="r", split="rollout", step=3)
        assert row.step == 0 and runs_of(tmp_path / "run")[0].files[0].claim.step == 0


def test_a_table_without_transcripts_is_none(tmp_path):
    for columns in ({"transcript_id": ["a"]}, {"messages": ["[]"]}):
        pq.write_table(pa.table(columns), tmp_path / "a.parquet")
        files = [file for run in runs_of(tmp_path) for file in run.files]
        assert not [file for file in files if isinstance(file.format, Scout)]
