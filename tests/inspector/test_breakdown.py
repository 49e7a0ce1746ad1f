"""A measure taken apart by a column."""

from __future__ import annotations

import numpy as np

from rollout_traces.inspector.pages.measures import MOST_VALUES, series_by
from rollout_traces.ledger.columns import NULL_INT, Ledger


def text(*values):
    column = np.empty(len(values), object)
    column[:] = values
    return column


def mean(ledger):
    return float(np.nanmean(ledger.get("reward")))


class TestSeriesBy:
    def test_each_value_has_its_own_line_the_most_frequent_first(self):
        ledger = Ledger(
            {
                "step": np.asarray([1, 1, 1, 2, 2]),
                "engine": text("a", "b", "b", "b", None),
                "reward": np.asarray([0.5, 0.0, 1.0, 0.25, 9.0]),
            }
        )
        assert series_by(ledger, "engine", [1, 2], mean) == [("b", [0.5, 0.25]), ("a", [0.5, None])]

    def test_unknown_values_have_no_line(self):
        ledger = Ledger(
            {"step": np.asarray([1, 1]), "version_max": np.asarray([NULL_INT, 3]), "reward": np.ones(2)}
        )
        assert series_by(ledger, "version_max", [1], mean) == [(3, [1.0])]

    def test_rare_values_are_left_out(self):
        names = [f"s{i}" for i in range(MOST_VALUES + 3)]
        ledger = Ledger(
            {"step": np.ones(len(names), int), "source": text(*names), "reward": np.ones(len(names))}
        )
        assert len(series_by(ledger, "source", [1], mean)) == MOST_VALUES
