"""What overlays ask about a rollout's group and step, against sums made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.around import around
from rollout_traces.inspector.payload import unpacked
from rollout_traces.inspector.workspace import Request, Workspace
from rollout_traces.trace.conversion import read_transcript


@pytest.fixture
def workspace(home, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(home))
    opened = Workspace()
    opened.refresh("demo")
    return opened


def asked(**values):
    return Request({"project": "demo", "run": "run-a", "split": "rollout", "step": 4, **values})


class TestStep:
    def test_means_are_weighted_by_sampled_tokens_over_all_rows(self, workspace):
        ledger = workspace.store("demo").ledger("run-a", "rollout", steps=(4, 4))
        weights = ledger.get("n_sampled").astype(float)
        found = around(workspace, asked(what="step"))
        assert found["n_rows"] == 32
        for name, column in (("advantage", "advantage"), ("logprob", "mean_logprob")):
            values = ledger.get(column)
            expected = sum(v * w for v, w in zip(values, weights, strict=True)) / weights.sum()
            assert found[name] == pytest.approx(expected)


class TestGroup:
    def test_ups_and_downs_are_summed_over_the_loss_tokens_of_each_id(self, workspace):
        found = around(workspace, asked(what="group", group=2))
        store = workspace.store("demo")
        group = next(g for g in store.groups("run-a", "rollout", 4).groups if g.group == 2)
        up, down = {}, {}
        for row in group.traces:
            tokens = read_transcript(store.record(row.id)).tokens
            pushes = tokens.tracks.get("advantages", np.full(len(tokens), row["advantage"]))
            for token, push, inside in zip(tokens.input_ids, pushes, tokens.loss_mask, strict=True):
                if inside:
                    side = up if push > 0 else down
                    side[int(token)] = side.get(int(token), 0.0) + abs(float(push))
        ids = unpacked(found["ids"]).tolist()
        assert set(ids) == set(up) | set(down)
        assert unpacked(found["up"]) == pytest.approx([up.get(i, 0.0) for i in ids], rel=1e-5)
        assert unpacked(found["down"]) == pytest.approx([down.get(i, 0.0) for i in ids], rel=1e-5)
        assert (found["n_kept"], found["n_rollouts"]) == (len(group.traces), 8)

    def test_a_rollout_without_a_group_says_so(self, workspace):
        with pytest.raises(StoreError, match="no group"):
            around(workspace, asked(what="group"))

    def test_what_is_not_known_is_named(self, workspace):
        with pytest.raises(StoreError, match="step, group"):
            around(workspace, asked(what="moon"))
