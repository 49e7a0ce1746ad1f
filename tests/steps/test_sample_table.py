"""The sample table and its file."""

from __future__ import annotations

import json
import math

import pytest

from rollout_traces.steps.sample_table import (
    COLUMNS,
    prompt_and_completion,
    sample_table,
    table_path,
    write_table,
)
from tests.builders import make_transcript
from tests.metrics.builders import make_ledger


def hello(answer: str = "Hello!"):
    return make_transcript([("user", "Hi"), ("assistant", answer)])


class TestColumns:
    ledger = make_ledger(
        step=[7] * 5,
        group=[30, 10, 30, 10, 30],
        sample=[0, 0, 1, 1, 2],
        reward=[0.5, 1.0, 2.0, None, 2.0],
        advantage=[-1.0, 0.0, 1.0, None, 1.0],
        component__format=[0.1, 0.2, 0.3, 0.4, 0.5],
    )

    def test_every_row_that_was_decoded_stands_in_it_with_ranks_over_all_rows(self):
        table = sample_table(self.ledger, {row: hello() for row in (0, 2, 3, 4)})
        assert table["columns"] == [*COLUMNS, "reward/format"]
        rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
        assert [row["reward_rank_desc"] for row in rows] == [3, 1, None, 2]  # ties in the order of the rows
        assert [row["prompt_index"] for row in rows] == [0, 0, 1, 0]
        assert [row["completion_index"] for row in rows] == [0, 1, 1, 2]
        assert [row["group_size"] for row in rows] == [3, 3, 2, 3]
        assert rows[0]["step"] == 7 and rows[0]["reward_total"] == 0.5 and rows[0]["reward/format"] == 0.1
        assert rows[2]["reward_total"] is None and rows[2]["advantage"] is None

    def test_prompt_and_completion_are_the_whole_text_parted_at_the_first_sampled_token(self):
        transcript = hello()
        prompt, completion = prompt_and_completion(transcript)
        assert prompt + completion == transcript.raw
        assert prompt.endswith("<|assistant|>\n") and completion.startswith("Hello!")


class TestFile:
    def test_it_is_strict_json(self, tmp_path):
        path = table_path(tmp_path, "rollout", 12)
        write_table(path, {"columns": ["a", "b"], "data": [[math.nan, "x\ud800\u2028"], [math.inf, None]]})
        read = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
        assert read == {"columns": ["a", "b"], "data": [[None, "x\ufffd\u2028"], [None, None]]}

    def test_it_replaces_an_older_one_and_leaves_nothing_half_written(self, tmp_path):
        path = tmp_path / "t.json"
        write_table(path, {"columns": ["a"], "data": [[1]]})
        with pytest.raises(TypeError):
            write_table(path, {"columns": ["a"], "data": [[object()]]})
        write_table(path, {"columns": ["a"], "data": [[2]]})
        assert json.loads(path.read_text())["data"] == [[2]]
        assert [item.name for item in tmp_path.iterdir()] == ["t.json"]
