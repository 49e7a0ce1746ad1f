"""rLLM's episodes: trajectories step by step, and what the file says of them."""

from __future__ import annotations

import json

import pytest

from rollout_traces.sources.formats.rllm import Rllm
from rollout_traces.sources.problems import Problems
from tests.sources.reading import rows_of, runs_of

ASKED = {"role": "user", "content": "2+2?"}
SAID = {"role": "assistant", "content": "4"}
NAME = "run/train_step_3_epoch_0/episode_1.json"


def trajectory(*steps: dict, **more) -> dict:
    return {"name": "solver", "steps": list(steps) or [{"chat_completions": [ASKED, SAID]}], **more}


@pytest.fixture
def read(tmp_path):
    """Reads an episode of these trajectories."""

    def of(*trajectories: object, name: str = NAME, problems: Problems | None = None, **more):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        episode = {"training_step": 5, "episode_id": "task0:1", "trajectories": list(trajectories), **more}
        path.write_text(json.dumps(episode))
        return rows_of(path, problems)

    return of


class TestTrajectories:
    def test_have_what_the_episode_and_they_themselves_say(self, read):
        [row] = read(
            trajectory(reward=0.5, signals={"turns": 2}),
            is_correct=True,
            metrics={"acc": 1},
            task_hash="h",
            task={"ground_truth": "4"},
            timing={"total": 3},
            metadata={"level": "easy"},
            termination_reason="ENV_DONE",
        )
        assert (row.step, row.split, row.line, row.messages) == (5, "rollout", 1, [ASKED, SAID])
        assert (row.reward, row.success, row.metrics) == (0.5, True, {"acc": 1, "turns": 2})
        assert (row.group, row.prompt_key, row.episode) == ("task0:solver", "h", "task0:1")
        assert (row.sample_id, row.parent, row.source) == ("task0:1#1", None, "solver")
        assert (row.ground_truth, row.timings, row.extras) == ("4", {"total": 3}, {"level": "easy"})
        assert row.stop_reason == "stop"

    @pytest.mark.parametrize(
        ("reason", "stop"),
        [("max_response_length_exceeded", "length"), ("Timeout", "timeout"), (None, None)],
    )
    def test_end_for_the_reason_of_the_episode(self, read, reason, stop):
        assert read(trajectory(), termination_reason=reason)[0].stop_reason == stop

    def test_take_their_last_steps_reward_where_they_have_none(self, read):
        first, last = (
            {"chat_completions": [ASKED], "reward": 1},
            {"chat_completions": [ASKED, SAID], "reward": 2},
        )
        assert read(trajectory(first, last))[0].reward == 2.0
        assert read(trajectory(first, last, reward=0))[0].reward == 0.0
        plain = read(trajectory(name=""), task="text")[0]
        assert (plain.source, plain.ground_truth, plain.timings, plain.reward) == (None,) * 4

    def test_end_with_the_response_where_the_conversation_does_not(self, read):
        steps = {"chat_completions": [ASKED], "model_response": "4"}
        assert read(trajectory(steps))[0].messages == [ASKED, SAID]
        assert read(trajectory({"model_response": "4"}))[0].messages == [SAID]
        whole = {"chat_completions": [ASKED, SAID], "model_response": "5"}
        assert read(trajectory(whole))[0].messages == [ASKED, SAID]
        assert read(trajectory({"chat_completions": [ASKED], "model_response": ""}))[0].messages == [ASKED]
        assert read(trajectory({"chat_completions": []}))[0].messages is None

    def test_of_steps_that_do_not_go_on_are_branches(self, read):
        one, more = {"chat_completions": [ASKED]}, {"chat_completions": [ASKED, SAID]}
        other = {"chat_completions": [SAID]}
        rows = read(trajectory(one, more, other, one), trajectory(name="judge"))
        assert [row.messages for row in rows[:3]] == [[ASKED, SAID], [SAID], [ASKED]]
        assert [row.sample_id for row in rows] == [f"task0:1#{n}" for n in (1, 2, 3, 4)]
        assert [row.parent for row in rows] == [None, "task0:1#1", "task0:1#2", None]
        assert [row.group for row in rows] == ["task0:solver"] * 3 + ["task0:judge"]

    def test_without_steps_are_told_of_and_the_others_are_read(self, read):
        problems = Problems()
        rows = read({"name": "a", "steps": []}, trajectory(), "x", problems=problems)
        assert len(rows) == 1 and problems.counts["rows_refused"] >= 1
        assert any("trajectory 1 has no steps" in str(each) for each in problems.kept)

    def test_take_their_step_from_the_folder_where_the_file_says_none(self, read):
        assert read(trajectory(), training_step=None)[0].step == 3
        assert read(trajectory(), training_step=0)[0].step == 3


@pytest.mark.parametrize(
    ("name", "claimed"),
    [
        (NAME, ("run", 3, "rollout")),
        ("run/val_step_4_epoch_1/episode_2.json", ("run", 4, "eval-rollout")),
        ("run/other/episode_2.json", ("other", None, "rollout")),
        ("run/train_step_3_epoch_0/other.json", None),
    ],
)
def test_its_place_tells_run_step_and_split(read, tmp_path, name, claimed):
    read(trajectory(), name=name)
    found = [file.claim for run in runs_of(tmp_path) for file in run.files if isinstance(file.format, Rllm)]
    assert [(claim.root.name, claim.step, claim.split) for claim in found] == ([claimed] if claimed else [])
