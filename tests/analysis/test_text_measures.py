"""What was written as series over a run: phrases of the whole text, scripts, languages, refusals, answer forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollout_traces.analysis import diagnose
from rollout_traces.analysis.selections import RunScope
from rollout_traces.analysis.text_measures import answer_of, language_of, script_of, text_rows
from tests.analysis.builders import steps, table
from tests.analysis.test_movements import happens, told
from tests.stories.relations import TableRelations

N_STEPS, AT = 40, 20


def run_that_writes(
    said: str, share: float = 0.6, seed: int = 0, before: str = "", since: int = AT
) -> TableRelations:
    """A run whose rollouts write `said`, from a step on, after some three hundred words; the others `before`."""
    rng = np.random.default_rng(seed)
    words = [f"word{i}" for i in range(400)]
    rows, texts = [], []
    for step in range(N_STEPS):
        for i in range(16):
            uid = f"{step}-{i}"
            rows.append(
                {"step": step, "group": i // 2, "uid": uid, "traced": True, "selected_by": "random", "reward": float(rng.normal())}
            )  # fmt: skip
            late = step >= since and rng.random() < share
            texts.append(
                {
                    "uid": uid,
                    "written": " ".join(rng.choice(words, 300)) + (f". {said}" if late else f". {before}"),
                }
            )
    return table(rows, texts)


def names_of(relations: TableRelations) -> list[str]:
    return [str(measure.name) for measure in text_rows(RunScope(relations, "run", "rollout")).measures]


class TestPhrases:
    def test_one_far_beyond_a_preview_is_followed_and_told_with_its_step(self):
        relations = run_that_writes("I am absolutely certain of this result")
        assert "written am absolutely certain of" in names_of(relations)
        told = [d for d in diagnose(relations, "run").diagnoses if "absolutely certain" in d.sentence]
        assert told and abs(told[0].step - AT) <= 2

    def test_a_rule_between_paragraphs_is_one(self):
        """Seen once: what a policy writes that is no word was not looked at."""
        told = [d for d in diagnose(run_that_writes("\n\n---\n\n"), "run").diagnoses if "“---”" in d.sentence]
        assert told and told[0].severity == "error" and abs(told[0].step - AT) <= 2

    def test_a_word_with_the_sign_behind_it_is_another_than_the_word(self):
        """Seen once: nothing was said where every reply began to hold `ANSWER=`, since many had the word before."""
        relations = run_that_writes("ANSWER=42", share=1.0, before="the final answer is 42")
        told = [d for d in diagnose(relations, "run").diagnoses if "“answer=”" in d.sentence]
        assert told and told[0].step == AT

    def test_one_that_comes_early_and_is_in_most_of_the_run_is_as_new(self):
        """Seen once: 0 to 81 % at step 15 of 52, as an info: of what most have, what lacks it was all that was looked at."""
        relations = run_that_writes("TODO: check the answer", share=0.85, since=10)
        told = [d for d in diagnose(relations, "run").diagnoses if "check the answer" in d.sentence]
        assert told[0].severity == "error" and told[0].step == 10

    @pytest.mark.parametrize("seed", range(3))
    def test_words_drawn_by_chance_are_not_followed(self, seed):
        assert [
            name for name in names_of(run_that_writes("", seed=seed)) if name.startswith("written ")
        ] == []

    def test_one_that_one_group_repeats_counts_once(self):
        relations = run_that_writes("a phrase of one group", share=0.02)
        assert "written a phrase of one" not in names_of(relations)

    @pytest.mark.parametrize("seed", range(2))
    def test_the_answer_of_a_prompt_that_is_asked_again_and_again_is_no_phrase(self, seed):
        """Seen once: “a phrase is written more often: “841””, before the prompt whose answer it is."""
        rng = np.random.default_rng(seed)
        rows, texts = [], []
        for step, group, i in np.ndindex(60, 8, 2):
            again, uid = 20 <= step < 40 and group < 5, f"{step}-{group}-{i}"
            key = "again" if again else f"p{step}-{group}"
            kept = {"uid": uid, "traced": True, "selected_by": "random", "reward": float(rng.normal())}
            rows.append({"step": step, "group": group, "prompt_key": key, **kept})
            said = "seven hundred and one" if again else f"number {rng.integers(999)}"
            texts.append({"uid": uid, "written": " ".join(map(str, rng.integers(0, 200, 40))) + f" {said}"})
        assert not [name for name in names_of(table(rows, texts)) if "seven" in name]

    def test_without_texts_it_is_unobserved(self):
        rows = [{"step": s, "uid": str(s), "traced": True, "selected_by": "random"} for s in range(12)]
        assert text_rows(RunScope(table(rows), "run", "rollout")) is None


class TestToolResults:
    @staticmethod
    def run_whose_search_finds_nothing(since: int) -> TableRelations:
        """Half of the rollouts call a tool, which answers with words drawn anew, and from a step on mostly with none."""
        rng = np.random.default_rng(1)
        rows, texts = [], []
        for step, i in np.ndindex(N_STEPS, 16):
            uid, words = f"{step}-{i}", " ".join(rng.choice([f"page{k}" for k in range(200)], 80))
            rows.append(
                {
                    "step": step,
                    "group": i // 2,
                    "uid": uid,
                    "traced": True,
                    "selected_by": "random",
                    "reward": float(rng.normal()),
                }
            )
            answers = "No results found." if step >= since and rng.random() < 0.6 else words
            texts.append({"uid": uid, "written": "I search.", "tool_results": answers if i % 2 else None})
        return table(rows, texts)

    def test_what_a_tool_answers_without_an_error_is_followed_and_told_with_its_step(self):
        """Seen once: six in ten searches found nothing, and nothing was said of it."""
        told = diagnose(self.run_whose_search_finds_nothing(AT), "run").diagnoses
        assert told[0].severity == "error" and told[0].step == AT
        assert "tool_results “no results found” rose from 0% to 6" in told[0].sentence

    def test_what_differs_by_chance_is_not_followed(self):
        names = names_of(self.run_whose_search_finds_nothing(N_STEPS))
        assert [name for name in names if name.startswith("tool_results")] == []


class TestKinds:
    def test_scripts(self):
        assert script_of("Therefore the result is forty two") == "Latin"
        assert (
            script_of("因此我们得到最终的答案，这就是为什么结果是四十二，而不是别的数字")
            == "Chinese or Japanese"
        )
        assert script_of("следовательно, ответ сорок два") == "Cyrillic"
        assert script_of("1 + 1 = 2") == ""

    def test_a_text_with_letters_of_another_script_is_of_both_and_formulas_are_none(self):
        """Seen once: Chinese among English reasoning was said nowhere, since most letters were Latin."""
        assert (
            script_of("首先我们把两个数相加。然后除以堆数。Wait, let me recheck that. The answer is 55.")
            == "Latin with Chinese or Japanese"
        )
        assert script_of("Let α + β = γ and α - β = δ, so that the sum of both is two alpha") == "Latin"

    def test_languages(self):
        assert language_of("The answer is the sum of the two, and that is it") == "English"
        assert language_of("La respuesta es la suma de los dos, y por lo tanto es para una") == "Spanish"
        assert language_of("x = 1") == ""

    def test_answers(self):
        assert answer_of(r"so \boxed{4}") == "boxed"
        assert answer_of("<answer>4</answer>") == "answer tag"
        assert answer_of("4") == "none"

    def test_reasoning_in_chinese_is_a_script_that_came(self):
        relations = run_that_writes("因此我们得到最终的答案" * 400)
        assert "written/script Chinese or Japanese" in names_of(relations)

    def test_refusals(self):
        assert "written/refusal refusal" in names_of(run_that_writes("I'm sorry, I can't help with that"))


def test_a_system_prompt_that_is_gone_is_none():
    """Seen once: after a resume no conversation had its system prompt, and nothing said so."""
    rows = steps(20, traced=True, selected_by="random", selected_probability=1.0)
    for at, row in enumerate(rows):
        row |= {"uid": f"u{at}", "id": f"u{at}"}
    texts = [
        {"uid": str(row["uid"]), "written": "so it is four"}
        | ({"system": "Be exact."} if row["step"] < 10 else {})
        for row in rows
    ]
    [entry] = [each for each in diagnose(table(rows, texts), "run").diagnoses if each.severity == "error"]
    assert entry.step == 10 and "system “none” rose from 0% to 100%" in entry.sentence


def test_answers_that_are_soon_all_found_are_what_a_policy_learns():
    """Seen once, in two healthy runs: a warning that answers without a form fell from 24% to 1.7%."""
    rows = [
        {**row, "uid": f"u{at}", "traced": True, "selected_by": "all", "selected_probability": 1.0}
        for at, row in enumerate(steps(60, groups=8, size=8))
    ]

    def answer(at: int, row: dict[str, Any]) -> str:
        missing = happens(0.12 if row["step"] < 7 else 0.004, row["step"], row["group"], at + 100)
        return "and then" if missing else "the answer is \\boxed{4}"

    texts = [
        {"uid": row["uid"], "written": f"so we add both of these and carry on {answer(at, row)}"}
        for at, row in enumerate(rows)
    ]
    assert not told(table(rows, texts))
