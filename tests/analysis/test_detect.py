"""The changes of a setting, as they are, and as they stand in a report."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_traces.analysis import diagnose
from rollout_traces.analysis.detect import MOST_CHANGES, changes_of
from tests.analysis.builders import steps
from tests.analysis.test_movements import logged

RISE = [0.2, 0.4, 0.6, 0.8]


def found_in(values: list[float]) -> list[tuple[object, ...]] | None:
    found = changes_of(np.asarray(values), 0.01)
    if found is None:
        return None
    return [(each.template.kind, each.template.start, each.template.stop, each.end) for each in found]


class TestChanges:
    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ([1.0] * 6 + [0.5] * 4, [("level", 6, 10, None)]),
            ([*RISE, *[1.0] * 6], [("ramp", 1, 5, None)]),
            ([1.0] * 3 + [0.5] * 2 + [1.0] * 5, [("window", 3, 5, (4, 4))]),
            ([*RISE, *[1.0] * 6, *[0.2] * 4], [("ramp", 1, 5, None), ("level", 10, 14, None)]),
            (
                [*RISE, 1.0, 1.0, 0.5, 0.5, 1.0, 1.0, 0.1, 0.1],
                [("ramp", 1, 5, None), ("window", 6, 8, (7, 7)), ("level", 10, 12, None)],
            ),
            ([0.0] * 4 + [1.0] * 4 + [2.0] * 4, []),
            ([float(i // 3) for i in range(3 * MOST_CHANGES + 9)], []),
            ([0.0] * 4 + [1.0] * 4 + [3.0] * 4, [("level", 4, 12, None), ("level", 8, 12, None)]),
            ([1.0, 1.001] * 5, None),
            ([0.0, 0.0, 1.0, 0.0, 2.0, 0.0] * (MOST_CHANGES + 1), None),
        ],
    )
    def test_are_levels_ramps_and_windows(self, values, expected):
        assert found_in(values) == expected


class TestReport:
    def test_a_rate_that_is_lowered_for_some_steps_behind_its_warm_up_fell(self):
        """Seen once: it was told to have risen, since the step at which it fell."""
        values = [*RISE, *[1.0] * 5, *[0.5] * 5, *[1.0] * 26]
        entries = diagnose(logged(steps(40), values, "train/lr"), "run").diagnoses
        said = [(each.severity, each.shape, each.step, each.last) for each in entries]
        assert said == [("error", "window", 9, 13), ("info", "ramp", 1, None)]
        assert entries[0].after < entries[0].before

    def test_a_number_that_counts_epochs_is_no_news(self):
        """Seen once: an error for every epoch of a healthy run."""
        values = [float(i // 8) for i in range(40)]
        assert not diagnose(logged(steps(40), values, "train/epoch"), "run").diagnoses
