"""Figures against values computed by hand or by an independent library."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rollout_traces.analysis import Selection, flips, list_prompts, prompt_over_time
from rollout_traces.analysis.evaluations import bootstrap, newcombe
from rollout_traces.analysis.timeline import first_seen
from rollout_traces.cli.flips import SAID
from tests.analysis.builders import steps, table


class TestFirstSeen:
    def test_a_value_counts_from_three_rollouts_on(self):
        rows = steps(20, source=lambda step, group, sample: "new" if step >= 8 and group < 2 else "old")
        rows[0]["source"] = "stray"
        found = {(s.column, s.value): s for s in first_seen(table(rows), "run")}
        assert ("source", "stray") not in found
        new = found["source", "new"]
        assert (new.first, new.last, new.new, new.stopped) == (8, 19, True, False)
        assert new.share_since == pytest.approx(2 / 6)


class TestFlips:
    def test_one_trial_each_with_exact_mcnemar(self):
        outcomes = [(1, 0)] * 9 + [(0, 1)] * 1 + [(1, 1)] * 5 + [(0, 0)] * 5
        rows = [
            {"step": s, "prompt_key": f"p{i:02d}", "success": pair[s]}
            for i, pair in enumerate(outcomes)
            for s in (0, 1)
        ]
        found = flips(table(rows), Selection("run", "rollout", (0, 0)), Selection("run", "rollout", (1, 1)))
        assert {k: v for k, v in found.counts.items() if v} == {"lost": 9, "won": 1, "kept": 5, "never": 5}
        assert found.p == pytest.approx(stats.binomtest(9, 10).pvalue)
        assert found.difference == pytest.approx(-0.4) and found.high < 0

    def test_several_trials_flip_where_the_interval_leaves_out_zero(self):
        low, high = newcombe(np.asarray([5.0]), np.asarray([56.0]), np.asarray([0.0]), np.asarray([29.0]))
        assert -high[0] == pytest.approx(-0.0381, abs=1e-3) and -low[0] == pytest.approx(0.1926, abs=1e-3)

    def test_equal_shares_below_one_are_solved_as_often_and_not_in_both(self):
        rows = [
            {"step": step, "prompt_key": key, "success": success}
            for step in (0, 1)
            for key, outcomes in (("half", (1, 0)), ("none", (0, 0)))
            for success in outcomes
        ]
        found = flips(table(rows), Selection("run", "rollout", (0, 0)), Selection("run", "rollout", (1, 1)))
        assert {each.prompt_key: each.outcome for each in found.prompts} == {"half": "kept", "none": "never"}
        assert SAID["kept"] == "solved as often"

    def test_a_reward_of_a_function_that_failed_is_no_trial(self):
        rows = [
            {"step": step, "prompt_key": "p", "reward": reward, "reward_status": status}
            for step in (0, 1)
            for reward, status in ((1.0, "ok"), (0.0, "timeout"), (0.0, None))
        ]
        found = flips(table(rows), Selection("run", "rollout", (0, 0)), Selection("run", "rollout", (1, 1)))
        assert [(each.solved_a, each.trials_a) for each in found.prompts] == [(1, 2)]

    def test_the_bootstrap_is_seeded(self):
        d = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], 200)
        assert bootstrap(d, 1) == bootstrap(d, 1)
        low, high = bootstrap(d, 1)
        assert (high - low) / 2 == pytest.approx(1.96 * d.std() / np.sqrt(200), rel=0.1)


class TestPrompts:
    def test_solved_of_tried_and_waste(self):
        rows = steps(
            2,
            groups=2,
            size=4,
            n_sampled=10,
            success=lambda step, group, sample: int(group == 0 or sample == 0),
        )
        for row in rows:
            row["prompt_key"], row["reward"] = f"p{row['group']}", float(row["success"])
        hard, easy = list_prompts(table(rows), Selection("run")).prompts
        assert (hard.prompt_key, hard.solved, hard.tried, hard.visits, hard.wasted) == ("p1", 2, 8, 2, 0)
        assert (easy.solve_rate, easy.wasted) == (1.0, 80)
        assert list_prompts(table(rows), Selection("run"), order="easiest").prompts == (easy, hard)

    def test_groups_and_visits_of_two_runs_are_told_apart(self):
        """Seen once: 6 visits of a prompt that two runs had asked at the same six steps, and its tied groups of one run no waste beside the other's."""
        rows = steps(3, groups=1, size=2, prompt_key="p", n_sampled=10, reward=lambda s, g, i: 1.0)
        others = [row | {"run": "other", "reward": 0.0} for row in rows]
        [found] = list_prompts(table([*rows, *others]), Selection(None), order="visits").prompts
        assert (found.visits, found.rollouts, found.wasted) == (6, 12, 120)

    def test_tried_are_those_whose_success_is_known_as_the_rate_and_the_order_have_it(self):
        rows = [
            {"step": 0, "prompt_key": key, "group": 0, "success": success}
            for key, outcomes in (("half", [1, 0, None, None, None]), ("third", [1, 0, 0]))
            for success in outcomes
        ]
        found = list_prompts(table(rows), Selection("run")).prompts
        shown = [(each.prompt_key, each.solved, each.tried, each.rollouts) for each in found]
        assert shown == [("third", 1, 3, 3), ("half", 1, 2, 5)]
        [visit] = prompt_over_time(table(rows), "half")
        assert (visit.solved, visit.tried, visit.rollouts) == (1, 2, 5)

    def test_waste_is_unknown_where_tokens_are(self):
        rows = steps(1, groups=2, size=2, reward=lambda step, group, sample: float(group * sample))
        found = list_prompts(table(rows), Selection("run")).prompts
        assert [(each.tokens, each.wasted) for each in found] == [(None, None)] * 2

    def test_rewards_of_a_function_that_failed_are_in_no_mean_of_a_list_or_a_visit(self):
        rows = steps(1, groups=1, size=3, reward=lambda step, group, sample: float(sample > 0))
        rows[0]["reward_status"] = "timeout"
        key = rows[0]["prompt_key"]
        [found], [visit] = (
            list_prompts(table(rows), Selection("run")).prompts,
            prompt_over_time(table(rows), key),
        )
        assert (found.mean_reward, visit.mean_reward, visit.rewards) == (1.0, 1.0, (1.0, 1.0))
