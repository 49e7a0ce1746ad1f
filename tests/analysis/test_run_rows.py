"""The rollouts of a run as arrays, and which measures of them are series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rollout_traces.analysis import diagnose, run_report
from rollout_traces.analysis.run_rows import (
    FEWEST_HITS,
    MOST_PARTS,
    RunRows,
    distinct,
    read_rows,
)
from rollout_traces.analysis.selections import RunScope
from tests.analysis.builders import steps, table
from tests.analysis.test_movements import logged


def read(rows: list[dict], **scope: object) -> RunRows:
    return read_rows(RunScope(table(rows), "run", "rollout", **scope))


def measured(rows: RunRows) -> dict[tuple[str, str | None], list[float | None]]:
    """(column, value) of each measure and its values, NaN as None."""
    return {
        (each.name.column, each.name.value): [None if np.isnan(v) else float(v) for v in each.read()]
        for each in rows.measures
    }


def four(**columns: list) -> list[dict]:
    """Four rows of two steps with the given columns."""
    return [
        {
            "step": n // 2,
            "group": n,
            "prompt_key": f"p{n % 2}",
            **{name: values[n] for name, values in columns.items()},
        }
        for n in range(4)
    ]


def test_small_numbers_are_told_apart_in_order():
    values, places = distinct(np.array([5, 0, 5, 3]))
    assert values.tolist() == [0, 3, 5] and places.tolist() == [2, 0, 2, 1]
    assert [each.tolist() for each in distinct(np.array([], np.int64))] == [[], []]


class TestPlaces:
    def test_each_row_has_its_step_its_group_and_its_prompt(self):
        rows = read(steps(3, groups=2, size=2, reward=lambda step, group, sample: step + sample))
        assert rows.steps.tolist() == [0, 1, 2]
        assert np.bincount(rows.at).tolist() == [4, 4, 4] == rows.per_step.tolist()
        assert len(set(rows.unit.tolist())) == 6 and np.bincount(rows.unit).tolist() == [2] * 6
        assert len(set(rows.prompt.tolist())) == 6

    def test_cut_by_a_column_each_group_is_one_for_each_value(self):
        engine = lambda step, group, sample: "ab"[sample % 2]  # noqa: E731
        rows = read(steps(2, groups=2, size=4, engine=engine))
        cut = rows.cut_by("engine")
        assert np.bincount(cut.unit).tolist() == [2] * 8 and list(cut.parts) == ["engine"]

    def test_rows_that_were_not_drawn_by_chance_have_no_weight(self):
        given = four(
            traced=[True, True, True, False],
            selected_by=["random", "random", "flagged", None],
            selected_probability=[0.25, None, 0.5, None],
        )
        assert read(given).weight.tolist() == [4.0, 1.0, 0.0, 0.0]

    def test_rows_that_were_all_kept_speak_for_all(self):
        """Seen once: nothing of what was written in runs that were read with every rollout, or that another tool kept."""
        given = four(
            traced=[True] * 4,
            selected_by=["all", None, "random", "group:best"],
            selected_probability=[1.0] * 4,
        )
        assert read(given).weight.tolist() == [1.0, 1.0, 1.0, 0.0]

    def test_those_that_come_while_it_reads_are_left_out(self):
        relations = table(four(reward=[0.0, 1.0, 2.0, 3.0]))
        sql = relations.sql

        def growing(query: str, params: Sequence[Any] = ()) -> pa.Table:
            found = sql(query, params)
            if " as kept" in query:
                sql("insert into rollouts by name select * replace (9 as step) from rollouts where step = 0")
            return found

        relations.sql = growing
        rows = read_rows(RunScope(relations, "run", "rollout"))
        assert measured(rows)[("reward", None)] == [0.0, 1.0, 2.0, 3.0]

    def test_of_a_run_without_rollouts_there_are_none(self):
        rows = read_rows(RunScope(table(four(reward=[0.0, 1.0, 2.0, 3.0])), "other", "rollout"))
        assert len(rows.at) == len(rows.steps) == 0 and rows.measures == []

    def test_a_range_of_steps_narrows_them(self):
        assert read(four(reward=[0.0, 1.0, 2.0, 3.0]), within=(1, 1)).at.tolist() == [0, 0]


class TestNumbers:
    def test_one_that_differs_is_a_measure_and_that_it_is_unknown_is_another(self):
        found = measured(read(four(n_sampled=[1, 2, None, 4], reward=[1.0, 1.0, 1.0, 1.0])))
        assert found == {
            ("n_sampled", "unknown"): [0.0, 0.0, 1.0, 0.0],
            ("n_sampled", None): [1.0, 2.0, None, 4.0],
        }

    def test_that_only_traced_rollouts_know_is_of_those_that_were_drawn(self):
        given = four(
            traced=[True, True, True, False],
            selected_by=["random"] * 3 + [None],
            n_turns=[1, 2, 3, None],
            n_sampled=[1, 2, 3, 4],
        )
        rows = read(given)
        assert {(m.name.column, m.drawn) for m in rows.measures if m.name.statistic != "share"} == {
            ("n_turns", True),
            ("n_sampled", False),
        }
        assert ("n_turns", "unknown") not in measured(rows)

    def test_one_that_a_dump_has_again_under_a_name_of_its_own_is_told_once(self):
        """Seen once: `component/format`, `rewards/format` and `format` in one entry."""
        once, again = [0.5, 1.0, 0.25, 0.0], {"sample/format": [0.5, 1.0, 0.25, 0.0]}
        found = measured(
            read(four(**{"component/format": once, **again, "sample/other": [1.0, 2.0, 3.0, 5.0]}))
        )
        assert [name for name, value in found if value is None] == ["component/format", "sample/other"]

    def test_what_a_step_without_advantages_does_not_have_is_no_loss(self):
        found = measured(read(four(advantage=[None, None, 1.0, -1.0])))
        assert list(found) == [("advantage", None)]

    def test_numbers_that_float32_cannot_hold_keep_all_their_digits(self):
        exact = [1.0, 1.0 + 2**-40, 2.0**60, 3.0]
        assert measured(read(four(reward=exact)))[("reward", None)] == exact

    def test_a_few_lags_part_the_rollouts(self):
        rows = read(four(staleness_max=[0, 2, 2, None]))
        codes, values = rows.parts["staleness_max"]
        assert (codes.tolist(), values) == ([0, 1, 1, -1], ["0", "2"])
        assert "staleness_max" not in read(four(staleness_max=[1, 1, 1, None])).parts


def many(n_values: int, each: int = 4) -> list[dict]:
    return [
        {"step": 0, "group": n, "prompt_key": "p", "source": f"s{n % n_values:02}"}
        for n in range(n_values * each)
    ]


class TestTexts:
    def test_one_of_few_values_parts_the_rollouts(self):
        rows = read(four(source=["a", "b", "a", None]))
        codes, values = rows.parts["source"]
        assert [values[code] if code >= 0 else None for code in codes] == ["a", "b", "a", None]

    @pytest.mark.parametrize(
        ("n", "parts"), [(1, False), (2, True), (MOST_PARTS, True), (MOST_PARTS + 1, False)]
    )
    def test_one_value_and_very_many_part_nothing(self, n, parts):
        assert ("source" in read(many(n)).parts) is parts

    def test_what_came_out_parts_nothing_but_how_it_stopped(self):
        rows = read(four(stop_reason=["a", "b"] * 2, reward_status=["ok", "error"] * 2))
        assert list(rows.parts) == ["stop_reason"]

    def test_of_two_values_one_is_a_share_and_of_three_each(self):
        assert list(measured(read(many(2)))) == [("source", "s01")]
        assert {value for _, value in measured(read(many(3)))} == {"s00", "s01", "s02"}
        assert measured(read(many(1))) == {}

    def test_a_value_that_few_rows_have_is_no_share(self):
        texts = ["a"] * 9 + ["b"] * (FEWEST_HITS - 1) + ["c"] * FEWEST_HITS
        given = [{"step": 0, "group": n, "prompt_key": "p", "source": text} for n, text in enumerate(texts)]
        assert {value for _, value in measured(read(given))} == {"a", "c"}

    def test_rows_that_do_not_know_it_are_in_no_share(self):
        given = [*many(3), {"step": 0, "group": 99, "prompt_key": "p"}]
        for values in measured(read(given)).values():
            assert values[-1] is None and sum(v == 1.0 for v in values) == 4


class TestTags:
    def test_the_share_of_rows_with_each_is_a_measure(self):
        flags = [["a", "b"], ["a"], [], None, ["a", "b"], ["b"], ["c"]]
        given = [{"step": 0, "group": n, "prompt_key": "p", "flags": each} for n, each in enumerate(flags)]
        found = measured(read(given))
        assert found == {
            ("flags", "a"): [1.0, 1.0, 0.0, None, 1.0, 0.0, 0.0],
            ("flags", "b"): [1.0, 0.0, 0.0, None, 1.0, 1.0, 0.0],
        }


class TestRolloutsThatAreShownAgain:
    """A trainer that takes four steps with a batch logs its rollouts four times: they are no further evidence."""

    @staticmethod
    def rows(seed: int, onset: int = 40) -> list[dict]:
        noise = np.random.default_rng(seed).normal(0, 1, (10, 6, 4, 4))

        def drawn(column: int, middle: float, spread: float):
            return lambda s, g, i: middle + spread * noise[s // 4, g, i, column]

        reward = drawn(0, 0.5, 0.2)
        return steps(
            40,
            prompt_key=lambda s, g, i: f"p{s // 4}-{g}",
            reward=lambda s, g, i: reward(s, g, i) - 0.4 * (s >= onset),
            n_sampled=drawn(1, 400, 40),
            mean_logprob=drawn(2, -0.3, 0.02),
            mismatch_k3=drawn(3, 0.01, 0.001),
        )

    def test_chance_is_not_surer_the_more_often_it_is_shown(self):
        """Seen once: an error or a warning in 7 of 20 such runs, in which nothing moved."""
        for seed in (5, 6, 7, 10, 14, 17, 18):
            report = diagnose(table(self.rows(seed)), "run")
            assert report.remarks == (
                "30 of 40 steps show rollouts of an earlier step again: each counts once.",
            )
            assert {each.severity for each in report.diagnoses} <= {"info"}

    def test_means_of_small_counts_that_are_the_same_show_no_rollouts_again(self):
        """Seen once: two steps of 30 whose rollouts had as many turns, tools and errors in all, but other texts."""
        counts = np.random.default_rng(3).poisson(3, (30, 4, 6, 4)) + np.arange(30)[:, None, None, None]
        counts[21] = counts[9]
        counts[21, :, 0, 0] += 1
        counts[21, :, 1, 0] -= 1

        def count(column: int):
            return lambda s, g, i: int(counts[s, column, g, i])

        named = ("n_turns", "n_tool_calls", "n_tool_errors", "n_environment")
        rows = steps(30, groups=6, size=4, **{name: count(n) for n, name in enumerate(named)})
        assert not any("again" in each for each in diagnose(table(rows), "run").remarks)

    def test_rows_are_read_again_only_where_means_agree(self, monkeypatch):
        """Seen once: every step was compared with itself, row by row, and a million rows took 42 s in place of 6."""
        seen = []
        monkeypatch.setattr(run_report, "steps_again", lambda panels: seen.append(panels) or {})
        drawn = np.random.default_rng(1).normal(size=(4, 30, 6, 4))
        named = ("reward", "n_sampled", "mean_logprob", "mismatch_k3")
        rows = steps(
            30, **{name: lambda s, g, i, n=n: float(drawn[n, s, g, i]) for n, name in enumerate(named)}
        )
        diagnose(table(rows), "run")
        monkeypatch.undo()
        without_rows = [replace(panel, measure=None) for panel in seen[0]]
        assert run_report.steps_again(without_rows) == {}

    def test_what_changes_in_them_is_said(self):
        report = diagnose(table(self.rows(3, onset=22)), "run")
        fell = next(each for each in report.diagnoses if each.severity == "error")
        assert (str(fell.series[0]), fell.step) == ("reward", 22)

    def test_a_setting_of_their_steps_stays_a_setting(self):
        rates = [1e-6 if s < 21 else 5e-7 for s in range(40)]
        report = diagnose(logged(self.rows(0), rates, "train/lr"), "run")
        [entry] = [each for each in report.diagnoses if str(each.series[0]) == "train/lr"]
        assert (entry.severity, entry.step, entry.before, entry.after) == ("info", 21, 1e-6, 5e-7)

    def test_prompts_that_come_again_with_other_rollouts_are_none(self):
        rng = np.random.default_rng(1)
        rows = [{**row, "reward": float(rng.normal())} for row in self.rows(1)]
        assert "again" in diagnose(table(rows), "run").remarks[0]
        rows = [
            {**row, "n_sampled": 400 + float(rng.normal()), "mean_logprob": -0.3 + float(rng.normal())}
            for row in rows
        ]
        assert diagnose(table(rows), "run").remarks == ()
