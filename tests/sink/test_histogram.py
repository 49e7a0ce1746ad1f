"""A histogram's bins are numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_traces.sink.histogram import BINS, binned

numbers = st.floats(-1e300, 1e300, allow_subnormal=False)


@given(st.lists(st.one_of(numbers, st.integers(-20, 20).map(float)), min_size=1, max_size=50))
def test_counts_and_edges_are_those_of_numpy(values):
    found = binned(np.asarray(values))
    try:
        counts, edges = np.histogram(values, bins=min(len(values), BINS))
    except (ValueError, IndexError):  # numpy refuses bins that have no width, numpy 1 by an index
        assert found is None
        return
    if found is None:
        assert not (np.diff(edges) > 0).all()
        return
    assert found[0].tolist() == counts.tolist()
    assert found[1].tolist() == edges.tolist()


@given(st.integers(1, 200), st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_values_a_rounding_apart_fall_into_numpys_bins(n, apart, seed):
    values = 1.0 + np.spacing(1.0) * np.random.default_rng(seed).integers(0, apart * BINS, n)
    found = binned(values)
    if found is not None:
        counts, edges = np.histogram(values, bins=min(len(values), BINS))
        assert (found[0].tolist(), found[1].tolist()) == (counts.tolist(), edges.tolist())


@pytest.mark.parametrize("values", [[], [np.nan], [1.0, np.inf], [-1.7e308, 1.7e308], [1e30, 1e30]])
def test_what_no_bins_part_has_no_histogram(values):
    assert binned(np.asarray(values, np.float64)) is None
