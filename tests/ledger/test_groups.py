"""Rows by group, one rule of ties whoever asks, and episodes: rows of one are one attempt at its prompt."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_traces.capture.host_copy import capture
from rollout_traces.flags.detect import Population
from rollout_traces.ledger.build import build_ledger
from rollout_traces.ledger.columns import NULL_INT
from rollout_traces.ledger.groups import (
    GroupIndex,
    episode_numbers,
    first_rows,
    has_episodes,
    known_rewards,
    positions_in_group,
    tie_decided,
    tied_groups,
    with_episode_lengths,
)
from rollout_traces.metrics import rollout_metrics
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.steps.selection import SelectionRequest, portfolio
from tests.metrics.builders import make_ledger, of_ledger

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


class TestMeasuresOfGroups:
    """Rows 0, 2 and 3 are group 4; rows 1 and 5 are group 7; row 4 alone is group 9, and nothing is known of it."""

    groups = GroupIndex.of(np.asarray([4, 7, 4, 4, 9, 7]))
    values = np.asarray([1.0, 5.0, 4.0, np.nan, np.inf, 5.0])

    def test_rows_of_each(self):
        assert [rows.tolist() for rows in self.groups.rows()] == [[0, 2, 3], [1, 5], [4]]

    def test_only_finite_values_count(self):
        assert self.groups.sum(self.values).tolist() == [5.0, 10.0, 0.0]
        assert self.groups.mean(self.values)[:2].tolist() == [2.5, 5.0] and np.isnan(
            self.groups.mean(self.values)[2]
        )
        assert self.groups.std(self.values)[:2].tolist() == [1.5, 0.0]
        assert self.groups.min(self.values).tolist() == [1.0, 5.0, np.inf]
        assert self.groups.max(self.values).tolist() == [4.0, 5.0, -np.inf]

    def test_whole_numbers_are_summed_as_they_are(self):
        assert self.groups.sum(np.arange(6)).tolist() == [5, 6, 4]

    def test_masks(self):
        where = np.asarray([True, True, False, True, False, True])
        assert self.groups.count(where).tolist() == [2, 2, 0]
        assert self.groups.all(where).tolist() == [False, True, False]


CASES = [
    ("equal", [1.0, 1.0], ["ok", "ok"], True),
    ("nearly equal", [1.0, 1.0 + 1e-7], ["ok", "ok"], True),
    ("nearly equal and large", [-1e6, -1e6 + 0.5], ["ok", "ok"], True),
    ("different", [0.0, 1.0], ["ok", "ok"], False),
    ("unknown", [1.0, None], ["ok", "ok"], False),
    ("all failed", [0.0, 1.0], ["error", "timeout"], True),
    ("equal but for a failed one", [1.0, 1.0, 0.0], ["ok", "ok", "error"], True),
    ("one known among failed ones", [1.0, 0.0], ["ok", "error"], False),
    ("alone", [1.0], ["ok"], False),
]


@pytest.mark.parametrize(
    ("rewards", "statuses", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
class TestTies:
    def test_the_rule(self, rewards, statuses, expected):
        failed = np.asarray([status != "ok" for status in statuses])
        ledger = make_ledger(reward=rewards, reward_status=statuses)
        groups = GroupIndex.of(np.zeros(len(rewards), int))
        assert tied_groups(groups, known_rewards(ledger), failed).tolist() == [expected]

    def test_metrics_and_selection_follow_it(self, rewards, statuses, expected):
        ledger = make_ledger(reward=rewards, reward_status=statuses)
        assert of_ledger(ledger).get("group/tie_share", 0.0) == float(expected)
        several = make_ledger(
            reward=[*rewards, *[0.0, 1.0] * 16],
            reward_status=[*statuses, *["ok"] * 32],
            group=[0] * len(rewards) + list(np.repeat(np.arange(1, 17), 2)),
        )
        chosen = portfolio(SelectionRequest(several, limit=32, seed=1))
        dead = [item.row for item in chosen if item.selected_by == "tied group"]
        assert not dead or expected


def test_a_group_of_which_nothing_is_known_is_not_decided():
    groups = GroupIndex.of(np.asarray([0, 0, 1, 1]))
    rewards = np.asarray([1.0, np.nan, 0.0, 1.0])
    assert tie_decided(groups, rewards, np.zeros(4, bool)).tolist() == [False, True]


def test_a_tie_with_failed_rewards_says_how_many_there_were():
    from rollout_traces.flags.group import _tie_text

    rewards = np.asarray([1.0, np.nan, 1.0, np.nan])
    assert _tie_text(np.arange(4), rewards, "other").startswith(
        "The 2 of 4 rollouts of the group whose reward did"
    )


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


def test_an_episode_is_as_long_as_all_of_its_rows_and_unknown_where_one_of_them_is(step):
    _, ledger = step
    lengths = np.asarray([1, 2, 4, 8, 16, NULL_INT])
    totals = with_episode_lengths(ledger.with_columns(n_sampled=lengths)).get("n_sampled")
    assert totals.tolist() == [7, 7, 7, 8, NULL_INT, NULL_INT]
    plain = type(ledger)({name: column for name, column in ledger.columns.items() if name != "n_sampled"})
    assert with_episode_lengths(plain) is plain


def test_of_rows_that_say_no_parent_the_first_stands_for_its_episode(step):
    _, ledger = step
    plain = type(ledger)({name: column for name, column in ledger.columns.items() if name != "parent"})
    assert first_rows(plain).tolist() == [True, False, False, True, True, False]


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
    assert first_rows(plain).all() and has_episodes(ledger) and not has_episodes(plain)
    assert not has_episodes(plain.with_columns(episode=np.asarray(list("abcdef"), object)))
    assert rollout_metrics(packed, plain, keys="full")["rollout/success/mean"] == pytest.approx(5 / 6)
