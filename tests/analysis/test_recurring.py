"""What comes and goes: steps here and there, or every so many, and what is only noise or a heavy tail."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from rollout_traces.analysis import diagnose
from rollout_traces.analysis.recurring import period_of
from rollout_traces.store.query.parser import parse_query
from tests.analysis.builders import steps, table
from tests.analysis.test_movements import drawn, happens, logged, told
from tests.perturbations.equations import compute
from tests.perturbations.run import Run
from tests.perturbations.spec import draw_spec
from tests.perturbations.tables import Relations

BAD = (4, 5, 16, 19, 21, 27, 29, 44, 45, 57)


class TestRecurring:
    def test_rollouts_that_all_fail_at_some_steps_are_one_entry_and_no_chance(self):
        """Seen once: ten of sixty steps without a solved prompt were six infos, perhaps by chance."""

        def ok(s: int, g: int, i: int) -> int:
            return 0 if s in BAD else int(happens(0.75, s, g, i))

        [entry] = told(table(steps(60, groups=10, success=ok)))
        assert (entry.shape, entry.step, entry.last, str(entry.series[0])) == ("recurring", 4, 57, "success")
        assert entry.sentence.startswith("success is 0 at 10 of 60 steps (4, 5, 16, 19, 21, …), 0.7")
        assert entry.where == f"step in ({', '.join(map(str, BAD))})"
        report = diagnose(table(steps(60, groups=10, success=ok)), "run")
        assert [each.shape for each in report.diagnoses].count("spike") == 0

    def test_every_tenth_step_of_one_engine_is_said_so_and_may_be_meant_from_the_start(self):
        def mismatch(s: int, g: int, i: int) -> float:
            usual = 0.001 * (1 + 0.1 * drawn(s, g, i))
            return 50 * usual if s % 10 == 6 and i % 2 else usual

        def engine(s: int, g: int, i: int) -> str:
            return f"vllm-{i % 2}"

        report = diagnose(table(steps(60, engine=engine, mismatch_k3=mismatch)), "run")
        [entry] = [each for each in report.diagnoses if each.shape == "recurring"]
        assert (entry.severity, entry.part) == ("info", (("engine", "vllm-1"),))
        assert "on engine “vllm-1” every 10 steps from 6 on" in entry.sentence
        assert parse_query(entry.where)
        assert entry.where.startswith("engine = 'vllm-1' and step in (6, 16,")

    def test_an_engine_that_fails_every_eighth_step_from_some_step_on_is_a_warning(self):
        """Seen once: that six steps of sixty are evenly spaced was no evidence, and a rare stop reason was taken for something given."""

        def stop_reason(s: int, g: int, i: int) -> str:
            is_bad = s >= 15 and s % 8 == 7 and i == 0
            return "abort" if happens(0.35 if is_bad else 0.002, s, g, i) else "stop"

        rows = steps(60, groups=32, engine=lambda s, g, i: f"vllm-{i}", stop_reason=stop_reason)
        [entry] = told(table(rows))
        assert (entry.shape, entry.severity, entry.part) == ("recurring", "warn", (("engine", "vllm-0"),))
        assert "every 8 steps from 15 on" in entry.sentence

    def test_what_is_on_for_five_steps_and_off_for_five_since_a_step_is_told_by_how_far_off_it_is(self):
        """Seen once: 45 % of the rewards timed out in half of the steps since step 14 and hardly any before, and not a word of it."""

        def status(s: int, g: int, i: int) -> str:
            is_bad = s >= 14 and (s - 14) % 10 < 5
            return "timeout" if happens(0.3 + 0.3 * (7 * s % 5) / 4 if is_bad else 0.005, s, g, i) else "ok"

        others = {f"extra/x{k}": partial(drawn, what=k) for k in range(20)}
        rows = steps(
            60, groups=12, size=6, source=lambda s, g, i: "ab"[g % 2], reward_status=status, **others
        )
        [entry] = told(table(rows))
        assert (entry.shape, entry.step, entry.severity) == ("recurring", 14, "warn")
        assert "at 25 of the 46 steps since 14" in entry.sentence

    @pytest.mark.parametrize("seed", range(6))
    def test_noise_and_heavy_tails_are_not_said(self, seed):
        rng = np.random.default_rng(seed)
        wide = rng.standard_t(3, 60)

        def tail(s: int, g: int, i: int) -> float:
            return float(wide[s]) + 0.1 * drawn(s, g, i, seed)

        def rare(s: int, g: int, i: int) -> int:
            return int(happens(0.01, s + 100 * seed, g, i))

        report = diagnose(table(steps(60, n_sampled=tail, success=rare)), "run")
        assert not [each for each in report.diagnoses if each.shape == "recurring"]

    def test_a_window_and_three_spikes_are_none(self):
        def length(s: int, g: int, i: int) -> float:
            return 100 + drawn(s, g, i) + 50 * (s in (10, 30, 50))

        report = diagnose(table(steps(60, n_sampled=length)), "run")
        assert not [each for each in report.diagnoses if each.shape == "recurring"]


def test_the_period_is_the_distance_that_all_share():
    assert period_of(np.asarray([6, 16, 26, 36])) == 10
    assert period_of(np.asarray([6, 16, 27, 36])) == 0 and period_of(np.asarray([1, 2, 3, 4])) == 0


def test_sources_that_take_turns_are_no_fault_of_every_third_step():
    """Seen once: “flags truncated is 12 % on source “code” every 5 steps, 0 % at the others”, at which no rollout was of it."""

    def cut(s: int, g: int, i: int) -> list[str]:
        return ["truncated"] if s % 5 == 1 and happens(0.5, s, g, i) else []

    rows = steps(60, source=lambda s, g, i: f"part-{s % 5}", flags=cut)
    report = diagnose(table(rows), "run")
    assert not [each.sentence for each in report.diagnoses if each.shape == "recurring"]


def test_rewards_that_fail_every_fifth_step_are_a_warning_since_the_start_too():
    """Seen once: all rewards 0 at every fifth step, as the fourth info under “Nothing stands out”."""

    def ok(s: int, g: int, i: int) -> int:
        return 0 if s % 5 == 0 and s else int(happens(0.7, s, g, i))

    [entry] = told(table(steps(60, groups=10, success=ok)))
    assert (entry.severity, entry.shape) == ("warn", "recurring")
    assert "every 5 steps from 5 on" in entry.sentence


def test_a_time_that_is_long_every_seventh_step_from_some_step_on_is_a_warning():
    """Seen once: a pause at every seventh step was taken off as a checkpoint is, and nothing said."""
    rng = np.random.default_rng(7)
    t = np.arange(100)
    seconds = 50 * np.exp(0.08 * rng.normal(size=100)) * np.where((t >= 28) & (t % 7 == 0), 4, 1)
    [entry] = told(logged(steps(100), seconds.tolist(), "time/rollout"))
    assert (entry.severity, entry.step) == ("warn", 28)
    assert "every 7 steps from 28 on" in entry.sentence


@pytest.mark.parametrize("first", [0, 200])
def test_a_time_that_is_long_at_every_checkpoint_is_none(first):
    rng = np.random.default_rng(9)
    t = np.arange(60)
    seconds = 60 * np.exp(0.05 * rng.normal(size=60)) * np.where((t % 10 == 0) & (t > 0), 1.6, 1)
    rows = [{**row, "step": row["step"] + first} for row in steps(60)]
    assert not diagnose(logged(rows, seconds.tolist(), "time/step", first), "run").diagnoses


class TestBetweenTwoLevelsSinceAStep:
    """What is on in half of the steps, more or less, and had not been before."""

    def test_rewards_of_a_source_that_fail_at_every_other_step_or_so_are_a_warning_since_then(self):
        """Seen once: rewards of 0.15 in half of the steps since 23, of one source, and no word of it."""
        bad = [s for s in range(23, 60) if happens(0.5, s, 0, 1)]

        def ok(s: int, g: int, i: int) -> int:
            return int(happens(0.75, s, g, i) and not (s in bad and g % 2))

        [entry] = told(table(steps(60, groups=12, success=ok, source=lambda s, g, i: "ab"[g % 2])))
        assert (entry.shape, entry.part, entry.step) == ("recurring", (("source", "b"),), bad[0])
        listed = ", ".join(map(str, bad[:5]))
        assert (
            f"0 on source “b” at {len(bad)} of the {60 - bad[0]} steps since {bad[0]} ({listed}, …), 0.7"
            in entry.sentence
        )

    def test_a_throughput_that_is_a_third_at_every_other_step_or_so_is_a_warning(self):
        """Seen once: 9,000 to 3,500 tokens a second in 13 of 31 steps, “perhaps by chance”."""
        bad = [s for s in range(50, 80) if happens(0.4, s, 0, 2)]
        values = [(3500 if s in bad else 9000) * np.exp(0.05 * drawn(s, 0, 0)) for s in range(80)]
        [entry] = told(logged(steps(80), values, "perf/tokens_per_s"))
        assert (entry.shape, entry.severity, entry.step) == ("recurring", "warn", bad[0])
        report = diagnose(logged(steps(80), values, "perf/tokens_per_s"), "run")
        assert [each.shape for each in report.diagnoses if each.step >= bad[0]] == ["recurring"]

    @pytest.mark.parametrize("seed", range(4))
    def test_noise_that_grows_is_at_no_two_levels(self, seed):
        values = 1 + 0.1 * np.random.default_rng(seed).normal(size=120) * np.linspace(0.3, 2, 120)
        report = diagnose(logged(steps(120), values.tolist(), "train/entropy"), "run")
        assert not [
            each for each in report.diagnoses if "at the others" in each.sentence or each.severity != "info"
        ]

    def test_a_window_is_at_another_level_once(self):
        def ok(s: int, g: int, i: int) -> int:
            return int(happens(0.1 if 20 <= s < 40 else 0.75, s, g, i))

        [entry] = told(table(steps(60, groups=10, success=ok)))
        assert (entry.shape, entry.step, entry.last) == ("window", 20, 39)


@pytest.mark.parametrize("seed", range(3))
def test_an_engine_that_is_off_a_little_every_four_steps_is_said_from_its_first(seed):
    """Seen once: a quarter of an engine's answers could not be read at every fourth step, and not a word."""

    def answered(s: int, g: int, i: int) -> int:
        is_off = i % 2 == 1 and s >= 15 and (s - 15) % 4 == 0
        return int(happens(0.72 if is_off else 0.93, s, g, 1000 * seed + i))

    rows = steps(80, groups=10, size=8, answered=answered, engine=lambda s, g, i: f"vllm-{i % 2}")
    [entry] = [each for each in told(table(rows)) if each.shape == "recurring"]
    assert "every 4 steps from 15 on" in entry.sentence and entry.part == (("engine", "vllm-1"),)


