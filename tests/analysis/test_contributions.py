"""The parts of a reward's change add up, and a part without rows has no mean."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_traces.analysis import Selection, explain
from rollout_traces.analysis.contributions import by_component, kitagawa
from rollout_traces.analysis.relations import describe
from rollout_traces.analysis.two_sides import A, B, read_rows
from tests.analysis.builders import steps, table


class TestKitagawa:
    def test_against_the_overall_mean(self):
        n_a, n_b = np.asarray([80.0, 20.0]), np.asarray([50.0, 50.0])
        means = np.asarray([0.2, 0.9])
        found = kitagawa("source", ["math", "code"], n_a, n_a * means, n_b, n_b * means)
        assert found.change == pytest.approx(0.34 - 0.55)
        parts = {part.value: part for part in found.mixes}
        assert parts["math"].mix < 0 and parts["code"].mix < 0
        assert found.within == pytest.approx(0)
        assert found.mix == pytest.approx(found.change)

    @given(
        st.lists(
            st.tuples(st.integers(0, 9), st.integers(-9, 9), st.integers(0, 9), st.integers(-9, 9)),
            min_size=1,
            max_size=5,
        )
    )
    def test_the_parts_add_up_exactly(self, cells):
        n_a, total_a, n_b, total_b = (np.asarray(column, float) for column in zip(*cells, strict=True))
        if not n_a.sum() or not n_b.sum():
            return
        total_a, total_b = np.where(n_a > 0, total_a, 0), np.where(n_b > 0, total_b, 0)
        there = n_a + n_b > 0
        names = [str(i) for i in np.flatnonzero(there)]
        found = kitagawa("source", names, n_a[there], total_a[there], n_b[there], total_b[there])
        assert found.mix + found.within == pytest.approx(found.change, abs=1e-9)

    def test_a_part_that_one_side_lacks_has_no_mean_there(self):
        found = kitagawa(
            "source", ["old", "new"], np.asarray([5.0, 5.0]), np.asarray([2.0, 4.0]), np.asarray([10.0, 0.0]), np.asarray([4.0, 0.0])
        )  # fmt: skip
        new = next(part for part in found.mixes if part.value == "new")
        assert (new.mean_a, new.mean_b, new.within) == (0.8, None, 0.0)
        assert found.mix + found.within == pytest.approx(found.change)


class TestComponents:
    def test_they_add_up_with_recovered_weights(self):
        relations = table(self.summed())
        a, b = Selection("run", "rollout", (1, 1)), Selection("run", "rollout", (0, 0))
        found = by_component(read_rows(relations, describe(relations), [(A, a), (B, b)]))
        assert {c.component: c.weight for c in found.components} == {
            "a": pytest.approx(2),
            "b": pytest.approx(-0.5),
        }
        assert sum(c.part for c in found.components) == pytest.approx(found.change)

    @staticmethod
    def summed(n_steps: int = 2) -> list[dict]:
        rng = np.random.default_rng(0)
        rows = steps(n_steps, groups=10)
        for row in rows:
            row["component/a"], row["component/b"] = float(rng.random()) + row["step"], float(rng.random())
            row["reward"] = 2 * row["component/a"] - 0.5 * row["component/b"]
        return rows

    def test_one_that_no_compared_rollout_knows_takes_no_table_away(self):
        """Seen once: the table was gone as soon as another run of the project had a component of another name."""
        sides = Selection("run", "rollout", (1, 1)), Selection("run", "rollout", (0, 0))
        alone = explain(table(self.summed()), *sides)
        others = [
            {"run": "other", "step": 0, "group": i, "reward": 1.0, "component/other": 1.0} for i in range(4)
        ]
        beside = explain(table([*self.summed(), *others]), *sides)
        assert [each.column for each in beside.decompositions] == ["component"]
        assert beside.decompositions[0] == alone.decompositions[0]

    def test_weights_are_those_of_the_rollouts_compared(self):
        rows = self.summed(30)
        for row in rows:
            if row["step"] < 19:
                row["reward"] = row["component/a"]
        found = explain(table(rows), Selection("run", "rollout", (29, 29)))
        assert {each.weight for each in found.decompositions[0].components} == {2.0, -0.5}

    def test_where_some_lack_one_the_table_says_of_which_rollouts_it_is(self):
        """Seen once: “Mean reward −0.448, by component” over “Mean reward −0.377, by source”, and not why."""
        rows = self.summed()
        for at, row in enumerate(rows):
            row["source"] = "ab"[at % 2]
            if at % 16 == 3:
                row["component/b"] = None
        relations = table(rows)
        found = explain(relations, Selection("run", "rollout", (1, 1)), Selection("run", "rollout", (0, 0)))
        by_component, by_source = found.decompositions
        assert (by_component.rows, by_source.rows) == ((38, 37), (40, 40))
        assert found.remarks[-1] == (
            "The mean reward by component is of 38 of A's rollouts and 37 of B's: those that know every component."
        )
        levels = {each["side"]: each for each in relations.sql(by_component.query).to_pylist()}
        assert (levels[A]["rollouts"], levels[B]["rollouts"]) == by_component.rows
        assert levels[A]["reward"] - levels[B]["reward"] == pytest.approx(by_component.change)

    def test_rewards_that_no_weights_give_back_make_no_table(self):
        rng = np.random.default_rng(0)
        rows = steps(2, groups=10, reward=lambda *_: float(rng.random()))
        for row in rows:
            row["component/a"] = float(rng.random())
        found = explain(table(rows), Selection("run", "rollout", (1, 1)), Selection("run", "rollout", (0, 0)))
        assert not [d for d in found.decompositions if d.column == "component"]
