"""Figures against values computed by hand or by an independent library."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rollout_traces.analysis import Selection, explain, flips, list_prompts
from rollout_traces.analysis.carried import carried
from rollout_traces.analysis.change_points import change_points, controlled, noise
from rollout_traces.analysis.compare import between_steps, cliffs_delta, paired, shares
from rollout_traces.analysis.decompose import by_component, kitagawa
from rollout_traces.analysis.evaluations import bootstrap, newcombe
from rollout_traces.analysis.phrases import enriched, ngrams, paid
from rollout_traces.analysis.ramps import ramp
from rollout_traces.analysis.seen import first_seen, signature
from rollout_traces.analysis.series import Series
from tests.analysis.builders import steps, table

values = st.lists(st.integers(-5, 5).map(float), min_size=2, max_size=30).map(np.asarray)


class TestCliffsDelta:
    def test_by_hand(self):
        assert cliffs_delta(np.asarray([1.0, 2.0, 3.0]), np.asarray([2.0, 0.0])).effect == pytest.approx(
            (4 - 1) / 6
        )

    @given(values, values)
    def test_effect_and_p_are_those_of_mann_whitney(self, a, b):
        found = cliffs_delta(a, b)
        u, p = stats.mannwhitneyu(a, b, method="asymptotic")
        assert found.effect == pytest.approx(2 * u / (len(a) * len(b)) - 1, abs=1e-12)
        if len(set(a) | set(b)) > 1:
            assert found.p == pytest.approx(p, rel=1e-9)
        assert -1 <= found.low <= found.effect + 1e-12 and found.effect - 1e-12 <= found.high <= 1

    def test_paired_is_wilcoxon(self):
        differences = np.random.default_rng(0).normal(0.3, 1, 60)
        assert paired(differences).p == pytest.approx(stats.wilcoxon(differences, method="approx").pvalue)
        assert paired(np.ones(10)).effect == 1.0


class TestShares:
    def test_without_clusters_the_interval_is_that_of_two_shares(self):
        a, b = np.r_[np.ones(30), np.zeros(70)], np.r_[np.ones(10), np.zeros(90)]
        found = shares(a, np.ones(100), b, np.ones(100))
        error = np.sqrt(0.3 * 0.7 / 99 + 0.1 * 0.9 / 99)
        assert found.effect == pytest.approx(0.2)
        assert (found.high - found.low) / 2 == pytest.approx(1.96 * error, rel=1e-6)

    def test_rows_of_one_group_are_no_further_evidence(self):
        hits, n = np.repeat([1.0, 0.0], [5, 15]), np.ones(20)
        other = np.repeat([1.0, 0.0], [10, 10])
        once = shares(hits, n, other, n)
        eightfold = shares(8 * hits, 8 * n, 8 * other, 8 * n)
        assert eightfold.p == pytest.approx(once.p)

    def test_the_spread_between_steps_bounds_what_a_step_can_show(self):
        rng = np.random.default_rng(1)
        p = []
        for _ in range(400):
            level = np.r_[rng.normal(0, 1), rng.normal(0, 1, 10)]
            p.append(between_steps(level, np.full(11, 1000.0), np.r_[0, np.ones(10, int)], 0.01))
        assert 0.02 <= np.mean(np.asarray(p) < 0.05) <= 0.09


class TestDecompositions:
    def test_kitagawa_against_the_overall_mean(self):
        side, value = np.asarray([0, 0, 1, 1]), ["math", "code", "math", "code"]
        n, total = np.asarray([80.0, 20.0, 50.0, 50.0]), np.asarray([80 * 0.2, 20 * 0.9, 50 * 0.2, 50 * 0.9])
        found = kitagawa("source", side, value, n, total)
        assert found.change == pytest.approx(0.34 - 0.55)
        parts = {part.value: part for part in found.mixes}
        assert parts["math"].mix < 0 and parts["code"].mix < 0
        assert found.within == pytest.approx(0)
        assert found.mix == pytest.approx(found.change)

    @given(
        st.lists(
            st.tuples(st.sampled_from("abc"), st.integers(0, 1), st.integers(1, 9), st.integers(-9, 9)),
            min_size=2,
        )
    )
    def test_the_parts_add_up_exactly(self, cells):
        merged: dict = {}
        for value, side, n, total in cells:
            old = merged.get((value, side), (0, 0))
            merged[value, side] = (old[0] + n, old[1] + total)
        found = kitagawa(
            "source", np.asarray([s for _, s in merged]), [v for v, _ in merged],
            np.asarray([n for n, _ in merged.values()], float), np.asarray([t for _, t in merged.values()], float),
        )  # fmt: skip
        if found is not None:
            assert found.mix + found.within == pytest.approx(found.change, abs=1e-9)

    def test_components_add_up_with_recovered_weights(self):
        rng = np.random.default_rng(0)
        rows = steps(2, groups=10)
        for row in rows:
            row["component/a"], row["component/b"] = float(rng.random()) + row["step"], float(rng.random())
            row["reward"] = 2 * row["component/a"] - 0.5 * row["component/b"]
        relations = table(rows)
        from rollout_traces.analysis.relations import describe

        a, b = Selection("run", "rollout", (1, 1)), Selection("run", "rollout", (0, 0))
        found = by_component(relations, describe(relations), a, b)
        assert {c.component: c.weight for c in found.components} == {
            "a": pytest.approx(2),
            "b": pytest.approx(-0.5),
        }
        assert sum(c.part for c in found.components) == pytest.approx(found.change)

    def test_rewards_that_no_weights_give_back_make_no_table(self):
        rng = np.random.default_rng(0)
        rows = steps(2, groups=10, reward=lambda *_: float(rng.random()))
        for row in rows:
            row["component/a"] = float(rng.random())
        found = explain(table(rows), Selection("run", "rollout", (1, 1)), Selection("run", "rollout", (0, 0)))
        assert not [d for d in found.decompositions if d.column == "component"]


class TestWhoCarried:
    def test_two_of_many(self):
        x = np.r_[np.full(2, 50.0), np.zeros(98)]
        found = carried("reward", np.arange(100).astype(str), x, 0.0)
        assert (found.rows, found.share, found.ids) == (1, pytest.approx(0.5), ("0",))

    def test_a_change_of_all_is_carried_by_no_few(self):
        assert carried("reward", np.arange(100).astype(str), np.ones(100), 0.0) is None


class TestChangePoints:
    def series(self, values: np.ndarray) -> Series:
        return Series("x", None, None, np.arange(len(values)), values, values)

    def test_noise_is_untouched_by_a_jump_and_a_trend(self):
        rng = np.random.default_rng(0)
        x = rng.normal(0, 2.0, 400) + 0.1 * np.arange(400) + 30 * (np.arange(400) > 200)
        sigma, rho = noise(x)
        assert sigma == pytest.approx(2.0, rel=0.15) and rho < 0.2

    def test_a_jump_is_found_at_its_step(self):
        x = np.random.default_rng(0).normal(0, 1, 100) + 8 * (np.arange(100) >= 37)
        (found,) = controlled(change_points(self.series(x)), 30)
        assert abs(found.step - 37) <= 1 and found.last is None

    @pytest.mark.parametrize("level", [0.0, 65.0, -70.0])
    def test_the_level_of_a_series_hides_no_jump(self, level):
        x = np.random.default_rng(0).normal(0, 1, 100) + 8 * (np.arange(100) >= 37) + level
        (found,) = controlled(change_points(self.series(x)), 30)
        assert abs(found.step - 37) <= 1

    @pytest.mark.parametrize("rho", [0.0, 0.5])
    @pytest.mark.parametrize("drift", [0.0, 3.0, "sigmoid"])
    def test_healthy_series_have_none(self, rho, drift):
        runs_with_any = 0
        for seed in range(40):
            rng = np.random.default_rng(seed)
            found = []
            for _ in range(10):
                e = rng.normal(0, np.sqrt(1 - rho**2), 100)
                x = np.empty(100)
                x[0] = rng.normal()
                for t in range(1, 100):
                    x[t] = rho * x[t - 1] + e[t]
                t = np.arange(100)
                x += 5 / (1 + np.exp(-(t - 45) / 8)) if drift == "sigmoid" else drift * t / 100
                found += change_points(self.series(x))
            runs_with_any += bool(controlled(found, 10))
        assert runs_with_any <= 2

    def test_constant_series_have_no_noise_and_change_where_they_change(self):
        assert change_points(self.series(np.full(50, 3.0))) == []
        (found,) = change_points(self.series(np.r_[np.full(25, 1e-6), np.full(25, 1e-5)]))
        assert found.step == 25

    def test_the_way_back_ends_a_change(self):
        x = np.random.default_rng(3).normal(0, 1, 120) + 9 * ((np.arange(120) >= 50) & (np.arange(120) < 62))
        first = controlled(change_points(self.series(x)), 10)[0]
        assert (first.step, first.last) == (50, 61)

    def test_a_ramp_begins_where_it_begins(self):
        x = np.random.default_rng(0).normal(0, 0.05, 80) - np.clip((np.arange(80) - 29) / 6, 0, 1)
        assert abs(ramp(x).at - 30) <= 1


class TestFirstSeen:
    def test_a_value_counts_from_three_rollouts_on(self):
        rows = steps(20, source=lambda step, group, sample: "new" if step >= 8 and group < 2 else "old")
        rows[0]["source"] = "stray"
        found = {(s.column, s.value): s for s in first_seen(table(rows), "run")}
        assert ("source", "stray") not in found
        new = found["source", "new"]
        assert (new.first, new.last, new.new, new.stopped) == (8, 19, True, False)
        assert new.share_since == pytest.approx(2 / 6)

    def test_signatures_drop_what_differs_between_two_of_a_kind(self):
        one = signature("KeyError: 'user_17' in /srv/app/tools.py line 203, id 0xdeadbeef")
        other = signature("KeyError: 'user_9' in /srv/x/other.py line 7, id 0x12ab")
        assert one == other == "KeyError: <text> in <path> line <n>, id <hash>"


class TestPhrases:
    def test_an_enriched_phrase_is_found_whole_and_once(self):
        rng = np.random.default_rng(0)
        words = [f"word{i}" for i in range(60)]
        texts = [" ".join(rng.choice(words, 12)) for _ in range(200)]
        in_a = np.arange(200) < 100
        for i in range(0, 60, 1):
            texts[i] += " I am quite sure"
        found = enriched(texts, in_a, list(range(200)), [str(i) for i in range(200)])
        assert [p.phrase for p in found] == ["i am quite sure"]
        assert (found[0].n_a, found[0].n_b) == (60, 0)

    def test_by_hand(self):
        texts = ["yes"] * 30 + ["no"] * 10 + ["yes"] * 10 + ["no"] * 30
        (found,) = enriched(texts, np.arange(80) < 40, list(range(80)))
        prior = 10 * 40 / 80
        odds = np.log((30 + prior) / (10 + 10 - prior)) - np.log((10 + prior) / (30 + 10 - prior))
        assert found.log_odds == pytest.approx(odds)

    def test_a_phrase_in_fewer_than_three_groups_is_not_told(self):
        texts = ["so it is"] * 20 + [f"a b{i}" for i in range(20)]
        assert enriched(texts, np.arange(40) < 20, [0] * 20 + list(range(20))) == []

    def test_ngrams_are_counted_once(self):
        assert ngrams("No, no! no") == {"no", "no no", "no no no"}

    def test_what_is_paid_is_compared_inside_strata(self):
        strata = ["easy"] * 20 + ["hard"] * 20
        holds = np.r_[np.arange(20) < 15, np.arange(20) < 5]
        reward = np.r_[np.full(20, 1.0), np.full(20, 0.0)]
        assert paid(holds, reward, strata)[2] == pytest.approx(0)
        assert paid(holds, reward + 0.5 * holds, strata)[0] - paid(holds, reward + 0.5 * holds, strata)[
            1
        ] == pytest.approx(0.5)


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
