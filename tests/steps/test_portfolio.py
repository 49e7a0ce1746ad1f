"""The default policy spends the cap as its docstring says."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from rollout_traces.ledger.columns import NULL_INT
from rollout_traces.steps.selection import portfolio
from tests.steps.selection_builders import make_ledger, make_request


def rows_by_kind(selected):
    kinds = {}
    for item in selected:
        kinds.setdefault(item.selected_by.split(":")[0], []).append(item.row)
    return kinds


class TestShares:
    def test_of_thirty_two_places_a_quarter_each_goes_to_chance_to_one_group_and_to_pairs(self):
        kinds = rows_by_kind(portfolio(make_request(make_ledger())))
        chance = len(kinds["random"]) + len(kinds.get("fill", []))
        assert 8 <= chance <= 12
        assert 6 <= len(kinds["group"]) <= 8
        assert 6 <= len(kinds["best"]) + len(kinds["worst"]) <= 8
        assert len(kinds["alarm"]) >= 4
        assert kinds["dead group"]

    def test_spends_the_whole_cap_on_different_rows(self):
        selected = portfolio(make_request(make_ledger()))
        assert len({item.row for item in selected}) == len(selected) == 32

    @pytest.mark.parametrize("limit", range(1, 40))
    def test_spends_small_caps_whole(self, limit):
        assert len(portfolio(make_request(make_ledger(), limit=limit))) == limit

    @pytest.mark.parametrize("limit", [1, 2, 5, 32])
    def test_takes_every_row_of_a_batch_no_larger_than_the_cap(self, limit):
        ledger = make_ledger(n_groups=1, group_size=limit)
        assert [item.row for item in portfolio(make_request(ledger))] == list(range(limit))

    def test_places_nobody_uses_go_to_the_random_part(self):
        ledger = make_ledger(n_groups=64, group_size=1, n_sampled=np.full(64, NULL_INT))
        selected = portfolio(make_request(ledger, limit=16))
        assert {item.selected_by for item in selected} == {"random"}
        assert {item.probability for item in selected} == {16 / 64}

    def test_rewards_that_are_all_unknown_leave_only_chance_and_alarms(self):
        ledger = make_ledger(reward=np.full(512, np.nan))
        assert set(rows_by_kind(portfolio(make_request(ledger)))) <= {"random", "fill", "alarm"}

    @pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
    def test_a_reward_that_is_no_finite_number_spoils_no_choice(self, odd):
        ledger = make_ledger()
        rewards = ledger.get("reward").copy()
        rewards[9], rewards[16:24] = odd, [odd, 1, 0, 1, 0, 1, 0, 1]
        rewards[24:32] = [odd] * 7 + [1]
        rewards[32:40] = np.inf
        chosen = portfolio(make_request(make_ledger(reward=rewards)))
        assert len(chosen) == 32
        assert {item.row for item in chosen if item.selected_by in ("best", "worst")}.isdisjoint(
            np.flatnonzero(~np.isfinite(rewards)).tolist()
        )


class TestRandomPart:
    def test_is_a_fair_sample(self):
        ledger = make_ledger(n_groups=16, group_size=4)
        drawn: Counter[int] = Counter()
        expected = 0.0
        for step in range(2000):
            selected = portfolio(make_request(ledger, limit=16, step=step))
            random = [item for item in selected if item.selected_by == "random"]
            drawn.update(item.row for item in random)
            expected += random[0].probability
        counts = np.array([drawn[row] for row in range(64)])
        spread = np.sqrt(expected)
        assert np.abs(counts - expected).max() < 5 * spread

    def test_has_at_least_a_quarter_of_the_cap(self):
        for step in range(50):
            selected = portfolio(make_request(make_ledger(), step=step))
            assert sum(item.selected_by == "random" for item in selected) >= 8


class TestPurposefulPart:
    def test_the_group_is_shown_whole_when_it_fits(self):
        ledger = make_ledger()
        selected = portfolio(make_request(ledger))
        group = {ledger.get("group")[item.row] for item in selected if item.selected_by == "group"}
        assert len(group) == 1
        rows = np.flatnonzero(ledger.get("group") == group.pop())
        assert set(rows.tolist()) <= {item.row for item in selected}

    def test_a_larger_group_shows_its_best_and_worst_halves(self):
        rewards = np.arange(64, dtype=float)
        ledger = make_ledger(n_groups=1, group_size=64, reward=rewards)
        selected = portfolio(make_request(ledger, limit=16))
        halves = {item.row for item in selected if item.selected_by.startswith("group:")}
        assert halves <= {63, 62, 0, 1}

    def test_the_best_are_those_of_the_highest_reward(self):
        ledger = make_ledger(n_groups=8, group_size=8, reward=np.arange(64, dtype=float) % 8)
        for step in range(20):
            for item in portfolio(make_request(ledger, limit=24, step=step)):
                if item.selected_by == "best":
                    assert item.row % 8 == 7
                if item.selected_by == "worst":
                    assert item.row % 8 == 0
        one_group = make_ledger(n_groups=1, group_size=64, reward=np.arange(64, dtype=float))
        reasons = {}
        for step in range(20):
            chosen = portfolio(make_request(one_group, limit=16, step=step))
            reasons |= {
                item.row: item.selected_by for item in chosen if item.selected_by.startswith("group:")
            }
        assert {row for row, why in reasons.items() if why == "group:best"} == {62, 63}
        assert {row for row, why in reasons.items() if why == "group:worst"} == {0, 1}

    def test_pairs_prefer_prompts_traced_before(self):
        ledger = make_ledger(n_groups=40)
        traced = {f"prompt-{g}": 3 for g in (11, 12, 13, 14, 15, 17)}
        selected = portfolio(make_request(ledger, traced_prompts=traced))
        pairs = {
            int(ledger.get("group")[item.row]) for item in selected if item.selected_by in ("best", "worst")
        }
        assert len(pairs & {11, 12, 13, 14, 15, 17}) >= len(pairs) - 2

    def test_the_rarest_flag_is_an_alarm(self):
        flags = np.empty(512, object)
        for row in range(512):
            flags[row] = ("truncated",) if row % 2 else ()
        flags[300] = ("nonfinite", "truncated")
        selected = {item.row: item.selected_by for item in portfolio(make_request(make_ledger(flags=flags)))}
        assert selected[300] in ("alarm:nonfinite", "random")

    def test_discarded_rows_are_shown(self):
        reasons = np.full(512, None, object)
        reasons[100:110] = "max_async"
        kinds = Counter(
            item.selected_by.split(":")[0]
            for item in portfolio(make_request(make_ledger(discard_reason=reasons)))
        )
        assert kinds["discarded"] >= 1


class TestDeterminism:
    def test_equal_requests_choose_equally(self):
        assert portfolio(make_request(make_ledger())) == portfolio(make_request(make_ledger()))

    def test_another_step_draws_other_rows(self):
        assert portfolio(make_request(make_ledger(), step=1)) != portfolio(
            make_request(make_ledger(), step=2)
        )
