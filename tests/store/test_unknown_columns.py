"""Columns that are asked for and do not exist are refused by name."""

from __future__ import annotations

import pytest

from rollout_traces.errors import StoreError
from rollout_traces.store import Store


@pytest.mark.parametrize("rows", ["traces", "all"])
def test_one_that_nobody_knows_is_refused_with_the_nearest_name(store: Store, rows: str) -> None:
    with pytest.raises(StoreError, match=r"columns: no column 'rewrad'\. Did you mean reward\?"):
        store.query(rows=rows, columns=["reward", "rewrad"])
    with pytest.raises(StoreError, match="no column 'rewrad'"):
        store.rollouts(columns=["rewrad"])


def test_those_that_are_known_come_in_their_order(store: Store) -> None:
    row = store.query(columns=["reward", "advantage"]).rows[0]
    assert [name for name in row.as_dict() if name in ("advantage", "reward")] == ["reward", "advantage"]
