"""Series computed from sums that are at hand equal the queries that the pages show for them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rollout_traces.analysis.series import RunSeries
from tests.analysis.builders import steps, table


@pytest.mark.parametrize("sources", [["all"], ["math", "code", None]])
def test_reward_and_length_go_together_as_the_query_says(sources: list[str | None]):
    rng = random.Random(3)
    rows = steps(
        12,
        source=lambda step, group, sample: sources[group % len(sources)],
        reward=lambda step, group, sample: (
            None if step == 4 else rng.choice([None, 0.0, float("nan"), 0.5, 1.0])
        ),
        n_sampled=lambda step, group, sample: 7 if step == 5 else rng.randint(1, 90),
    )
    run = RunSeries(table(rows), "run", "rollout")
    asked = run.relations.sql(run.length_correlation_query, run.params)
    series = run.length_correlation
    assert series is not None and series.steps.tolist() == asked["step"].to_pylist()
    assert not {4, 5} & set(series.steps.tolist())
    np.testing.assert_allclose(series.values, asked["correlation"].to_pylist(), rtol=1e-9)
    assert series.rows.tolist() == [float(each) for each in asked["freedom"].to_pylist()]


def test_without_lengths_nothing_goes_together():
    rows = steps(12, reward=lambda step, group, sample: float(sample % 2))
    assert RunSeries(table(rows), "run", "rollout").length_correlation is None
