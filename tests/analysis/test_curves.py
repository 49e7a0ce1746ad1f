"""Logged numbers of a run that was resumed: those of weights that were thrown away are left out."""

from __future__ import annotations

import pytest

import rollout_traces as rt
from rollout_traces.analysis.curves import logged_series
from rollout_traces.store import open_store
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer


@pytest.mark.usefixtures("trackio_dir")
def test_what_only_an_older_attempt_logged_past_where_the_newer_began_is_left_out():
    batch = batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=1, group_size=2))
    logger = rt.RolloutLogger("p", "run", worker="thread")
    for number, steps in enumerate([[1, 2, 3, 4, 5, 6], [3, 4]]):
        if number:
            logger.begin_attempt()
        for step in steps:
            logger.log_rollouts({**batch, "rewards": [number, number]}, step=step)
            logger.log_scalars({"train/loss": float(number)}, step=step)
        if not number:
            logger.log_scalars({"eval/score": 1.0}, step=2)
            logger.log_scalars({"eval/score": 2.0}, step=6)
        assert logger.flush(180)
    assert logger.finish(180)
    store = open_store(project="p")
    series = {s.name.column: s for s in logged_series(store.table(), "run")}
    for name in ("train/loss", "rollout/reward/mean"):
        assert dict(zip(series[name].steps.tolist(), series[name].values.tolist(), strict=True)) == {
            1: 0.0,
            2: 0.0,
            3: 1.0,
            4: 1.0,
        }
    assert series["eval/score"].steps.tolist() == [2]
    query = "select step from metrics where key = 'train/loss' and superseded order by step"
    assert store.sql(query)["step"].to_pylist() == [5, 6]
    [run] = store.runs()
    assert run.resumed_at == (3,)
