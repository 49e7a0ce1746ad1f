"""Every number of a sentence comes again from the queries that are given with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import pytest

from rollout_traces.analysis import Selection, diagnose, flips
from rollout_traces.analysis.in_words import number, percent
from rollout_traces.analysis.relations import written
from tests.analysis.builders import steps, table
from tests.stories.relations import TableRelations

NUMBER = re.compile(r"[+\u2212-]?\d[\d,]*(\.\d+)?(e[+-]?\d+)?")


def unexplained(sentence: str, relations: TableRelations, queries: Sequence[str]) -> list[str]:
    """The numbers of a sentence that its queries do not give; a step has to stand in the query or in its answer."""
    texts, steps = set(), set()
    for query in queries:
        steps |= set(re.findall(r"\d+", query))
        for row in relations.sql(query).to_pylist():
            for value in row.values():
                if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
                    texts |= forms(float(value))
    found, before = [], ["", ""]
    for token in re.sub(r"“[^”]*”", "", sentence).split():
        plain = token.strip("(),;:.%")
        if NUMBER.fullmatch(plain) and plain not in texts:
            is_step = before[-1] in ("step", "steps") or (before[-1] == "to" and before[-2] in steps)
            if not (is_step and plain in steps):
                found.append(plain)
        before = [before[-1], plain]
    return found


def forms(value: float) -> set[str]:
    """A number as sentences write it."""
    if not np.isfinite(value):
        return set()
    shown = [
        number(value),
        percent(value).removesuffix("%").lstrip("<>"),
        f"{100 * value:.0f}",
        f"{value:,}",
    ]
    return {*shown, f"{value:,.0f}", f"{value:.2f}", f"{value:.0f}", f"{value:+.1f}", number(-value)}


class TestFlips:
    @pytest.mark.parametrize("trials", [1, 3])
    def test_scores_errors_and_counts(self, trials):
        rng = np.random.default_rng(trials)
        rows = [
            {"step": s, "prompt_key": f"p{i + s}", "success": int(rng.random() < 0.5)}
            for s in (0, 1)
            for i in range(40)
            for _ in range(trials)
        ]
        relations = table(rows)
        found = flips(relations, Selection("run", "rollout", (0, 0)), Selection("run", "rollout", (1, 1)))
        (row,) = relations.sql(found.query).to_pylist()
        again = [row[name] for name in ("score_a", "error_a", "score_b", "error_b", "difference")]
        assert again == pytest.approx(
            [found.score_a, found.error_a, found.score_b, found.error_b, found.difference]
        )
        assert row["shared"] == len(found.prompts) == 39
        assert (row["kept"], row["never"]) == (found.counts["kept"], found.counts["never"])
        if trials == 1:
            assert (row["fell"], row["rose"]) == (found.counts["lost"], found.counts["won"])


class TestStatements:
    def test_texts_and_names_with_question_marks_are_no_parameters(self):
        query = "select '?', 'it''s ?', \"a ? b\", ? from t where x = ?"
        assert written(query, ["o'k?", 3]) == "select '?', 'it''s ?', \"a ? b\", 'o''k?' from t where x = 3"
        assert written("? ? ?", [None, float("nan"), [1, "a"]]) == "null cast('nan' as double) [1, 'a']"


def test_a_number_that_no_query_gives_is_noticed():
    relations = table([{"step": 0, "reward": 0.5}])
    query = "select avg(reward) as level from rollouts where step = 0"
    assert unexplained("Reward 0.5 since step 0", relations, [query]) == []
    assert unexplained("Reward 0.7 since step 3", relations, [query]) == ["0.7", "3"]


def test_the_share_of_a_reason_is_of_all_rollouts_those_that_were_kept_among_them():
    """Seen once: a curve of 100% beside “zero_advantage fell from 32% to 0.6%”."""
    dropped = np.random.default_rng(4).random((40, 6, 4))

    def reason(s: int, g: int, i: int) -> str | None:
        return "zero_advantage" if dropped[s, g, i] < (0.4 if s < 20 else 0.02) else None

    relations = table(steps(40, discard_reason=reason))
    [entry] = [each for each in diagnose(relations, "run").diagnoses if each.severity == "error"]
    levels = {row["step"]: row["level"] for row in relations.sql(entry.queries[0]).to_pylist()}
    assert np.mean([levels[step] for step in range(20)]) == pytest.approx(entry.before, abs=1e-9)
