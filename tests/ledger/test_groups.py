"""Rows by group: whatever the numbers of the groups, they are indexed alike."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rollout_traces.ledger.build import positions_in_group
from rollout_traces.ledger.groups import GroupIndex

NUMBERS = st.lists(st.integers(-3, 12) | st.sampled_from((-(2**62), 2**62)), max_size=20)


@given(NUMBERS)
def test_groups_are_numbered_in_ascending_order(numbers):
    group = np.asarray(numbers, np.int64)
    index = GroupIndex.of(group)
    known, codes, sizes = np.unique(group, return_inverse=True, return_counts=True)
    assert len(index) == len(known)
    assert index.codes.tolist() == codes.tolist()
    assert index.sizes.tolist() == sizes.tolist()


@given(NUMBERS)
def test_a_position_is_the_number_of_earlier_rows_of_the_group(numbers):
    group = np.asarray(numbers, np.int64)
    assert positions_in_group(group).tolist() == [numbers[:row].count(g) for row, g in enumerate(numbers)]
