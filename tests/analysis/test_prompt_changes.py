"""Ground truths, wordings, system prompts and tools that changed for a prompt; evaluation prompts in training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rollout_traces.analysis import diagnose
from rollout_traces.analysis.prompt_changes import prompt_entries
from rollout_traces.analysis.selections import RunScope
from tests.analysis.builders import table
from tests.stories.relations import TableRelations


def run_of(held: Any, evaluated: Any = None) -> TableRelations:
    """40 steps of 10 prompts of 30; `held` gives the texts of a rollout by step and prompt."""
    rows, texts = [], []
    for step in range(40):
        for i in range(10):
            prompt = (10 * step + i) % 30
            uid = f"{step}-{i}"
            rows.append(
                {
                    "step": step,
                    "group": i,
                    "prompt_key": f"p{prompt}",
                    "uid": uid,
                    "traced": True,
                    "selected_by": "random",
                }
            )
            texts.append({"uid": uid, "written": "so", "prompt": f"What is {prompt}?", **held(step, prompt)})
    for i in range(8 if evaluated else 0):
        rows.append(
            {
                "step": 0,
                "split": "eval-rollout",
                "group": i,
                "prompt_key": f"e{i}",
                "uid": f"e{i}",
                "traced": True,
                "selected_by": "fixed_prompts",
            }
        )
        texts.append({"uid": f"e{i}", "written": "so", "prompt": evaluated(i)})
    return table(rows, texts)


def said(relations: TableRelations) -> list[str]:
    return [entry.sentence for entry in prompt_entries(RunScope(relations, "run", "rollout"))]


class TestChanges:
    def test_ground_truths_that_change_at_a_step_are_counted(self):
        relations = run_of(
            lambda step, prompt: {"ground_truth": "no" if step >= 21 and prompt < 25 else str(prompt)}
        )
        (sentence,) = said(relations)
        assert sentence.startswith("the ground truth of 25 prompts changed at step 21, of 30")
        assert sentence in [d.sentence for d in diagnose(relations, "run").diagnoses]

    def test_system_prompt_and_tools(self):
        relations = run_of(
            lambda step, prompt: {
                "system": "Be brief." if step < 15 else "Be long.",
                "tools": "[]" if step < 30 else "[1]",
            }
        )
        first, second = said(relations)
        assert "the system prompt of 30 prompts changed at step 15" in first
        assert "the tools of 30 prompts changed at step 30" in second

    def test_what_differs_at_every_visit_and_what_never_does_is_silent(self):
        assert said(run_of(lambda step, prompt: {"ground_truth": f"{step} of {prompt}"})) == []
        assert said(run_of(lambda step, prompt: {"ground_truth": str(prompt)})) == []

    def test_without_texts_nothing_is_said(self):
        assert said(table([{"step": s, "prompt_key": "p"} for s in range(12)])) == []


class TestLengths:
    def test_prompts_of_a_source_that_got_longer_by_a_little_are_told_with_those_of_the_evaluation(self):
        """Seen once: three more tokens in prompts of very different lengths, the same prompts at each evaluation, and no word of it."""

        def row(step: int, split: str, i: int) -> dict[str, Any]:
            source = "code" if i % 3 == 0 else "math"
            longer = 3 if source == "code" and step >= 21 else 0
            length = 40 + 36 * i + longer
            return {
                "step": step,
                "split": split,
                "group": i,
                "prompt_key": f"{split}-{i}",
                "source": source,
                "n_prompt": length,
            }

        rows = [row(step, "rollout", (10 * step + i) % 30) for step in range(40) for i in range(10)]
        rows += [row(step, "eval-rollout", i) for step in range(0, 40, 5) for i in range(30)]
        (entry,) = prompt_entries(RunScope(table(rows), "run", "rollout"))
        assert entry.sentence == (
            "n_prompt of 10 prompts on source “code” changed from 526 to 529 at step 21, "
            "of 30 that were asked before and after it."
        )
        assert entry.part == (("source", "code"),) and entry.where == "source = 'code' and step >= 21"
        (evaluated,) = entry.consequences
        assert evaluated.sentence.startswith("eval-rollout: n_prompt of 10 prompts on source “code” changed")

    def test_those_of_one_odd_step_did_not_change(self):
        """Seen once: prompts that were longer at one step “changed” where those of it were asked next."""

        def length(s: int, i: int) -> int:
            return 100 + i + 30 * (s == 5)

        rows = [
            {"step": s, "group": i, "prompt_key": f"p{(10 * s + i) % 150}", "n_prompt": length(s, i)}
            for s in range(40)
            for i in range(10)
        ]
        assert said(table(rows)) == []

    def test_of_two_evaluations_those_that_got_longer_and_shorter_alike_are_silent(self):
        """As where each evaluation draws the examples in its prompts anew."""
        rows = [
            {
                "step": s,
                "split": "eval-rollout" if at else "rollout",
                "group": i,
                "prompt_key": f"e{i}" if at else f"p{s}-{i}",
                "n_prompt": 100 + (37 * i + 11 * s) % 50,
            }
            for s in range(12)
            for at in ((0, 1) if s in (0, 10) else (0,))
            for i in range(40)
        ]
        assert said(table(rows)) == []

    def test_what_a_prompt_has_at_each_visit_another_of_is_silent(self):
        rows = [
            {"step": s, "group": i, "prompt_key": f"p{i}", "n_prompt": 100 + s * i}
            for s in range(40)
            for i in range(10)
        ]
        assert said(table(rows)) == []


class TestTheOnset:
    def test_is_behind_the_last_visit_with_the_old_text(self):
        """The prompts that change are asked every third step, at step 18 last before the change at step 21."""
        relations = run_of(
            lambda step, prompt: {"ground_truth": "no" if step >= 20 and prompt < 10 else "yes"}
        )
        (entry,) = prompt_entries(RunScope(relations, "run", "rollout"))
        assert (entry.step, entry.onset) == (21, (19, 21))

    def test_two_prompts_alone_are_no_change_and_three_are(self):
        def until(n: int) -> list[str]:
            return said(run_of(lambda step, prompt: {"ground_truth": str(step >= 21 and prompt < n)}))

        assert until(2) == [] and len(until(3)) == 1


class TestEvaluationPromptsInTraining:
    def test_they_are_found_by_their_text(self):
        def held(step: int, prompt: int) -> dict[str, str]:
            return {"prompt": f"What is  {prompt}?" if step < 20 or prompt >= 6 else f"Held out {prompt}"}

        relations = run_of(held, lambda i: f"Held out {i}")
        (sentence,) = [each for each in said(relations) if "in training" in each]
        assert sentence == "6 eval-rollout prompts are in training since step 21, of 8 that are known."

    def test_they_are_found_by_their_key_among_all_rollouts_where_they_come_later(self):
        """Seen once: 64 evaluation prompts in training since step 60, said as one since step 102, whose text was kept."""

        def run_with(keys: Callable[[int, int], str]) -> TableRelations:
            rows = [{"step": s, "prompt_key": keys(s, g)} for s in range(40) for g in range(6)]
            held = [
                {"step": s, "split": "eval-rollout", "prompt_key": f"held-{g}"}
                for s in (0, 20)
                for g in range(30)
            ]
            return table([*rows, *held])

        later = said(run_with(lambda s, g: f"held-{(s + g) % 30}" if s >= 25 and g == 0 else f"p-{s}-{g}"))
        assert later == ["15 eval-rollout prompts are in training since step 25, of 30 that are known."]
        assert said(run_with(lambda s, g: f"held-{(s + g) % 30}")) == []

    def test_others_are_not(self):
        assert said(run_of(lambda step, prompt: {}, lambda i: f"Held out {i}")) == []


class TestEvaluationPromptsReplaced:
    @staticmethod
    def evaluated(*sets: range) -> list[str]:
        """Evaluations at steps 0, 5, 10, ... of a run, each of the prompts of a set."""
        rows = [{"step": 0, "prompt_key": "p"}]
        rows += [
            {"step": 5 * at, "split": "eval-rollout", "prompt_key": f"e{prompt}"}
            for at, asked in enumerate(sets)
            for prompt in asked
        ]
        return [each for each in said(table(rows)) if "other prompts" in each]

    def test_are_told_with_the_step_and_how_many(self):
        assert self.evaluated(range(10), range(10), range(10), range(9, 19)) == [
            "eval-rollout asks other prompts since step 15: 9 of 10 were not asked at step 10."
        ]

    def test_a_few_new_ones_are_no_replacement(self):
        assert self.evaluated(range(10), range(10), range(10), range(7, 17)) == []

    def test_two_evaluations_alone_say_nothing_of_what_is_usual(self):
        assert self.evaluated(range(10), range(20, 30)) == []
        assert len(self.evaluated(range(10), range(10), range(20, 30))) == 1

    def test_where_each_asks_others_that_is_usual(self):
        assert self.evaluated(range(10), range(10, 20), range(20, 30), range(30, 40)) == []

    def test_very_few_prompts_are_no_evaluation(self):
        assert self.evaluated(range(2), range(2), range(2), range(5, 7)) == []
        assert len(self.evaluated(range(3), range(3), range(3), range(5, 8))) == 1

    def test_a_second_replacement_is_told_too(self):
        first, second, third = range(10), range(20, 30), range(40, 50)
        told = self.evaluated(first, first, second, second, third)
        assert [each.split("since step ")[1].split(":")[0] for each in told] == ["10", "20"]
