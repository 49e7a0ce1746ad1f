"""Two rollouts side by side, and a prompt from step to step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.compare import compare, compare_two, deltas, prompt_history
from rollout_traces.inspector.pages.group import group
from rollout_traces.inspector.pages.rollouts import rollout
from rollout_traces.inspector.workspace import SplitView, Workspace
from rollout_traces.sources.importing import import_rollouts


class TestTwoRollouts:
    def test_are_the_best_and_the_worst_of_the_group_where_none_is_named(self, ask):
        found = ask(compare, step=1)
        assert [side["metadata"]["reward"] for side in found["sides"]] == [1.0, 0.0]
        assert [card["reward"] for card in found["candidates"]] == [1.0, 0.0]
        assert [side["run"] for side in found["sides"]] == ["run-001"] * 2
        by_name = {each["name"]: each for each in found["deltas"]}
        assert (by_name["reward"]["a"], by_name["reward"]["b"], by_name["reward"]["delta"]) == (
            1.0,
            0.0,
            -1.0,
        )

    def test_share_the_tokens_that_both_begin_with(self, ask):
        found = ask(compare, step=1)
        a, b = (side["id"] for side in found["sides"])
        assert 0 < found["shared"] == ask(compare, a=a, b=b)["shared"]
        assert ask(compare, a=a, b=a)["shared"] > found["shared"]

    def test_that_are_named_are_taken_and_the_other_is_found(self, ask):
        best, worst = (side["id"] for side in ask(compare, step=1)["sides"])
        sides = lambda **asked: [side["id"] for side in ask(compare, step=1, **asked)["sides"]]  # noqa: E731
        assert sides(a=worst) == [worst, best] and sides(b=best) == [worst, best]
        assert sides(a=best) == sides(b=worst) == [best, worst]

    def test_of_a_group_of_one_are_not_two_unless_one_is_named(self, ask):
        assert len(ask(compare, step=1, group=1)["candidates"]) == 2, "another group has two"
        alone = ask(rollout, step=1, group=1, sample=0)["id"]
        other = ask(rollout, step=1, group=0, sample=0)["id"]
        found = ask(compare, step=1, group=1, a=other)
        assert [side["id"] for side in found["sides"]] == [other, alone]
        with pytest.raises(StoreError, match="Comparing needs two rollouts and fewer were kept here"):
            ask(compare, step=2, split="eval-rollout")
        with pytest.raises(StoreError, match="Comparing needs two rollouts"):
            ask(compare, a=alone)

    def test_without_texts_are_the_same_but_for_texts(self, ask):
        whole, bare = ask(compare, step=1), ask(compare_two, step=1)
        assert bare["deltas"] == whole["deltas"] and bare["shared"] == whole["shared"]
        for one, other in zip(bare["sides"], whole["sides"], strict=True):
            assert "turns" not in one and one["id"] == other["id"] and one["metadata"] == other["metadata"]


class TestDeltas:
    def test_are_of_what_either_knows_components_behind_rewards_and_names_last(self):
        a = {"reward": 1.0, "n_tokens": 5, "stop_reason": "stop", "component/style": 0.5, "sample/x": 1}
        b = {
            "reward": 0.25,
            "advantage": -1.0,
            "stop_reason": "length",
            "extra/note": "n",
            "component/style": None,
        }
        found = [(each.name, each.a, each.b, each.delta) for each in deltas(a, b)]
        assert found == [
            ("reward", 1.0, 0.25, -0.75),
            ("advantage", None, -1.0, None),
            ("component/style", 0.5, None, None),
            ("n_tokens", 5, None, None),
            ("extra/note", None, "n", None),
            ("sample/x", 1, None, None),
            ("stop_reason", "stop", "length", None),
        ]


class TestAPrompt:
    def test_is_followed_from_step_to_step(self, ask):
        found = ask(prompt_history, prompt_key="prompt-0")
        assert [(s["step"], s["n"], s["reward"], s["group"]) for s in found["steps"]] == [
            (step, 4, 0.5, 0) for step in range(3)
        ]
        assert found["steps"][1]["traced"] == ["b1-0", "b1-1"] and found["steps"][1]["pass_rate"] is None

    def test_that_nobody_asked_has_no_steps(self, ask):
        assert ask(prompt_history, prompt_key="other")["steps"] == []
        assert ask(prompt_history, prompt_key="")["steps"] == []


@pytest.fixture
def view(trackio_dir: Path, tmp_path: Path) -> SplitView:
    """Two prompts of four rollouts that have no token ids."""
    rows = [
        {"input": f"1 + {n // 4}?", "output": f"It is {n}.", "gts": "2", "score": n % 2, "step": 1}
        for n in range(8)
    ]
    dump = tmp_path / "run-1"
    dump.mkdir()
    (dump / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    import_rollouts(dump, "texts", worker="thread")
    workspace = Workspace(folder=trackio_dir)
    workspace.refresh("texts")
    (split,) = workspace.store("texts").splits("run-1")
    return SplitView(workspace, "texts", "run-1", split)


def test_rollouts_without_token_ids_share_no_prefix_and_have_no_tree(view: SplitView) -> None:
    found = compare(view, 1)
    assert found.shared is None
    assert [side["tokens"] for side in found.sides] == [None, None]
    shown = group(view, 1)
    assert shown.tree is None and len([each for each in shown.members if each.id]) == 4


def test_the_history_of_a_prompt_has_the_newest_attempt_and_rewards_that_count_alone(ask_resumed):
    steps = ask_resumed(prompt_history, prompt_key="prompt-0")["steps"]
    assert [(each["step"], each["n"], each["reward"]) for each in steps] == [(0, 4, 0.5), (1, 4, 0.75)]
