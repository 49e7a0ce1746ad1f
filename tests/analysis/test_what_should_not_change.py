"""What should not change, or was never there before, is told with its step and for whom; its numbers come from its query."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from rollout_traces.analysis import diagnose
from tests.analysis.test_recomputed import unexplained
from tests.stories.later_causes import CAUSES
from tests.stories.relations import of_story
from tests.stories.unseen_causes import FIRST
from tests.stories.world import World, write_run


def told_of(name: str, kind: str = "mixed", seed: int = 3, causes=CAUSES):
    cause = causes[name]
    story = write_run(seed, kind, name, cause.changes, at=50)
    relations = of_story(story)
    return relations, diagnose(relations, "run").diagnoses


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("system prompt changed", "data_mix", "n_prompt"),
        ("answers not parsed", "frequent_value", "“[invalid]”"),
        ("a source answers in Spanish", "new_phrase", "on source search"),
        ("evaluation sampled hotter", "evaluation_alone", "mean_logprob"),
        ("loss is NaN at times", "lost_values", "train/loss is not a number"),
        ("advantages of the next group", "update_moved", "advantage/uncentred"),
        ("reward clipped", "reward_changed", "clipped"),
        ("rewards of one rank are lost", "reward_function", "extra/rank rank-5"),
    ],
)
def test_it_is_told_with_its_step_and_its_figures(name, kind, words):
    relations, heads = told_of(name)
    said = [d for head in heads for d in (head, *head.consequences) if d.kind == kind and words in d.sentence]
    assert said
    assert abs(said[0].step - 50) <= (5 if "NaN" in name else 2)
    assert said[0].queries
    lost = unexplained(said[0].sentence, relations, said[0].queries)
    assert [text for text in lost if text != str(said[0].step)] == []


@pytest.mark.parametrize(("factor", "severities"), [(0.2, {"info"}), (5.0, {"warn", "error"})])
def test_a_mismatch_that_falls_is_no_warning(factor, severities):
    def other_mismatch(w: World) -> None:
        w.c["mismatch_abs_max"][w.after] *= factor

    story = write_run(3, "mixed", "another mismatch", {"policy": other_mismatch}, at=50)
    heads = diagnose(of_story(story), "run").diagnoses
    said = [d for head in heads for d in (head, *head.consequences) if "mismatch_abs_max" in d.sentence]
    assert said
    assert {d.severity for d in said} <= severities


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("judge of five grades", "values_moved", "component/judge is exactly 0.15"),
        ("one grader is stuck", "values_moved", "extra/grader grader-2"),
        ("stop string added", "values_moved", "n_sampled is at most"),
        ("engine of older weights", "engine_off", "engine vllm-1 departs from the other engines"),
        ("evaluation with another template", "evaluation_alone", "n_prompt"),
    ],
)
def test_what_a_mean_over_all_rollouts_hides_is_told_with_its_figures(name, kind, words):
    relations, heads = told_of(name, causes=FIRST)
    said = [d for head in heads for d in (head, *head.consequences) if d.kind == kind and words in d.sentence]
    assert said
    assert abs(said[0].step - 50) <= 2
    lost = unexplained(said[0].sentence, relations, said[0].queries)
    assert [text for text in lost if text != str(said[0].step)] == []


def test_entropy_that_grows_is_told():
    def grow(w: World) -> None:
        w.c["entropy"] = w.c["entropy"] * (1 + 0.08 * np.clip(w.c["step"] - 49, 0, 10))

    heads = diagnose(of_story(write_run(3, "mixed", "grows", {"policy": grow}, at=50)), "run").diagnoses
    said = [d for d in heads if d.kind == "collapse"]
    assert said and "explodes" in said[0].sentence and abs(said[0].step - 50) <= 5


def test_a_number_that_every_rollout_knew_and_then_some_do_not():
    def lose(w: World) -> None:
        w.c["mean_logprob"][w.share(w.after, 0.3)] = np.nan

    heads = diagnose(
        of_story(write_run(3, "mixed", "lost", {"policy": lose}, n_steps=60, at=30)), "run"
    ).diagnoses
    assert any(d.kind == "lost_values" and d.step == 30 and "mean_logprob" in d.sentence for d in heads)


def test_a_run_with_ranks_and_no_cause_is_silent():
    def ranks(w: World) -> None:
        w.columns["extra/rank"] = np.asarray([f"rank-{g % 8}" for g in w.c["group"]], object)

    for seed in (3, 4):
        heads = diagnose(of_story(write_run(seed, "mixed", changes={"layout": ranks})), "run").diagnoses
        assert [d.sentence for d in heads if d.severity != "info"] == []


def test_an_answer_that_nobody_logged_is_no_fault():
    story = write_run(3, "plain", n_steps=30)
    at = story.rollouts.column_names.index("answer")
    none = pa.array([None] * story.rollouts.num_rows, pa.string())
    story = replace(story, rollouts=story.rollouts.set_column(at, "answer", none))
    assert diagnose(of_story(story), "run").n_steps == 30


@pytest.mark.parametrize("n_steps", [1, 2, 6, 9, 10])
def test_a_run_of_few_steps_is_answered_without_an_error(n_steps):
    cause = CAUSES["a source answers in Spanish"]
    story = write_run(5, "mixed", "short", cause.changes, n_steps=n_steps, at=max(1, n_steps // 2))
    assert diagnose(of_story(story), "run").n_steps == n_steps
