"""The tail of Student's t is scipy's, without scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import stdtrit
from scipy.stats import norm
from scipy.stats import t as student

from rollout_traces.analysis.student import log_tail, quartile

SIZES = np.asarray([0.0, 0.1, 0.7, 1.0, 2.0, 5.0, 9.0, 30.0])


@pytest.mark.parametrize("freedom", [1, 3, 4, 6, 10, 20, 60, 240, 977.5])
def test_a_tail_is_that_of_scipy(freedom):
    assert log_tail(SIZES, freedom) == pytest.approx(student.logsf(SIZES, freedom), rel=1e-8)
    assert quartile(freedom) == pytest.approx(stdtrit(freedom, 0.75), rel=1e-9)


def test_without_bounds_it_is_that_of_a_normal_distribution():
    assert log_tail(SIZES, np.inf) == pytest.approx(norm.logsf(SIZES), rel=1e-3)


def test_sizes_and_degrees_of_freedom_go_together():
    both = log_tail(np.asarray([[2.0], [3.0]]), np.asarray([4.0, 60.0]))
    assert both == pytest.approx(student.logsf([[2.0], [3.0]], [4.0, 60.0]))
