"""What rows of verl are told apart by."""

from __future__ import annotations

import json

import pytest

from rollout_traces.sources.formats.verl import Verl, _group_and_episode
from rollout_traces.sources.problems import Problems
from tests.sources.reading import rows_of, runs_of


@pytest.mark.parametrize(
    ("uid", "group", "episode"),
    [
        ("ab12_3_0", "ab12", "ab12_3"),
        ("a_b_3_1", "a_b", "a_b_3"),
        ("ab12", "ab12", None),
        ("ab12_3", "ab12_3", None),
        ("a_b_c", "a_b_c", None),
        ("a_3_c", "a_3_c", None),
        ("a_c_3", "a_c_3", None),
        ("3_1", "3_1", None),
    ],
)
def test_outputs_of_one_rollout_of_verl_share_its_number(uid, group, episode):
    assert _group_and_episode(uid) == (group, episode)


RECORD = {"input": "2+2?", "output": "4", "gts": "4", "score": 0.5, "step": 3}


@pytest.fixture
def read(tmp_path):
    """Reads records of a run's folder, as a file of the name."""

    def of(*records: dict, name: str = "my-run/rollout_data/7.jsonl", problems: Problems | None = None):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return rows_of(path, problems)

    return of


class TestRows:
    def test_hold_what_the_record_says(self, read):
        more = {"uid": "p_1_0", "acc": 1.0, "pred": "4", "length": 9, "note": "ok", "data_source": "gsm8k"}
        [row] = read(RECORD | more)
        assert (row.step, row.split, row.prompt_text, row.reply_text, row.reward) == (
            (3, "rollout", "2+2?", "4", 0.5)
        )
        assert (row.group, row.episode, row.sample_id) == ("p", "p_1", "p_1_0")
        assert (row.ground_truth, row.source, row.success, row.parsed_answer) == ("4", "gsm8k", True, "4")
        assert row.metrics == {"length": 9} and row.extras == {"note": "ok"}

    def test_are_named_by_their_request_where_they_have_no_uid(self, read):
        [row] = read(RECORD | {"request_id": "r1", "acc": "high", "data_source": 3, "uid": None})
        assert (row.sample_id, row.group, row.episode) == ("r1", None, None)
        assert row.success is None and row.source is None
        [numbered] = read(RECORD | {"uid": 7})
        assert (numbered.sample_id, numbered.group) == (7, None)
        [failed] = read(RECORD | {"acc": 0})
        assert failed.success is False

    def test_take_their_step_from_the_file_where_the_record_has_none(self, read):
        plain = {key: value for key, value in RECORD.items() if key != "step"}
        assert [row.step for row in read(plain, RECORD | {"step": 0})] == [7, 0]
        problems = Problems()
        assert read(plain, name="my-run/rollout_data/all.jsonl", problems=problems) == []
        assert problems.counts == {"rows_without_step": 1}

    def test_without_text_have_their_score_and_are_told_of(self, read):
        problems = Problems()
        _, row, other = read(RECORD, RECORD | {"input": None}, RECORD | {"output": ["4"]}, problems=problems)
        assert (row.prompt_text, row.reply_text, row.reward) == (None, "4", 0.5)
        assert (other.prompt_text, other.reply_text) == ("2+2?", None)
        assert problems.counts == {"rows_without_text": 2}

    def test_of_something_else_are_passed_over_and_told_of(self, read):
        problems = Problems()
        assert len(read(RECORD, {"step": 3, "loss": 1}, {"step": 3}, problems=problems)) == 1
        assert problems.counts["rows_refused"] == 2
        assert "has step, loss. Expected input" in str(problems.kept[0])


class TestClaims:
    def claim(self, tmp_path, record: dict, name: str):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record) + "\n")
        found = [file for run in runs_of(path) for file in run.files if isinstance(file.format, Verl)]
        return found[0].claim if found else None

    def test_the_folder_above_the_kind_is_the_runs(self, tmp_path):
        claim = self.claim(tmp_path, RECORD, "my-run/validation_data/20.jsonl")
        assert (claim.root.name, claim.step, claim.split) == ("my-run", 20, "eval-rollout")
        claim = self.claim(tmp_path, RECORD, "my-run/rollout_data/x.jsonl")
        assert (claim.root.name, claim.step, claim.split) == ("my-run", None, "rollout")

    def test_groups_are_lacking_without_uids(self, tmp_path):
        lacks = ["token ids", "loss mask", "logprobs", "roles inside the prompt", "stop reasons"]
        assert self.claim(tmp_path, RECORD | {"uid": "a"}, "r/rollout_data/1.jsonl").lacks == lacks
        assert self.claim(tmp_path, RECORD, "r/rollout_data/2.jsonl").lacks == [
            *lacks,
            "groups (equal prompts are one)",
        ]

    def test_groups_that_validation_alone_lacks_are_said_to_be_its_own(self, tmp_path):
        found = self.claim(tmp_path, RECORD, "r/validation_data/2.jsonl")
        assert found.lacks[-1] == "groups in validation (equal prompts are one)"

    @pytest.mark.parametrize("other", [{"messages": []}, {"input_prompt": "q"}])
    def test_records_that_other_formats_know_are_theirs(self, tmp_path, other):
        assert self.claim(tmp_path, RECORD | other, "r/rollout_data/1.jsonl") is None
