"""What rollouts write: sentences from templates and words whose frequencies follow Zipf's law."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence

import numpy as np

from tests.perturbations.run import Run
from tests.perturbations.spec import stream

TEMPLATES = (
    "First I {verb} the {noun} and then {verb2} the {noun2}.",
    "The {noun} gives {number} {noun2} in total.",
    "We know that the {adjective} {noun} is not the same as the {noun2}.",
    "So the {noun} must be {adjective}, because the {noun2} is {adjective2}.",
    "Let me {verb} the {noun} once more before I {verb2} it.",
    "If the {noun} is {adjective}, there are {number} {noun2} left.",
    "I {verb} the {noun} and see a {adjective} {noun2}.",
    "Wait, the {noun} should be {number}, not the {adjective} {noun2}.",
    "That leaves {number} for the {adjective} {noun}.",
    "Next, {verb} every {noun} of the {noun2}.",
    "The {adjective} case follows from the {noun}.",
    "Then the {noun2} can be {adjective} as well.",
    "This {noun} returns the {noun2} as expected.",
    "Checking: {number} and {number2} agree with the {noun}.",
    "Would you like me to {verb} the {noun}?",
    "I have found the {noun} and will {verb} the {adjective} {noun2}.",
)
WORDS = {
    "verb": [
        "check",
        "add",
        "multiply",
        "compare",
        "count",
        "read",
        "write",
        "sort",
        "divide",
        "simplify",
        "move",
        "list",
        "test",
        "fetch",
        "update",
        "expand",
    ],
    "noun": (
        [
            "sum",
            "number",
            "list",
            "value",
            "result",
            "train",
            "order",
            "booking",
            "function",
            "array",
            "price",
            "answer",
            "file",
            "price",
            "term",
            "equation",
            "angle",
            "user",
            "total",
            "loop",
            "string",
            "index",
            "row",
            "ticket",
            "case",
            "limit",
            "sequence",
            "square",
            "error",
            "module",
        ]
    ),
    "adjective": [
        "second",
        "larger",
        "first",
        "small",
        "empty",
        "even",
        "remaining",
        "positive",
        "new",
        "correct",
        "exact",
        "last",
        "prime",
        "odd",
        "whole",
    ],
}
FORMS = ("The answer is \\boxed{{{}}}.", "Answer: {}", "#### {}", "So the final answer is {}.")
FOREIGN = (
    "Сначала я проверю условие задачи.",
    "我们先检查一下这个方程。",
    "Zuerst prüfe ich die zweite Gleichung.",
    "पहले हम योग निकालते हैं।",
    "まず条件を確認します。",
    "أولا نتحقق من المعادلة",
)
MARKS = ("**Final answer:**", "<verify>", "```python", "[[done]]", "Step by step:", "\n\n---\n\n", "ANSWER=")
OPENINGS = (
    "I am sorry, but I cannot",
    "As requested by the grader,",
    "It is widely known that",
    "To be completely certain,",
)


@functools.cache
def sentences() -> tuple[str, ...]:
    """Four hundred sentences, the commoner first."""
    rng = stream("sentences")

    def word(kind: str) -> str:
        bank = WORDS[kind.rstrip("2")]
        p = 1 / (1 + np.arange(len(bank)))
        return str(rng.choice(bank, p=p / p.sum()))

    found: dict[str, None] = {}
    while len(found) < 400:
        template = TEMPLATES[int(rng.integers(len(TEMPLATES)))]
        words = {k: word(k) for k in ("verb", "verb2", "noun", "noun2", "adjective", "adjective2")}
        numbers = {k: str(int(rng.integers(2, 90))) for k in ("number", "number2")}
        found[template.format(**words, **numbers)] = None
    return tuple(found)


def draw_phrase(rng: np.random.Generator) -> str:
    """A phrase: another language, a mark, an opening, a sentence that some rows write anyhow, or words of its own."""
    kind = int(rng.integers(5))
    if kind == 3:
        return sentences()[int(rng.integers(40, 400))]
    if kind < 3:
        bank = (FOREIGN, MARKS, OPENINGS)[kind]
        return str(bank[int(rng.integers(len(bank)))])
    words = [str(rng.choice(WORDS[k])) for k in ("adjective", "adjective", "noun", "verb")]
    return " ".join(words[: int(rng.integers(2, 5))]).capitalize() + " indeed"


def written(run: Run, rows: Sequence[int] | np.ndarray) -> list[str]:
    """What some rows of a run wrote, in full."""
    if run.texts:
        return [_with_phrases(run, row, run.texts["written"][row]) for row in rows]
    bank, p = sentences(), 1 / (5 + np.arange(400.0))
    rng = run.rng("text")
    drawn = rng.choice(400, (run.n, 6), p=p / p.sum())
    many, place = 3 + rng.integers(0, 4, run.n), rng.integers(0, 3, run.n)
    form, answer = rng.random(run.n), answers(run)
    usual = run.constants("forms").dirichlet(np.full(len(FORMS), 0.5)).cumsum()
    texts = []
    for row in rows:
        said = [bank[i] for i in drawn[row, : many[row]]]
        for phrase, wrote in run.phrases:
            if wrote[row]:
                said.insert(int(place[row]), phrase)
        said.append(FORMS[min(int((form[row] > usual).sum()), 3)].format(answer[row]))
        texts.append(" ".join(said))
    return texts


def _with_phrases(run: Run, row: int, text: str) -> str:
    """A logged text with what perturbations make its row write, at its beginning."""
    return " ".join([*(phrase for phrase, wrote in run.phrases if wrote[row]), text])


def truths(run: Run) -> np.ndarray:
    """[N] the expected answer of every row, a property of its prompt."""
    return (run.c["prompt"] * 7919 + 13) % 97


def answers(run: Run) -> np.ndarray:
    """[N] what every row gives as its answer: the right one where it succeeded."""
    wrong = run.rng("answers").integers(0, 97, run.n)
    right = np.nan_to_num(run.c["correct"]) >= 0.8
    return np.where(right, truths(run), wrong)


def prompts(run: Run, rows: Sequence[int] | np.ndarray) -> list[str]:
    """The questions of some rows, a property of the prompt alone."""
    if run.texts:
        return [run.texts["prompt"][row] for row in rows]
    bank, prompt = sentences(), run.c["prompt"]
    return [
        f"Question {prompt[r]}: {bank[prompt[r] % 400]} {bank[prompt[r] * 31 % 400]} What is it?"
        for r in rows
    ]


def system_prompts(sources: Sequence[str]) -> list[str]:
    """A system prompt for every source."""
    return [f"You are a careful assistant for {s}. Think first, then give one final answer." for s in sources]


def tool_schemas(sources: Sequence[str]) -> list[str]:
    """Tool schemas for every source, as canonical JSON."""
    return [
        json.dumps([{"name": f"{s}_lookup", "parameters": {"query": {"type": "string"}}}], sort_keys=True)
        for s in sources
    ]
