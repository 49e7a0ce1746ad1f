"""What overlays ask about a rollout's group and step, against sums made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.around import group_pushes, step_means
from rollout_traces.inspector.workspace import SplitView, Workspace
from rollout_traces.trace.conversion import read_transcript


@pytest.fixture
def view(home):
    return SplitView(Workspace(folder=home), "demo", "run-a")


class TestStep:
    def test_means_are_weighted_by_sampled_tokens_over_all_rows(self, view):
        ledger = view.store.ledger("run-a", "rollout", steps=(4, 4))
        weights = ledger.get("n_sampled").astype(float)
        found = step_means(view, 4)
        assert found.n_rows == 32
        for name, column in (("advantage", "advantage"), ("logprob", "mean_logprob")):
            values = ledger.get(column)
            expected = sum(v * w for v, w in zip(values, weights, strict=True)) / weights.sum()
            assert getattr(found, name) == pytest.approx(expected)


class TestGroup:
    def test_ups_and_downs_are_summed_over_the_loss_tokens_of_each_id(self, view):
        found = group_pushes(view, 4, 2)
        store = view.store
        group = next(g for g in store.groups("run-a", "rollout", 4).groups if g.group == 2)
        up, down = {}, {}
        for row in group.traces:
            tokens = read_transcript(store.record(row.id)).tokens
            pushes = tokens.tracks.get("advantages", np.full(len(tokens), row["advantage"]))
            for token, push, inside in zip(tokens.input_ids, pushes, tokens.loss_mask, strict=True):
                if inside:
                    side = up if push > 0 else down
                    side[int(token)] = side.get(int(token), 0.0) + abs(float(push))
        ids = found.ids
        assert set(ids) == set(up) | set(down)
        assert found.up == pytest.approx([up.get(i, 0.0) for i in ids], rel=1e-5)
        assert found.down == pytest.approx([down.get(i, 0.0) for i in ids], rel=1e-5)
        assert (found.n_kept, found.n_rollouts) == (len(group.traces), 8)

    def test_a_group_that_is_not_there_says_so(self, view):
        with pytest.raises(StoreError, match="no group"):
            group_pushes(view, 4, 99)
