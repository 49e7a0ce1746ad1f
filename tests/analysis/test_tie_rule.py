"""One rule for ties: what SQL says of a group is what the ledger's rule says."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_traces.ledger.groups import TIED_SQL, GroupIndex, tied_groups

REWARDS = st.one_of(
    st.none(),
    st.sampled_from([0.0, 1.0, 1.0000005, 1.000002, -3e6, -3e6 - 2.0, -3e6 - 4.0, 2e-7, math.nan, math.inf]),
    st.floats(-10, 10),
)
ROWS = st.lists(st.tuples(REWARDS, st.sampled_from([None, "ok", "timeout", "error"])), min_size=1, max_size=6)


@settings(max_examples=300, deadline=None)
@given(ROWS)
def test_a_group_is_tied_by_the_same_rule(rows):
    import duckdb

    known = [
        reward
        for reward, status in rows
        if reward is not None and math.isfinite(reward) and status in (None, "ok")
    ]
    failed = [status not in (None, "ok") for _, status in rows]
    figures = (len(rows), len(known), sum(failed), min(known, default=None), max(known, default=None))
    said = duckdb.execute(
        f"select {TIED_SQL} from (select ?::bigint n, ?::bigint known, ?::bigint failed, ?::double low, ?::double high)",
        figures,
    ).fetchone()[0]
    rewards = np.array([math.nan if reward is None else reward for reward, _ in rows])
    lost = np.array(failed)
    one = GroupIndex.of(np.zeros(len(rows), np.int64))
    tied = tied_groups(one, np.where(lost | ~np.isfinite(rewards), math.nan, rewards), lost)
    assert tied.tolist() == [bool(said)]