@pytest.mark.parametrize("seed", range(3))
def test_noise_alone_comes_every_so_many_steps_at_none(seed):
    rows = steps(120, groups=8, success=lambda s, g, i: int(happens(0.5, s, g, 1000 * seed + i)))
    assert not [each for each in diagnose(table(rows), "run").diagnoses if each.shape == "recurring"]


def test_four_rollouts_that_come_at_one_distance_by_chance_come_again_at_none():
    """Seen once: “flags dominates_update is 5.3 % on source “airline” every 5 steps from 40 on”: one rollout at each of four."""
    report = diagnose(Relations(compute(Run(draw_spec("agent", 300314), 0, ()))), "run")
    assert not [each for each in report.diagnoses if each.shape == "recurring"]


KL = """
203 210 221 234 252 272 292 312 329 352 380 407 443 433 453 444 468 453 481 499 471 479 522 532 526 526 555 600 607 586
560 573 550 604 596 629 635 674 629 625 590 609 587 609 608 624 672 676 688
"""
"""Of a run's steps, in ten thousandths."""


def test_the_noise_of_a_number_that_grows_with_it_is_no_news():
    """Seen once: “train/kl” goes up and down by 0.00197, since step 12, by 0.00199 before; so in a third of all runs."""
    values = [int(each) * 1e-4 for each in KL.split()]
    found = diagnose(logged(steps(len(values)), values, "train/kl"), "run").diagnoses
    assert not [each for each in found if "goes up and down" in each.sentence]


