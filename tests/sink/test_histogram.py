"""Values become a histogram of few bins, or none where no bins part them."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_traces.sink.trackio_sink import BINS, binned


def test_few_values_have_as_many_bins_and_many_have_the_most():
    assert [len(binned(np.arange(n))[0]) for n in (1, 3, BINS, 10 * BINS)] == [1, 3, BINS, BINS]


def test_a_value_on_an_edge_falls_into_the_bin_that_begins_there():
    counts, edges = binned(np.repeat([5.0, 8.0, 11.0], 7)[:20])
    at = int(np.flatnonzero(edges == 8.0)[0])
    assert counts[at] == 7
    assert counts.sum() == 20
    assert counts[[0, -1]].tolist() == [7, 6]


def test_equal_values_stand_in_the_middle():
    counts, edges = binned(np.full(3, 2.0))
    assert (counts.tolist(), edges[0], edges[-1]) == ([0, 3, 0], 1.5, 2.5)


@pytest.mark.parametrize("values", [[], [np.nan], [1.0, np.inf], [-1.7e308, 1.7e308], [1e30, 1e30]])
def test_what_no_bins_part_has_no_histogram(values):
    assert binned(np.asarray(values, np.float64)) is None
