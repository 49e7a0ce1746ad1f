"""Every question over every odd table: an answer in finite numbers, or an error in words."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from rollout_traces.analysis import (
    Selection,
    diagnose,
    explain,
    first_seen,
    flips,
    list_prompts,
    prompt_over_time,
)
from rollout_traces.analysis.runs import progress
from rollout_traces.errors import RolloutTracesError
from tests.analysis.builders import normal, steps, table
from tests.stories.relations import TableRelations

Rows = list[dict[str, Any]]
A, B = Selection("run", "rollout", (10, 10)), Selection("run", "rollout", (0, 9))


def noisy(step: int, group: int, sample: int) -> float:
    return normal(step, group, sample)


def plain(**columns: Any) -> Rows:
    given: dict[str, Any] = {
        "reward": noisy,
        "success": lambda s, g, i: (s + g + i) % 2,
        "n_sampled": 7,
        **columns,
    }
    return steps(12, **given)


def without(rows: Rows, *names: str) -> Rows:
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


TABLES: dict[str, Rows] = {
    "two rows": [{"step": 0, "reward": 1.0, "success": 1}, {"step": 10, "reward": 0.0, "success": 0}],
    "one group": steps(12, groups=1, reward=noisy, success=1),
    "one step": [{**row, "step": 10, "group": 100 * row["step"] + row["group"]} for row in plain()],
    "no groups": without(plain(), "group"),
    "all rewards equal": plain(reward=0.5),
    "NaN and infinity": plain(reward=lambda s, g, i: (math.nan, math.inf, -math.inf, 1.0)[(s + g + i) % 4], n_sampled=None),
    "nothing known": plain(reward=None, success=None, n_sampled=None),
    "columns that one side has": [
        {**row, "judge": 1.0 if row["step"] >= 10 else None, "source": "a" if row["step"] < 10 else None} for row in plain()
    ],
    "five thousand values": [
        {"step": i % 12, "group": i // 12, "source": f"s{i % 5000}", "flags": [f"f{i % 5000}"], "reward": float(i % 7)}
        for i in range(10_000)
    ],
    "prompts without key": without(plain(), "prompt_key"),
    "some prompts without key": [{**row, "prompt_key": row["prompt_key"] if row["group"] else None} for row in plain()],
    "evaluations of different sets": [
        *plain(),
        *({**row, "split": "eval-rollout", "prompt_key": f"e{row['step']}-{row['group']}"} for row in plain()),
    ],
    "evaluations that share a half": [
        *plain(),
        *({**row, "split": "eval-rollout", "prompt_key": f"e{row['group'] + row['step'] // 4}"} for row in plain()),
    ],
    "no rows": [{"step": None}],
    "nothing but steps": [{"step": s} for s in range(30)],
    "texts of one word and of none": plain(reply=lambda s, g, i: ("", "word", "“?” ' \" -- ;", "no\x00thing")[i]),
    "names of SQL": plain(**{'x"; drop table rollouts; --': noisy, "a ? b": noisy, "select": lambda s, g, i: f"'{g % 2}?"}),
}  # fmt: skip


QUESTIONS: dict[str, Callable[[TableRelations], Any]] = {
    "explain": lambda relations: explain(relations, A),
    "explain against": lambda relations: explain(relations, A, B),
    "explain the later half": lambda relations: explain(relations, Selection("run", "rollout", (6, None)), Selection("run", "rollout", (None, 5))),
    "diagnose": lambda relations: diagnose(relations, "run"),
    "first seen": lambda relations: first_seen(relations, "run"),
    "prompts": lambda relations: list_prompts(relations, Selection("run", None)),
    "prompt": lambda relations: prompt_over_time(relations, "p0-1"),
    "flips": lambda relations: flips(relations, Selection("run", "rollout", (0, 0)), A),
    "flips of evaluations": lambda relations: flips(
        relations, Selection("run", "eval-rollout", (0, 0)), Selection("run", "eval-rollout", (10, 10))
    ),
    "progress": lambda relations: progress(relations, "run").rollouts.tolist(),
}  # fmt: skip


def sentences(answer: Any) -> list[str]:
    """Every text of an answer that a person reads."""
    if hasattr(answer, "diagnoses"):
        assert answer.problems == ()
        return [
            *(d.sentence for d in answer.diagnoses),
            *answer.remarks,
            *map(str, answer.unobserved),
        ]
    if hasattr(answer, "findings"):
        return [
            *(f.sentence for f in answer.findings),
            *(c.sentence for c in answer.carried),
            *answer.remarks,
        ]
    return list(getattr(answer, "remarks", ()))


def levels(answer: Any) -> list[float]:
    """What is said in numbers and must be one."""
    found = []
    for finding in getattr(answer, "findings", ()):
        found += [finding.a, finding.b, finding.effect.effect, finding.effect.p]
    for name in ("score_a", "score_b", "difference", "low", "high"):
        found += [getattr(answer, name)] if hasattr(answer, name) else []
    for one in getattr(answer, "decompositions", ()):
        found += [one.change, *(part.mix + part.within for part in one.mixes)]
    return found


TOLD = {"all rewards equal": {"reward"}}
"""What is said of these runs above info."""


@pytest.mark.parametrize("name", TABLES)
def test_it_is_answered_or_said_in_words(name):
    relations = table(TABLES[name])
    for question, ask in QUESTIONS.items():
        try:
            answer = ask(relations)
        except RolloutTracesError as error:
            assert re.search(r"[a-z]{3,} [a-z]", str(error)), question
            continue
        assert all(math.isfinite(value) for value in levels(answer)), question
        assert not re.search(r"\b(nan|inf|None)\b", " ".join(sentences(answer))), question
        if question == "diagnose":
            told = {str(d.series[0]) for d in answer.diagnoses if d.severity != "info"}
            assert told == TOLD.get(name, set())


def test_one_rollout_far_from_eight_others_divides_by_nothing():
    rows = [{"step": 0, "group": 0, "n_sampled": n} for n in (5, 6, 7, 5, 6, 7, 6, 6, 900)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert diagnose(table(rows), "run").problems == ()