def test_the_noise_of_a_number_that_is_0_at_times_and_grows_with_it_is_no_news():
    """Seen in half of all runs: a divergence that is estimated, and cut off at 0, where a policy moves away."""
    rng = np.random.default_rng(0)
    usual = 5e-3 * (1 - np.exp(-np.arange(90) / 30)) + 5e-5
    values = np.maximum(usual * rng.normal(0.8, 0.5, 90) + rng.normal(0, 2e-5, 90), 0.0)
    found = diagnose(logged(steps(90), values.tolist(), "train/kl"), "run").diagnoses
    assert values.min() == 0 and not [each for each in found if "goes up and down" in each.sentence]


def test_a_loss_whose_noise_alone_is_six_times_as_large_is_said_with_its_step():
    """Seen three times: a spread of three to six times as much, of the same mean, and no word of it."""
    rng = np.random.default_rng(43)
    values = 0.03 + rng.normal(size=70) * np.where(np.arange(70) < 24, 0.012, 0.08)
    found = diagnose(logged(steps(70), values.tolist(), "actor/loss"), "run").diagnoses
    [entry] = [each for each in found if "goes up and down" in each.sentence]
    assert (entry.severity, abs(entry.step - 24) <= 2) == ("info", True)
    assert entry.where == f"step >= {entry.step}"


