"""The lower end of a share's interval covers the truth, also where a group's rows agree with each other."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rollout_traces.alarms.counts import Counts, Grouped, student_t, total, wilson_lower


def drawn(rng, n_groups, size, share, agree):
    """Hits of rows whose groups agree by a beta distribution; `agree` near 1: all of a group alike."""
    of_group = rng.beta(share * (1 - agree) / agree, (1 - share) * (1 - agree) / agree, n_groups)
    return (rng.random((n_groups, size)) < of_group[:, None]).ravel(), np.repeat(np.arange(n_groups), size)


@pytest.mark.parametrize("agree", [0.02, 0.3, 0.7])
def test_is_above_the_truth_in_few_steps(agree):
    rng = np.random.default_rng(0)
    above = 0
    for _ in range(1000):
        hits, groups = drawn(rng, 16, 8, 0.3, agree)
        above += Grouped(groups).count(hits).lower() > 0.3
    assert above / 1000 < 0.04


def test_rows_that_agree_count_for_less():
    groups = np.repeat(np.arange(16), 8)
    alike, spread = groups < 5, np.arange(128) % 16 < 5
    assert alike.sum() == spread.sum() == 40
    assert Grouped(groups).count(alike).lower() < Grouped(groups).count(spread).lower() < 40 / 128


def test_groups_that_are_all_equal_are_not_taken_for_certainty():
    groups = np.repeat(np.arange(5), 4)
    everywhere = np.tile([True, False, False, False], 5)
    assert Grouped(groups).count(everywhere).lower() == pytest.approx(wilson_lower(0.25, 20))


def test_counts_of_steps_add_up_to_those_of_all_rows():
    rng = np.random.default_rng(1)
    parts = []
    for step in range(4):
        hits, groups = drawn(rng, 6, 5, 0.4, 0.3)
        parts.append((hits, groups + 100 * step, rng.integers(0, 4, 30)))
    hits, groups, units = (np.concatenate(column) for column in zip(*parts, strict=True))
    at_once = Grouped(groups, units).count(hits * units)
    assert total([Grouped(g, u).count(h * u) for h, g, u in parts]) == at_once
    assert at_once.share == pytest.approx((hits * units).sum() / units.sum())


def test_units_of_a_row_may_be_none():
    counts = Grouped(np.array([0, 0, 1]), np.array([0, 0, 5])).count(np.array([0, 0, 2]))
    assert (counts.n, counts.n_groups, counts.share) == (5, 1, 0.4)
    assert counts.lower() == 0.0


def test_nothing_has_no_share():
    assert Counts().share == Counts().lower() == 0.0


def test_quantiles_are_students():
    for df in (4, 5, 10, 30, 1000):
        assert student_t(df) == pytest.approx(stats.t.ppf(0.975, df), rel=0.02)


@pytest.mark.parametrize("numbers", [(0, 1, 2), (7, 8, 12), (-(2**62), 5, 2**62)])
def test_the_numbers_of_groups_do_not_matter(numbers):
    members = np.array([0, 0, 1, 2, 2, 2])
    hits = np.array([1, 0, 1, 0, 1, 1], bool)
    grouped = Grouped(np.asarray(numbers)[members])
    assert grouped.nothing == Counts(6.0, 3, n_n=14.0)
    assert grouped.count(hits) == Counts(6.0, 3, 4.0, 6.0, 9.0, 14.0)
