"""Rows of one episode are one attempt at its prompt: groups and pass rates count them once."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_traces.capture.host_copy import capture
from rollout_traces.flags.inputs import Population
from rollout_traces.ledger.build import build_ledger
from rollout_traces.ledger.groups import episode_numbers, first_rows, with_episode_lengths
from rollout_traces.metrics import rollout_metrics
from rollout_traces.model.batch import RolloutBatch


@pytest.fixture
def step():
    """One prompt, two episodes: a solved one of three branches, and a failed one of one; then a lone one of two."""
    batch = RolloutBatch(
        input_ids=np.ones((6, 4), int),
        attention_mask=np.ones((6, 4), bool),
        loss_mask=np.tile([0, 0, 1, 1], (6, 1)),
        rewards=[1.0, 1.0, 1.0, 0.0, 1.0, 1.0],
        successes=[True, True, True, False, True, True],
        group_ids=[0, 0, 0, 0, 1, 1],
        episode_ids=["a", "a", "a", "b", "c", "c"],
        sample_ids=["0", "1", "2", "3", "4", "5"],
        parents=["1", None, "1", None, None, "4"],
    )
    packed = capture([batch], step=1, split="rollout")
    return packed, build_ledger(packed)


def test_the_row_that_left_no_other_stands_for_its_episode(step):
    _, ledger = step
    assert episode_numbers(ledger).tolist() == [0, 0, 0, 3, 4, 4]
    assert first_rows(ledger).tolist() == [False, True, False, True, True, False]
    assert with_episode_lengths(ledger).get("n_sampled").tolist() == [6, 6, 6, 2, 4, 4]


def test_pass_rates_and_groups_count_an_episode_once(step):
    packed, ledger = step
    metrics = rollout_metrics(packed, ledger, keys="full")
    assert metrics["rollout/success/mean"] == pytest.approx(2 / 3)
    assert metrics["rollout/group/pass@1"] == pytest.approx(0.75)
    assert metrics["rollout/group/tie_share"] == 0.0
    assert metrics["rollout/count/samples"] == 6


def test_branches_alone_are_no_group_of_two(step):
    packed, ledger = step
    assert [rows.tolist() for rows in Population(packed, ledger).groups] == [[0, 1, 2, 3]]


def test_rows_without_episodes_count_each(step):
    packed, ledger = step
    columns = {name: column for name, column in ledger.columns.items() if name not in ("episode", "parent")}
    plain = type(ledger)(columns)
    assert first_rows(plain).all()
    assert rollout_metrics(packed, plain, keys="full")["rollout/success/mean"] == pytest.approx(5 / 6)