@pytest.mark.parametrize("seed", [1, 4])
def test_by_how_much_steps_differ_is_read_where_they_are(seed):
    """Seen once: samples that get ever older on one of two engines, of which a step has more or fewer, “every 5 steps from 108 on”."""
    rng = np.random.default_rng(seed)
    late, first = rng.random((133, 8, 8)) < 0.2, rng.random((133, 8, 8)) < 0.5

    def staleness(s: int, g: int, i: int) -> float:
        return float(s - 83 if s >= 84 and first[s, g, i] else late[s, g, i])

    rows = steps(133, 8, 8, engine=lambda *at: f"vllm-{int(first[at])}", staleness_max=staleness)
    assert [each.shape for each in told(table(rows))] == ["ramp"]


LOSS = """
105 32 -121 57 244 -135 -18 21 42 32 -88 71 -20 -123 -171 -41 118 12 95 -56 33 -71 -44 181 176 -34 98 -20 -60 -41 21 128 989
78 174 32 -89 77 -146 705 -33 -111 -124 104 3 81 1030 56 -66 -24 -155 -26 61 700 -34 57 -85 52 20 -119 968 7 79 -123 -270
200 141 1070 28 -59 -55 135 -26 -22 708
"""
"""Of a run's steps, in ten thousandths."""


def test_that_steps_lie_at_one_distance_is_no_chance():
    """Seen once: a loss of 0.07 to 0.1 at every seventh step since 32, among 0.01, and no word of it: how large they are may be chance, when they come is none."""
    values = [int(each) * 1e-4 for each in LOSS.split()]
    [entry] = told(logged(steps(len(values)), values))
    assert entry.sentence.startswith("“train/loss” is 0.0881 every 7 steps from 32 on")
