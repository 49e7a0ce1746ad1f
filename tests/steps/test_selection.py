"""Policies by name and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_traces.errors import ConfigError
from rollout_traces.ledger.columns import Ledger
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
