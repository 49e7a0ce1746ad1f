"""Logged numbers of a run that was resumed: those of weights that were thrown away are left out."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import rollout_traces as rt
from rollout_traces.analysis import diagnose
from rollout_traces.analysis.curves import FEWEST_BESIDE, ended_numbers, logged_series
from rollout_traces.store import open_store
from tests.analysis.builders import steps, table
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer
from tests.stories.relations import TableRelations


@pytest.mark.usefixtures("trackio_dir")
def test_what_only_an_older_attempt_logged_past_where_the_newer_began_is_left_out():
    batch = batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=1, group_size=2))
    logger = rt.RolloutLogger("p", "run", worker="thread")
    for number, at in enumerate([[1, 2, 3, 4, 5, 6], [3, 4]]):
        if number:
            logger.begin_attempt()
        for step in at:
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


def logged_until(ends: dict[str, int], n_steps: int) -> TableRelations:
    """A plain run with numbers that are logged until a step of each."""
    rows = [(key, step, 0.1 * (step % 3)) for key, end in ends.items() for step in range(end)]
    keys, at, values = zip(*rows, strict=True)
    metrics = {
        "run": ["run"] * len(rows),
        "split": [""] * len(rows),
        "step": at,
        "key": keys,
        "value": values,
    }
    rollouts = table(steps(n_steps, groups=2, size=2)).sql("select * from rollouts")
    return TableRelations(rollouts, pa.table({**metrics, "attempt": ["1"] * len(rows)}))


class TestNumbersThatEnd:
    def test_a_loss_that_is_no_longer_logged_with_its_siblings_is_said(self):
        report = diagnose(logged_until({"train/loss": 14, "train/lr": 24}, 24), "run")
        [entry] = [each for each in report.diagnoses if each.step == 14]
        assert (entry.severity, entry.sentence) == (
            "info",
            "“train/loss” is no longer logged, since step 14.",
        )

    @pytest.mark.parametrize(
        "ends",
        [
            {"train/loss": 24 - FEWEST_BESIDE + 1, "train/lr": 24},
            {"train/n_parameters": 1, "train/lr": 24},
            {"eval/score": 14, "train/lr": 24},
        ],
    )
    def test_the_newest_steps_what_is_logged_once_and_other_keys_say_nothing(self, ends):
        assert not ended_numbers({key: np.arange(end) for key, end in ends.items()})
