"""The changes of a setting, as they are, and as they stand in a report."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_traces.analysis import diagnose
from rollout_traces.analysis.schedules import MOST_CHANGES, changes_of, is_scheduled, is_steered
from tests.analysis.builders import steps, table
from tests.analysis.test_movements import drawn, happens, logged, told
from tests.perturbations.equations import compute
from tests.perturbations.run import Run
from tests.perturbations.spec import draw_spec
from tests.perturbations.tables import Relations

RISE = [0.2, 0.4, 0.6, 0.8]


def found_in(values: list[float]) -> list[tuple[object, ...]] | None:
    found = changes_of(np.asarray(values), 0.01)
    if found is None:
        return None
    return [(each.template.kind, each.template.start, each.template.stop, each.end) for each in found]


class TestChanges:
    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ([1.0] * 6 + [0.5] * 4, [("level", 6, 10, None)]),
            ([*RISE, *[1.0] * 6], [("ramp", 1, 5, None)]),
            ([1.0] * 3 + [0.5] * 2 + [1.0] * 5, [("window", 3, 5, (4, 4))]),
            ([*RISE, *[1.0] * 6, *[0.2] * 4], [("ramp", 1, 5, None), ("level", 10, 14, None)]),
            (
                [*RISE, 1.0, 1.0, 0.5, 0.5, 1.0, 1.0, 0.1, 0.1],
                [("ramp", 1, 5, None), ("window", 6, 8, (7, 7)), ("level", 10, 12, None)],
            ),
            ([0.0] * 4 + [1.0] * 4 + [2.0] * 4, []),
            ([float(i // 3) for i in range(3 * MOST_CHANGES + 9)], []),
            ([0.0] * 4 + [1.0] * 4 + [3.0] * 4, [("level", 4, 12, None), ("level", 8, 12, None)]),
            ([1.0, 1.001] * 5, []),
            ([0.0, 0.0, 1.0, 0.0, 2.0, 0.0] * (MOST_CHANGES + 1), None),
        ],
    )
    def test_are_levels_ramps_and_windows(self, values, expected):
        assert found_in(values) == expected


class TestReport:
    def test_a_rate_that_is_lowered_for_some_steps_behind_its_warm_up_fell(self):
        """Seen once: it was told to have risen, since the step at which it fell."""
        values = [*RISE, *[1.0] * 5, *[0.5] * 5, *[1.0] * 26]
        entries = diagnose(logged(steps(40), values, "train/lr"), "run").diagnoses
        said = [(each.severity, each.shape, each.step, each.last) for each in entries]
        assert said == [("info", "window", 9, 13)]
        assert entries[0].after < entries[0].before

    def test_a_number_that_counts_epochs_is_no_news(self):
        """Seen once: an error for every epoch of a healthy run."""
        values = [float(i // 8) for i in range(40)]
        assert not diagnose(logged(steps(40), values, "train/epoch"), "run").diagnoses


def schedule(n: int) -> np.ndarray:
    """A learning rate that is warmed up for eight steps and decays by a cosine."""
    t = np.arange(n)
    return np.minimum((t + 1) / 8, 1) * 5e-7 * (1 + np.cos(np.pi * t / n))


class TestSchedules:
    @pytest.mark.parametrize("n", [16, 24, 60, 90, 300])
    def test_a_schedule_that_is_kept_is_no_news(self, n):
        """Seen once: an error in every run of 90 steps whose learning rate decays to nothing."""
        for values in (schedule(n), np.arange(n) / 37, 1e-6 * 0.98 ** np.arange(n)):
            assert not diagnose(logged(steps(n), values.tolist(), "train/lr"), "run").diagnoses

    def test_a_rate_that_is_thirty_times_as_high_for_a_step_is_a_spike(self):
        values = schedule(90)
        values[45] *= 30
        (entry,) = diagnose(logged(steps(90), values.tolist(), "train/lr"), "run").diagnoses
        assert (entry.severity, entry.shape, entry.step, entry.last) == ("warn", "spike", 45, 45)

    def test_a_schedule_that_goes_on_three_times_as_high_changed_there(self):
        values = schedule(90)
        values[45:] *= 3
        (entry,) = diagnose(logged(steps(90), values.tolist(), "train/lr"), "run").diagnoses
        assert (entry.severity, entry.shape, entry.step, entry.last) == ("info", "level", 45, None)
        assert entry.after > entry.before

    def test_a_schedule_that_begins_anew_changed_there(self):
        values = np.concatenate([schedule(90)[:45], schedule(90)[:45]])
        (entry,) = diagnose(logged(steps(90), values.tolist(), "train/lr"), "run").diagnoses
        assert (entry.shape, entry.step) == ("level", 45)

    @pytest.mark.parametrize("n", [30, 50, 90, 150, 300])
    def test_a_rate_that_stays_and_then_decays_keeps_to_its_schedule(self, n):
        """Seen once: an error at every length, a dozen steps late."""
        t = np.arange(n) / (n - 1)
        values = np.where(t < 0.8, 1e-6, 1e-6 * (1 - (t - 0.8) / 0.2 * 0.98))
        [entry] = diagnose(logged(steps(n), values.tolist(), "train/lr"), "run").diagnoses
        assert (entry.severity, entry.shape) == ("info", "ramp") and abs(entry.step - 0.8 * n) <= 1

    def test_a_number_of_tokens_that_begins_anew_where_the_run_is_resumed_counts(self):
        """Seen once: an error at the step of a resume."""
        rng = np.random.default_rng(3)
        n_tokens = rng.integers(30_000, 50_000, 60)
        values = np.concatenate([np.cumsum(n_tokens[:35]), np.cumsum(n_tokens[35:])]).astype(float)
        assert not diagnose(logged(steps(60), values.tolist(), "train/num_tokens"), "run").diagnoses

    def test_a_setting_that_changes_where_an_engine_fails_is_no_excuse_for_that_engine(self):
        """Seen once: a broken engine was under a new share of the data, which is of all rollouts."""

        def component(step: int, group: int, sample: int) -> int:
            fails = step >= 30 and sample % 4 == 0
            return int(not fails and np.random.default_rng([step, group, sample]).random() < 0.8)

        def engine(step: int, group: int, sample: int) -> str:
            return f"vllm-{sample % 4}"

        rows = steps(60, 8, 8, engine=engine, **{"component/format": component})
        report = diagnose(logged(rows, [0.5] * 30 + [0.3] * 30, "data/share/math"), "run")
        first, second = report.diagnoses
        assert (first.severity, first.part, first.step) == ("error", (("engine", "vllm-0"),), 30)
        assert [name.column for name in first.series] == ["component/format"]
        assert (second.severity, second.series[0].column) == ("info", "data/share/math")

    @pytest.mark.parametrize("seed", [0, 1])
    def test_a_coefficient_that_a_controller_adapts_may_turn(self, seed):
        """As of verl and TRL: it falls while the divergence is below its target, and rises from then on."""
        of_target = np.arange(60) / 30 * np.random.default_rng(seed).lognormal(0, 0.5, 60)
        coefficient = 0.01 * np.cumprod(1 + 0.1 * np.clip(of_target - 1, -0.2, 0.2))
        relations = logged(steps(60), coefficient.tolist(), "actor/kl_coef")
        assert not diagnose(relations, "run").diagnoses
        raised = (coefficient * np.where(np.arange(60) < 40, 1, 10)).tolist()
        assert diagnose(logged(steps(60), raised, "actor/kl_coef"), "run").diagnoses[0].step == 40

    def test_what_is_measured_follows_no_schedule(self):
        rng = np.random.default_rng(5)
        noisy = 0.001 * np.arange(90) + rng.normal(0, 0.0001, 90)
        walk = np.cumsum(rng.normal(size=90))
        assert not is_scheduled(noisy)
        assert not is_scheduled(walk)
        assert not is_steered(noisy) and not is_steered(walk)


class TestWhatOccursAtTimes:
    @pytest.mark.parametrize(
        "values",
        [
            [0.0] * 30 + [0.1] + [0.0] * 29,
            [0.0, 0.0, 0.33, 0.0] * 4 + [0.0] * 30 + [0.67] + [0.0] * 13,
            [5.0] * 20 + [4.0] + [5.0] * 10 + [4.0] + [5.0] * 10 + [6.0] + [5.0] * 17,
            [0.005] * 30 + [0.0] + [0.005] * 29,
            [6144.0] * 7 + [5129.0] + [6144.0] * 20 + [5131.0] + [6144.0] * 31,
        ],
    )
    def test_is_no_setting_and_neither_error_nor_warning(self, values):
        """Seen once: one row of ten that was cut off was an error above a loss that had jumped."""
        report = diagnose(logged(steps(60), values, "train/clipped_ratio"), "run")
        assert {each.severity for each in report.diagnoses} <= {"info"}

    def test_a_rate_that_is_another_for_a_few_steps_is_a_setting(self):
        values = [1e-6] * 30 + [3e-5] + [1e-6] * 29
        [entry] = diagnose(logged(steps(60), values, "train/lr"), "run").diagnoses
        assert (entry.shape, entry.step, entry.is_sure) == ("spike", 30, True)


@pytest.mark.parametrize("seed", range(4))
def test_a_first_step_that_compiles_says_nothing_of_the_others(seed):
    """Seen once: a first step four times as long made a level of the noise behind it, and an error."""
    values = np.random.default_rng(seed).normal(5.4, 0.55, 200)
    values[0] = 23.6
    report = diagnose(logged(steps(200), values.tolist(), "time/update"), "run")
    assert [each.sentence for each in report.diagnoses if each.severity != "info"] == []


class TestWhatWasMeantSo:
    def test_a_setting_that_changes_is_told_and_is_no_error(self):
        values = [0.3] * 30 + [0.7] * 30
        [entry] = diagnose(logged(steps(60), values, "data/share/math"), "run").diagnoses
        assert (entry.severity, entry.step, entry.is_sure) == ("info", 30, True)

    def test_a_doubled_batch_halves_each_share_of_the_update_and_is_no_error(self):
        """Seen once: fewer rollouts that dominate an update were an error where the batch was doubled."""

        def flags(s: int, g: int, i: int) -> list[str]:
            return ["dominates_update"] if s < 30 and happens(0.1, s, g, i) else []

        rows = [row for row in steps(60, groups=16, flags=flags) if row["step"] >= 30 or row["group"] < 8]
        report = diagnose(logged(rows, [32.0] * 30 + [64.0] * 30, "data/batch_size"), "run")
        assert report.diagnoses[0].step == 30
        assert {each.severity for each in report.diagnoses} == {"info"}

    def test_a_setting_comes_first_among_what_may_be_nothing(self):
        values = [0.3] * 50 + [0.7] * 10

        def longer(s: int, g: int, i: int) -> float:
            return 100 + 0.5 * max(s - 15, 0) + 5 * drawn(s, g, i)

        entries = diagnose(logged(steps(60, n_sampled=longer), values, "data/share/math"), "run").diagnoses
        assert [each.severity for each in entries[:2]] == ["info", "info"]
        assert str(entries[0].series[0]) == "data/share/math"

    def test_what_follows_a_setting_is_told_with_it_and_a_reward_that_falls_is_an_error_all_the_same(self):
        values = [0.001] * 30 + [0.1] * 30

        def reward(s: int, g: int, i: int) -> float:
            return (0.8 if s < 30 else 0.2) + 0.1 * drawn(s, g, i)

        entries = diagnose(logged(steps(60, reward=reward), values, "train/kl_coef"), "run").diagnoses
        assert entries[0].severity == "error" and entries[0].step == 30
        assert {"reward", "train/kl_coef"} <= {str(name) for name in entries[0].series}

    def test_a_rate_that_is_0_before_the_run_is_over_is_an_error(self):
        values = [1e-6] * 40 + [0.0] * 20
        [entry] = diagnose(logged(steps(60), values, "train/lr"), "run").diagnoses
        assert (entry.severity, entry.step) == ("error", 40)

    def test_what_takes_longer_where_steps_have_twice_as_many_rollouts_is_no_error(self):
        """Seen once: a batch that was doubled by design was an error in one of ten healthy runs."""
        rng = np.random.default_rng(5)
        values = [(20.0 if s < 30 else 39.0) + rng.normal() for s in range(60)]
        rows = [row for row in steps(60, groups=12) if row["step"] >= 30 or row["group"] < 6]
        [entry] = diagnose(logged(rows, values, "time/step"), "run").diagnoses
        assert (entry.severity, entry.step) == ("info", 30)
        [entry] = diagnose(logged(steps(60), values, "time/step"), "run").diagnoses
        assert (entry.severity, entry.step) == ("error", 30)

    def test_what_changed_by_many_times_as_much_as_their_number_is_an_error(self):
        """Seen once: a divergence of four times as much was no warning, where steps soon had a seventh less rollouts."""
        rng = np.random.default_rng(5)
        values = [(0.05 if s < 30 else 0.2) * np.exp(0.1 * rng.normal()) for s in range(60)]
        rows = [row for row in steps(60, groups=7) if row["step"] < 31 or row["group"] < 6]
        entry = diagnose(logged(rows, values, "train/kl"), "run").diagnoses[0]
        assert (entry.severity, entry.step) == ("error", 30)

    def test_so_it_is_where_a_filter_leaves_another_number_of_them_at_each_step(self):
        """Seen once: 80 to 128 rollouts a step, and 160 to 256 from a step on, whose medians differed by less than half."""
        healthy = compute(Run(draw_spec("alternating", 640307), 0, ()))
        report = diagnose(Relations(healthy), "run")
        assert not [each for each in report.diagnoses if each.severity == "error"]

    @pytest.mark.parametrize("slow", [1.0, 9.0])
    def test_hours_that_pass_count_though_each_step_takes_another_time(self, slow):
        """Seen once: hours that began anew at a resume were an error."""
        rng = np.random.default_rng(3)
        spent = 0.01 * (1 + 0.2 * rng.random(60))
        spent[[0, 40]] *= slow
        values = np.concatenate([np.cumsum(spent[:40]), np.cumsum(spent[40:])]).tolist()
        assert not diagnose(logged(steps(60), values, "time/elapsed"), "run").diagnoses

    def test_so_do_those_that_begin_with_the_start_of_a_process_again(self):
        """Seen once: an error in a healthy run, of hours that began at a fifth of their most and again there."""
        rng = np.random.default_rng(3)
        spent = 0.007 * (1 + 0.3 * rng.random(40))
        values = np.concatenate([0.045 + np.cumsum(spent[:18]), 0.045 + np.cumsum(spent[18:])]).tolist()
        assert not diagnose(logged(steps(40), values, "time/elapsed"), "run").diagnoses

    def test_memory_that_leaks_counts_nothing(self):
        rng = np.random.default_rng(4)
        values = (40 + np.cumsum(0.1 + 0.02 * rng.random(60))).tolist()
        assert diagnose(logged(steps(60), values, "perf/memory_gb"), "run").diagnoses


class TestAFirstStepThatCompiles:
    @pytest.mark.parametrize("seed", range(6))
    def test_says_nothing_of_those_after_it(self, seed):
        """Seen once: windows that fell, one after the other, each from a mean that took the first step in."""
        rng = np.random.default_rng(seed)
        values = 13 * np.linspace(1, 1.2, 60) * rng.lognormal(0, 0.07, 60)
        values[0] *= 3
        report = diagnose(logged(steps(60), values.tolist(), "timing_s/update_actor"), "run")
        assert [entry for entry in report.diagnoses if entry.shape != "ramp"] == []


def test_a_share_that_comes_is_counted_from_the_first_of_its_rows():
    """Seen once: prompts of a source that were asked again, in 14 of 78 groups and none of 246 before, "perhaps by chance": one of them was two steps before the others."""

    def status(s: int, g: int, i: int) -> str:
        return "timeout" if g == 0 and i < 6 and (s == 47 or (s >= 49 and (s + i) % 6 == 0)) else "ok"

    rows = steps(
        60,
        groups=6,
        size=6,
        source=lambda s, g, i: "math" if g else "code",
        reward_status=status,
        reward=drawn,
    )
    [entry] = [each for each in told(table(rows)) if "timeout" in str(each.series)]
    assert entry.part == (("source", "code"),) and entry.severity != "info"
