"""Policies by name and by hand; the default policy spends the cap as its docstring says."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from rollout_traces.errors import ConfigError
from rollout_traces.ledger.columns import NULL_INT, Ledger
from rollout_traces.steps.selection import (
    POLICIES,
    Selected,
    choose,
    default_policy,
    fixed_prompts,
    policy_named,
    portfolio,
)
from tests.steps.selection_builders import make_ledger, make_request


class TestEveryPolicy:
    @pytest.mark.parametrize("name", [name for name in POLICIES if name != "all"])
    def test_keeps_to_the_cap(self, name):
        selected = choose(policy_named(name), make_request(make_ledger(), limit=9))
        assert len({item.row for item in selected}) == len(selected) == 9

    @pytest.mark.parametrize("name", POLICIES)
    @pytest.mark.parametrize("limit", [0, -1])
    def test_chooses_nothing_when_no_traces_are_wanted(self, name, limit):
        assert choose(policy_named(name), make_request(make_ledger(), limit=limit)) == []

    @pytest.mark.parametrize("name", POLICIES)
    def test_chooses_nothing_of_an_empty_batch(self, name):
        assert choose(policy_named(name), make_request(Ledger({"uid": np.empty(0, object)}))) == []

    @pytest.mark.parametrize("name", POLICIES)
    def test_works_on_a_ledger_with_nothing_but_ids(self, name):
        ledger = Ledger({"uid": np.array(["a-0", "a-1"], object)})
        assert {item.row for item in choose(policy_named(name), make_request(ledger))} == {0, 1}

    @pytest.mark.parametrize("name", POLICIES)
    def test_is_deterministic(self, name):
        policy = policy_named(name)
        assert choose(policy, make_request(make_ledger())) == choose(policy, make_request(make_ledger()))

    @pytest.mark.parametrize("name", POLICIES)
    def test_states_a_probability(self, name):
        selected = choose(policy_named(name), make_request(make_ledger()))
        assert all(0 < item.probability <= 1 for item in selected)


class TestNames:
    def test_all_takes_every_row_whatever_the_cap(self):
        assert len(choose(policy_named("all"), make_request(make_ledger(), limit=1))) == 512

    def test_first_keeps_the_order(self):
        selected = choose(policy_named("first"), make_request(make_ledger(), limit=3))
        assert [item.row for item in selected] == [0, 1, 2]

    def test_extremes_alternate_between_best_and_worst(self):
        ledger = make_ledger(n_groups=2, group_size=4, reward=np.array([3.0, 9, np.nan, 1, 5, 7, 2, 8]))
        selected = choose(policy_named("extremes"), make_request(ledger, limit=4))
        assert [(item.row, item.selected_by) for item in selected] == [
            (1, "best"),
            (3, "worst"),
            (7, "best"),
            (6, "worst"),
        ]

    def test_extremes_show_rows_without_a_reward_last(self):
        ledger = make_ledger(n_groups=1, group_size=3, reward=np.array([np.nan, 1.0, 2.0]))
        assert [item.row for item in choose(policy_named("extremes"), make_request(ledger))] == [2, 1, 0]

    def test_an_unknown_name_is_refused_with_the_known_ones(self):
        with pytest.raises(ConfigError, match=r"'best'.*portfolio, fixed_prompts"):
            policy_named("best")

    def test_evaluation_defaults_to_the_panel_and_training_to_the_portfolio(self):
        assert default_policy("eval-rollout") is fixed_prompts
        assert default_policy("rollout") is portfolio


class TestPanel:
    def test_shows_the_same_prompts_at_every_step_and_in_any_order(self):
        ledger = make_ledger()
        keys = ledger.get("prompt_key")
        shuffled = ledger.take(np.random.default_rng(1).permutation(512))
        one = {keys[item.row] for item in fixed_prompts(make_request(ledger, step=1))}
        two = {shuffled.get("prompt_key")[item.row] for item in fixed_prompts(make_request(shuffled, step=2))}
        assert one == two

    def test_shows_one_sample_of_each_prompt_before_a_second(self):
        ledger = make_ledger(n_groups=6, group_size=4)
        chosen = [ledger.get("prompt_key")[item.row] for item in fixed_prompts(make_request(ledger, limit=9))]
        assert len(set(chosen[:6])) == 6

    def test_another_seed_is_another_panel(self):
        ledger = make_ledger()
        assert fixed_prompts(make_request(ledger, seed=1)) != fixed_prompts(make_request(ledger, seed=2))


class TestCallables:
    def test_may_answer_with_row_numbers(self):
        def shortest(request):
            return np.argsort(request.ledger.get("n_sampled"))[:2]

        selected = choose(policy_named(shortest), make_request(make_ledger()))
        assert [item.selected_by for item in selected] == ["shortest", "shortest"]

    def test_may_answer_with_reasons(self):
        selected = choose(lambda request: [Selected(4, "mine", 0.5)], make_request(make_ledger()))
        assert selected == [Selected(4, "mine", 0.5)]

    def test_are_cut_at_the_cap_and_cleared_of_doubles(self):
        selected = choose(lambda request: [1, 1, 2, 3, 4], make_request(make_ledger(), limit=3))
        assert [item.row for item in selected] == [1, 2, 3]

    @pytest.mark.parametrize(
        ("answer", "seen"), [([512], "row 512"), ([-1], "row -1"), (None, "NoneType"), (["x"], "str")]
    )
    def test_that_answer_nonsense_are_refused(self, answer, seen):
        with pytest.raises(ConfigError, match=seen):
            choose(lambda request: answer, make_request(make_ledger()))


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
        assert kinds["tied group"]

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
