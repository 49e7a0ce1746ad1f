"""One rule of ties, whoever asks."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_traces.ledger.groups import GroupIndex, known_rewards, tie_decided, tied_groups
from rollout_traces.steps.selection import SelectionRequest, portfolio
from tests.metrics.builders import make_ledger, of_ledger

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
        dead = [item.row for item in chosen if item.selected_by == "dead group"]
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
