"""A closed step is judged while the run goes: what is plain raises one alert within two steps, what is healthy none."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest

from rollout_traces.alarms.alerts import alerts_of
from rollout_traces.alarms.figures import figures_of, scalar_figures
from rollout_traces.alarms.online import Trail, as_plain, judge, remembered
from rollout_traces.decode import TranscriptDecoder
from tests.alarms.healthy_numbers import alerts_while_logged, healthy_run
from tests.alarms.healthy_runs import alerts_while_running
from tests.alarms.one_cause import HEALTHY, N_ROWS, alerts_of_run
from tests.alarms.steps import GROUPS, SIZE, ledger
from tests.flags.planted import faults_for
from tests.flags.steps import healthy_step, made_up_conversations
from tests.generator import tiny_tokenizer

B = GROUPS * SIZE
TOKENIZER = tiny_tokenizer("qwen3")
FAULTS = faults_for(TOKENIZER)
ONSET = 40
LATER = {"noise_amplified_group": 5}
"""Flags whose fault moves a spread alone, in a few groups: steps after which it alarms."""


def rewards(step: int, solved: float = 0.5) -> np.ndarray:
    rng = np.random.default_rng([step, 7])
    chance = 1 / (1 + np.exp(-np.repeat(rng.normal(0, 1, GROUPS), SIZE))) * 2 * solved
    return (rng.random(B) < chance).astype(float)


def alerts(ledgers) -> list[tuple[int, str]]:
    return [(step, alert.text) for step, found in alerts_while_running(enumerate(ledgers)) for alert in found]


def logged(values, n_steps: int = 120) -> list[tuple[int, str]]:
    """The alerts of what a trainer logs; `values` gives the scalars of a step."""
    trail, found = Trail(), []
    for step in range(n_steps):
        judged = judge(trail, scalar_figures(values(step), step))
        trail = judged.trail
        found += [(step, alert.text) for alert in alerts_of(judged, step, 0, "", {})]
    return found


class TestWhatIsPlain:
    def test_a_loss_of_8_among_007_alarms_at_its_step(self):
        noise = np.random.default_rng(1).normal(0, 0.01, 120)
        [(step, text)] = logged(lambda s: {"train/loss": 0.07 + noise[s] + 8.3 * (s == 85)})
        assert step == 85 and "train/loss" in text

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), "NaN", "-Infinity"])
    def test_a_number_that_is_none_any_more_is_an_error_at_once_and_once(self, bad):
        """Seen once: a NaN and an infinite gradient norm raised no alert, and were errors of `explain`."""
        noise = np.random.default_rng(2).normal(1, 0.1, 60)
        trail, found = Trail(), []
        for step in range(60):
            value = bad if step in (50, 51, 55) else noise[step]
            judged = judge(trail, scalar_figures({"train/kl": value, "train/loss": noise[step]}, step))
            trail = judged.trail
            found += [(step, alert) for alert in alerts_of(judged, step, 0, "", {})]
        [(step, alert)] = found
        assert (step, alert.level, alert.title) == (50, "error", "“train/kl”")
        assert alert.text.startswith(
            "what the trainer logs is no longer a number: “train/kl”, since step 50."
        )

    def test_a_number_that_never_was_one_alarms_nothing(self):
        assert (
            logged(lambda s: {"train/kl": float("nan") if s in (1, 20) else 1.0, "note": "warming up"}, 30)
            == []
        )

    def test_a_loss_that_is_higher_by_five_deviations_and_stays_alarms_once_it_is_sure(self):
        """Seen once: a movement that was not sure at its fourth step was forgotten, and never said."""
        at = []
        for seed in range(8):
            rng = np.random.default_rng(seed)
            noise, other = rng.normal(0, 0.01, 60), np.abs(rng.normal(0, 1, 60))
            found = logged(
                lambda s, noise=noise, other=other: {
                    "train/loss": noise[s] + 0.05 * (s >= 30),
                    "train/kl": other[s],
                },
                60,
            )
            assert len(found) <= 1 and all("train/loss" in text for _, text in found)
            at += [step for step, _ in found]
        assert len(at) >= 6 and min(at) >= 30 and np.median(at) <= 42

    def test_a_group_whose_rewards_are_off_is_said_of_the_reward(self):
        """Seen once: six of 48 rewards were 60 in place of 0.5, and the alert spoke of a flag alone."""
        said = 0
        for seed in range(6):
            ledgers = []
            for s in range(ONSET + 1):
                given = np.random.default_rng([s, seed]).normal(0.77, 0.27, 48)
                given[:6] += 18.0 * (s == ONSET)
                ledgers.append(ledger(seed=s, n_groups=8, size=6, reward=given))
            found = alerts(ledgers)
            assert all(step == ONSET for step, _ in found)
            said += any("reward rose from" in text for _, text in found)
        assert said >= 5  # where forty steps look heavy-tailed, one step may be chance

    def test_groups_that_die_alarm_within_two_steps(self):
        dead = np.repeat(np.arange(GROUPS) >= 4, SIZE)
        ledgers = [
            ledger(seed=s, reward=np.where(dead & (s >= ONSET), 0.0, rewards(s))) for s in range(ONSET + 3)
        ]
        found = alerts(ledgers)
        assert [step for step, text in found if "teach nothing" in text and step <= ONSET + 2]
        assert found[0][0] >= ONSET

    def test_an_evaluation_that_falls_alarms_within_two_steps(self):
        solved = np.repeat(np.random.default_rng(5).random(GROUPS), SIZE)
        prompts = np.repeat(np.asarray([f"p{group}" for group in range(GROUPS)], object), SIZE)
        ledgers = [
            ledger(
                seed=s,
                prompt_key=prompts,
                reward=(np.random.default_rng([s, 9]).random(B) < solved * (0.6 if s >= ONSET else 1)).astype(
                    float
                ),
            )
            for s in range(ONSET + 3)
        ]
        found = alerts(ledgers)
        assert found and found[0][0] <= ONSET + 2 and "reward" in found[0][1]

    def test_a_flag_that_no_row_had_and_all_have_alarms_at_once(self):
        found = alerts([ledger({"repetition": float(s >= ONSET)}, seed=s) for s in range(ONSET + 1)])
        assert [step for step, _ in found] == [ONSET]

    @pytest.mark.parametrize(("bad", "expected"), [(1, []), (4, [ONSET])])
    def test_an_evaluation_of_sixteen_alarms_for_several_rollouts_that_end_otherwise_and_not_for_one(
        self, bad, expected
    ):
        """Seen once: an error for one rollout that was aborted, in three of four healthy runs."""
        prompts = np.asarray([f"p{row}" for row in range(16)], object)
        reasons = np.asarray(["abort" if row < bad else "stop" for row in range(16)], object)
        usual = np.full(16, "stop", object)
        ledgers = [
            ledger(
                n_groups=16, size=1, seed=s, prompt_key=prompts, stop_reason=reasons if s == ONSET else usual
            )
            for s in range(ONSET + 1)
        ]
        assert [step for step, text in alerts(ledgers) if "abort" in text] == expected

    def test_one_row_with_a_flag_of_severity_error_alarms_at_once_and_once(self):
        ledgers = [ledger(seed=s) for s in range(20)]
        for one in ledgers[6:]:
            one.columns["flags"][17] = ("mask_leak",)
        assert alerts(ledgers) == [
            (6, "1 rollout carries mask_leak at step 6: " + alerts(ledgers)[0][1].split(": ", 1)[1])
        ]

    @pytest.mark.parametrize("fault", FAULTS, ids=[f"{fault.flag}: {fault.what}" for fault in FAULTS])
    def test_a_planted_fault_alarms_within_two_steps(self, fault, healthy):
        found = alerts_of_run(fault, *healthy)
        assert found and found[0][0] <= HEALTHY + LATER.get(fault.flag, 2)


@pytest.fixture(scope="module")
def healthy():
    return healthy_step(TOKENIZER, made_up_conversations(N_ROWS), "made up"), TranscriptDecoder(TOKENIZER)


class TestWhatIsHealthy:
    def test_ten_runs_of_noise_drift_and_learning_alarm_nothing(self):
        shares = {
            "truncated": 0.08, "repetition": 0.03, "reward_outlier": 0.05, "tied_group": 0.4, "stale": 0.2,
        }  # fmt: skip
        for seed in range(10):
            rng = np.random.default_rng(seed)
            drift = np.cumsum(rng.normal(0, 0.01, 100))
            ledgers = []
            for step in range(100):
                n_groups = int(rng.integers(4, 20))
                n = n_groups * SIZE
                ledgers.append(
                    ledger(
                        {name: share * np.exp(drift[step]) for name, share in shares.items()},
                        seed=1000 * seed + step, n_groups=n_groups,
                        reward=(rng.random(n) < 0.3 + 0.004 * step).astype(float),
                        mismatch_k3=1e-3 * rng.lognormal(0, 1.0, n), mean_logprob=-0.6 * rng.lognormal(0, 0.4, n),
                    )
                )  # fmt: skip
            assert alerts(ledgers) == [], seed

    @pytest.mark.parametrize("seed", (37, 53, 57, 77, 90, 138))
    def test_shares_of_an_evaluation_that_asks_twenty_prompts_again_alarm_nothing(self, seed):
        """Seen once: “answers are cut off”, 5 % to 9 %, and back, in one of fifteen healthy evaluations."""
        rng = np.random.default_rng(seed)
        prompts = np.asarray([f"p{row}" for row in range(20)], object)
        ledgers = [
            ledger(
                {"truncated": 0.05, "repetition": 0.02},
                n_groups=20,
                size=1,
                seed=1000 * seed + s,
                prompt_key=prompts,
                stop_reason=np.where(rng.random(20) < 0.05, "length", "stop").astype(object),
            )
            for s in range(20)
        ]
        assert alerts(ledgers) == []

    def test_heavy_tailed_scalars_alarm_nothing(self):
        values = np.random.default_rng(3).standard_t(5, (300, 20))
        assert logged(lambda s: {f"k{i}": v for i, v in enumerate(values[s])}, 300) == []

    def test_a_step_of_half_as_many_rollouts_alarms_nothing(self):
        """Seen once: an error, since each of its rollouts had twice the part of the update."""
        for seed in (1, 2):
            ledgers = []
            for s in range(ONSET + 2):
                n_groups = GROUPS // 2 if s == ONSET else GROUPS
                size = np.abs(np.random.default_rng([s, 3, seed]).normal(0, 1, n_groups * SIZE))
                ledgers.append(ledger(seed=s, n_groups=n_groups, update_share=size / size.sum()))
            assert alerts(ledgers) == [], seed

    def test_the_numbers_of_ten_healthy_runs_alarm_nothing(self):
        assert [alerts_while_logged(healthy_run(seed)) for seed in range(10)] == [[]] * 10

    def test_a_loss_that_falls_as_it_learns_alarms_nothing(self):
        noise = np.random.default_rng(4).normal(0, 0.05, 400)
        assert logged(lambda s: {"loss": 3 * np.exp(-s / 80) + noise[s]}, 400) == []


class TestWhatLasts:
    def test_is_said_once_and_its_way_back_is_not(self):
        """Seen once: alerts from one rollout of three, the same fault thirteen times."""
        ledgers = [ledger({"truncated": 0.6 if ONSET <= s < 60 else 0.05}, seed=s) for s in range(100)]
        assert [step for step, _ in alerts(ledgers)] == [ONSET]


class TestThresholds:
    @pytest.mark.parametrize("above, n", [(None, 0), (0.9, 0), (0.3, 1)])
    def test_of_alerts_are_those_of_the_run(self, above, n):
        trail, found = Trail(), []
        for step in range(ONSET + 1):
            one = ledger({"repetition": 0.6 if step >= ONSET else 0.0}, seed=step)
            judged = judge(trail, figures_of(one, step, trail.names))
            trail = judged.trail
            found += alerts_of(judged, step, one.n_rows, "rollout", {"repetition.alert_above": above})
        assert len(found) == n


class TestTheTrail:
    def test_that_was_stored_and_read_says_the_same(self):
        figures, trail = [], Trail()
        for step in range(50):
            one = ledger({"truncated": 0.05, "stale": 0.2}, seed=step, reward=rewards(step))
            figures.append(figures_of(one, step, trail.names))
            trail = judge(trail, figures[-1]).trail
        again = remembered(json.loads(json.dumps([as_plain(each) for each in figures])))
        assert again.names == trail.names and again.known.tolist() == trail.known.tolist()
        assert np.allclose(again.table, trail.table, rtol=1e-4)
        bad = ledger({"truncated": 0.7}, seed=50, reward=rewards(50))
        said = [judge(each, figures_of(bad, 50, each.names)).found for each in (trail, again)]
        assert said[0] and [d.sentence for d in said[0]] == [d.sentence for d in said[1]]

    def test_takes_a_few_thousand_bytes_of_each_step(self):
        one = ledger({"truncated": 0.1, "stale": 0.2}, reward=rewards(0), n_sampled=np.arange(B) * 1.5)
        stored = json.dumps(as_plain(figures_of(one, 0)))
        assert len(zlib.compress(stored.encode())) < 4000
