"""Ranges of a number that fill or empty: sudden ones are found with their part, what is learned is not."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_traces.analysis.ranges import filled
from rollout_traces.analysis.row_sample import RowSample

STEPS, ROWS, AT = 60, 60, 30


def sample(values: np.ndarray, engine: np.ndarray, source: np.ndarray) -> RowSample:
    at = np.repeat(np.arange(STEPS), ROWS)
    parts = {"source": (source, ["math", "code"]), "engine": (engine, ["a", "b", "c"])}
    return RowSample(np.arange(100, 100 + STEPS), at, np.arange(len(at)) // 4, parts, {"x": values})


@pytest.fixture
def drawn():
    rng = np.random.default_rng(5)
    n = STEPS * ROWS
    return rng, rng.normal(10, 1, n), rng.integers(0, 3, n), rng.integers(0, 2, n)


def late() -> np.ndarray:
    return np.repeat(np.arange(STEPS), ROWS) >= AT


class TestFilled:
    def test_a_fifth_that_goes_elsewhere_is_found_with_its_step(self, drawn):
        rng, values, engine, source = drawn
        values[late() & (rng.random(len(values)) < 0.2)] = 2.0
        found = filled(sample(values, engine, source), "x")
        assert found is not None and found.rises and found.place == AT and found.part == ()
        assert found.range.exact and found.range.low == 2.0

    def test_it_is_told_in_the_part_that_has_it(self, drawn):
        rng, values, engine, source = drawn
        rows = late() & (engine == 1) & (source == 0)
        values[rows] = rng.normal(20, 0.5, int(rows.sum()))
        found = filled(sample(values, engine, source), "x")
        assert found is not None and found.part == (("source", "math"), ("engine", "b"))
        assert found.place == AT and found.range.low > 11

    def test_a_value_that_nobody_takes_any_more_is_found(self, drawn):
        rng, _, engine, source = drawn
        values = (rng.random(STEPS * ROWS) < np.where(late(), 0.02, 0.5)).astype(float)
        found = filled(sample(values, engine, source), "x")
        assert found is not None and not found.rises and found.place == AT
        assert found.range.low == 1.0

    def test_nothing_is_found_where_nothing_changes(self, drawn):
        _, values, engine, source = drawn
        assert filled(sample(values, engine, source), "x") is None

    def test_what_is_learned_over_twenty_steps_is_not_sudden(self, drawn):
        rng, _, engine, source = drawn
        step = np.repeat(np.arange(STEPS), ROWS)
        share = 0.05 + 0.9 / (1 + np.exp(-(step - AT) / 8))
        values = (rng.random(STEPS * ROWS) < share).astype(float)
        assert filled(sample(values, engine, source), "x") is None

    def test_levels_that_wander_from_step_to_step_are_not_sudden(self, drawn):
        rng, values, engine, source = drawn
        walk = np.cumsum(rng.normal(0, 0.3, STEPS))
        assert filled(sample(values + np.repeat(walk, ROWS), engine, source), "x") is None

    def test_few_or_unknown_values_are_no_error(self, drawn):
        _, values, engine, source = drawn
        values[:] = np.nan
        assert filled(sample(values, engine, source), "x") is None
        values[:100] = 1.0
        assert filled(sample(values, engine, source), "x") is None
        values[:] = 3.0
        assert filled(sample(values, engine, source), "x") is None

    def test_groups_that_agree_count_once(self, drawn):
        rng = drawn[0]
        step = np.repeat(np.arange(STEPS), ROWS)
        n_groups = STEPS * ROWS // 20
        lucky = rng.random(n_groups) < np.where(np.arange(n_groups) * 20 // ROWS < AT, 0.04, 0.12)
        values = lucky[np.arange(STEPS * ROWS) // 20].astype(float)
        groups = RowSample(np.arange(STEPS), step, np.arange(len(step)) // 20, {}, {"x": values})
        assert filled(groups, "x") is None
