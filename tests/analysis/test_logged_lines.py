"""Logged numbers that go another way from a step on, that come again, that bend; and shares of engines that come."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from rollout_traces.analysis import diagnose
from rollout_traces.analysis.curves import less_what_comes_again
from rollout_traces.analysis.schedules import is_steered
from tests.analysis.builders import steps, table
from tests.analysis.test_movements import happens, logged, told
from tests.stories.relations import TableRelations

T = np.arange(100)


def kinked(seed: int, start: int) -> np.ndarray:
    """Gigabytes that stay and then rise by one a step."""
    return 58.5 + 0.35 * np.random.default_rng(seed).normal(size=100) + 1.03 * np.maximum(T - start, 0)


@pytest.mark.parametrize(("seed", "start"), [(0, 20), (1, 44), (2, 60)])
def test_memory_that_leaks_from_a_step_on_is_said(seed, start):
    """Seen once: 59 to 141 GB, and nothing said: it was taken for a coefficient that a controller steers."""
    values = kinked(seed, start)
    assert not is_steered(values)
    [entry] = diagnose(logged(steps(100), values.tolist(), "memory/gpu_gb"), "run").diagnoses
    assert entry.after > 1.5 * entry.before


@pytest.mark.parametrize("seed", range(3))
def test_entropy_that_falls_and_then_blows_up_is_an_error_from_where_it_turned(seed):
    """Seen once: 0.65 to 3.2 since step 30, and nothing said: it went up and down like a coefficient that is steered."""
    noise = 0.015 * np.random.default_rng(seed).normal(size=100)
    values = 0.6 + 0.27 * np.exp(-T / 15) + noise + 0.05 * np.maximum(T - 30, 0)
    [entry] = told(logged(steps(100), values.tolist(), "train/entropy"))
    assert (entry.severity, entry.name) == ("error", "the policy became less certain")
    assert abs(entry.step - 30) <= 2


@pytest.mark.parametrize("seed", range(3))
def test_a_divergence_that_grows_ever_faster_is_no_alarm(seed):
    rng = np.random.default_rng(seed)
    values = 1e-3 * (1 + (T / 25) ** 2) * np.exp(0.1 * rng.normal(size=100))
    assert not told(logged(steps(100), values.tolist(), "train/kl"))


@pytest.mark.parametrize("every", [5, 10, 25])
def test_what_takes_longer_at_every_so_many_steps_hides_no_window(every):
    """Seen once: 17 s to 24 s for sixteen steps, and nothing said, for each tenth step wrote a checkpoint."""
    rng = np.random.default_rng(every)
    seconds = 17 * np.exp(0.08 * rng.normal(size=100)) * np.where((T >= 33) & (T < 49), 1.4, 1.0)
    seconds[::every] *= 1.9
    [entry] = told(logged(steps(100), seconds.tolist(), "perf/step"))
    assert (entry.shape, entry.step, entry.last) == ("window", 33, 48)


def test_what_does_not_come_again_stays_as_it_is():
    rng = np.random.default_rng(4)
    values = rng.normal(size=60)
    values[[7, 20, 31, 52]] += 9
    assert np.array_equal(less_what_comes_again(values), values)
    values[::10] += 30
    assert np.abs(less_what_comes_again(values)[::10]).max() < 15


@pytest.mark.parametrize("seed", range(3))
def test_a_curve_that_bends_did_not_rise_where_it_fell(seed):
    """Seen once: “entropy rose from 0.573 to 0.574, from step 14 to 37” of one that fell from 0.69 to 0.4."""
    rng = np.random.default_rng(seed)
    values = 0.4 + 0.3 / (1 + np.exp((T - 18) / 4)) + 0.1 * np.exp(-T / 60) + 0.006 * rng.normal(size=100)
    assert not any(
        each.after >= each.before for each in told(logged(steps(100), values.tolist(), "train/entropy"))
    )


def test_an_evaluation_that_rises_until_it_breaks_falls_when_it_breaks():
    """Seen once: “the evaluation falls, since step 0” of one that rose until step 55."""

    def solved(s: int, g: int, i: int) -> int:
        return int(happens(0.4 + 0.3 * min(s, 59) / 60 - (0.5 if s >= 60 else 0.0), s, g, i))

    training = steps(100, success=lambda s, g, i: int(happens(0.4 + 0.3 * s / 100, s, g, i + 50)))
    rows = steps(100, groups=30, size=4, success=solved)
    evaluated = [
        {**row, "split": "eval-rollout", "id": f"e{i}"} for i, row in enumerate(rows) if row["step"] % 5 == 0
    ]
    found = told(table([*training, *evaluated]))
    falls = [each for each in found if each.name == "the evaluation falls"]
    assert falls and all(each.step == 60 for each in falls)


def test_an_engine_that_comes_is_a_warning_and_one_that_goes_is_an_error():
    """Seen once: three errors where engines were added by a scaler."""
    rng = np.random.default_rng(5)
    drawn = rng.random((60, 8, 6))

    def comes(s: int, g: int, i: int) -> str:
        return f"vllm-{int(drawn[s, g, i] * (3 if s >= 30 else 2))}"

    def goes(s: int, g: int, i: int) -> str:
        return f"vllm-{int(drawn[s, g, i] * (2 if s >= 30 else 3))}"

    assert {each.severity for each in told(table(steps(60, groups=8, size=6, engine=comes)))} == {"warn"}
    assert told(table(steps(60, groups=8, size=6, engine=goes)))[0].severity == "error"


def test_of_two_engines_one_that_got_slower_is_told_and_not_the_others_beside_it():
    """Seen once: “generate fell from 447 to 94 on three engines”, a figure that nobody measured."""
    rng = np.random.default_rng(6)
    engine, noise = rng.integers(0, 4, (80, 8)), np.exp(0.1 * rng.normal(size=(80, 8, 6)))

    def seconds(s: int, g: int, i: int) -> float:
        slow = 5.0 if s >= 30 and engine[s, g] == 3 else 1.0
        return float((60 + 0.3 * s) * noise[s, g, i] * slow)

    rows = steps(
        80, groups=8, size=6, engine=lambda s, g, i: f"engine-{engine[s, g]}", **{"timing/generate": seconds}
    )
    for entry in told(table(rows)):
        assert entry.part == (("engine", "engine-3"),) and entry.step == 30


@pytest.mark.parametrize(
    ("key", "start", "values", "noise"),
    [
        ("time/train", 31, 15 + 2.8 * np.maximum(T - 31, 0), 0.01),
        ("memory/gpu_gb", 21, 58.0 + np.maximum(T - 21, 0), 0.006),
        ("train/kl", 41, 0.001 + 0.0003 * T + 0.07 * np.maximum(T - 41, 0), 0.1),
        ("train/loss", 41, 0.013 + 0.025 * np.maximum(T - 41, 0), 0.2),
    ],
)
def test_what_runs_away_beyond_what_is_learned_is_a_warning_from_its_kink(key, start, values, noise):
    """Seen once: seconds of an update from 15 to 154, as info: that could be learned."""
    noise = 1 + noise * np.random.default_rng(len(key)).normal(size=100)
    [entry] = told(logged(steps(100), (values * noise).tolist(), key))
    assert entry.severity == "warn" and abs(entry.step - start) <= 3


@pytest.mark.parametrize("seed", range(6))
def test_a_divergence_that_begins_late_and_grows_tenfold_is_none(seed):
    """Seen once, in a healthy world: 0.0009 to 0.0102 since step 69."""
    noise = np.exp(0.1 * np.random.default_rng(seed).normal(size=100))
    values = (0.00085 + 0.00025 * np.maximum(T - 60, 0)) * noise
    assert not told(logged(steps(100), values.tolist(), "train/kl"))


@pytest.mark.parametrize("seed", range(4))
def test_what_is_learned_late_to_many_times_what_it_was_is_none(seed):
    rng = np.random.default_rng(seed)
    late = 1 / (1 + np.exp(-(T - 55) / 9))
    values = (400 + 1500 * late) * np.exp(0.03 * rng.normal(size=100))
    assert not told(logged(steps(100), values.tolist(), "tokens/answer"))


@pytest.mark.parametrize("seed", range(3))
def test_entropy_whose_noise_lasts_is_not_steered_when_it_blows_up(seed):
    """Seen once: 0.49 to 2.39 since step 51, and nothing said: no step took the one before it back."""
    rng, noise = np.random.default_rng(seed), [0.0]
    for _ in range(99):
        noise.append(0.9 * noise[-1] + 0.004 * rng.normal())
    values = 0.45 + 0.4 * np.exp(-T / 30) + np.asarray(noise) + 0.05 * np.maximum(T - 51, 0)
    [entry] = told(logged(steps(100), values.tolist(), "train/entropy"))
    assert entry.severity == "error" and abs(entry.step - 51) <= 4


@pytest.mark.parametrize("seed", range(3))
def test_one_step_far_beyond_all_others_is_a_warning_in_a_short_run_too(seed):
    """Seen once: a loss of 0.52 among 0.012 in a run of eighty steps, and nothing said."""
    rng = np.random.default_rng(seed)
    values = np.exp(np.log(0.012) + 0.35 * rng.normal(size=80))
    values[44] = 0.52
    [entry] = told(logged(steps(80), values.tolist(), "train/loss"))
    assert (entry.severity, entry.step, entry.last) == ("warn", 44, 44)
    assert "the loss jumped: “train/loss” rose from 0.01" in entry.sentence


@pytest.mark.parametrize("seed", range(6))
def test_the_largest_of_a_heavy_tail_is_none(seed):
    rng = np.random.default_rng(seed)
    values = 1 + 0.03 * rng.standard_t(3, size=80)
    assert not told(logged(steps(80), values.tolist(), "train/grad_norm"))


def test_a_number_that_moved_by_a_few_percent_is_no_warning():
    """Seen once: a spread of rewards from 0.49 to 0.47 as the first error, before the host whose tools failed."""
    values = np.where((T >= 25) & (T < 36), 0.47, 0.49) + 0.002 * np.random.default_rng(3).normal(size=100)
    [entry] = diagnose(logged(steps(100), values.tolist(), "train/reward_std"), "run").diagnoses
    assert (entry.severity, entry.step, entry.last) == ("info", 25, 35)


@pytest.mark.filterwarnings("error")
def test_numbers_whose_squares_are_infinite_warn_nobody():
    values = 1e300 * np.random.default_rng(3).random(60)
    assert not told(logged(steps(60), values.tolist(), "big"))


def test_spikes_that_come_here_and_there_from_a_step_on_are_a_warning():
    """Seen once: “Nothing stands out” over a gradient that jumped to ten times at one step in five, and never before step 70."""
    rng = np.random.default_rng(5)
    norm = 0.25 * np.exp(0.15 * rng.normal(size=140))
    norm[70 + rng.choice(70, 14, replace=False)] *= 10
    [entry] = told(logged(steps(140), norm.tolist(), "train/grad_norm"))
    assert (entry.severity, entry.shape) == ("warn", "recurring") and entry.step >= 70
    norm = 0.25 * np.exp(0.15 * rng.normal(size=140))
    norm[rng.choice(140, 14, replace=False)] *= 10
    assert not told(logged(steps(140), norm.tolist(), "train/grad_norm"))


def test_what_rounding_leaves_of_zero_moves_nowhere():
    """Seen once: “advantages/mean fell from -9.6e-17 to -3.5e-16” as a warning."""
    rng = np.random.default_rng(6)
    of_float64 = -1e-16 * np.exp(0.5 * rng.normal(size=100)) * np.where(T < 60, 1, 5)
    of_float32 = 5e-9 * rng.normal(size=100) * np.where(T < 60, 1, 5)
    for values in (of_float64, of_float32):
        assert not diagnose(logged(steps(100), values.tolist(), "critic/advantages/mean"), "run").diagnoses


def test_a_divergence_that_begins_anew_at_once_is_an_error_though_it_climbs_again():
    """Seen once: info of a divergence that fell to a fiftieth at a resume, where the reference was set anew."""
    climbs = np.minimum(T % 60 + 1, 45) * 3e-4
    values = climbs * np.exp(0.04 * np.random.default_rng(7).normal(size=100))
    [entry] = told(logged(steps(100), values.tolist(), "kl"))
    assert (entry.severity, entry.step) == ("error", 60)


def test_a_maximum_that_is_off_its_ceiling_once_is_no_warning():
    values = 1.73 - 2e-4 * np.random.default_rng(9).random(100) - np.where(T == 48, 0.01, 0.0)
    assert not told(logged(steps(100), values.tolist(), "critic/advantages/max"))


def test_a_number_that_is_logged_at_every_tenth_step_is_looked_at():
    """Seen once: nothing was said of checkpoints that took seven times as long, at four of nine."""
    rng = np.random.default_rng(6)
    metrics = pa.concat_tables(
        logged(steps(1), [float(value)], "timing_s/save_checkpoint", 10 * at + 9).sql("select * from metrics")
        for at, value in enumerate(rng.normal([22.0] * 5 + [150.0] * 4, 2.0))
    )
    [entry] = told(TableRelations(table(steps(90)).sql("select * from rollouts"), metrics))
    assert (str(entry.series[0]), entry.step) == ("timing_s/save_checkpoint", 59)


def test_a_number_of_the_other_sign_is_said_though_the_first_step_compiled():
    """Seen once: -14.6 among fives, perhaps by chance, since the first step had taken 11.9."""
    values = np.random.default_rng(3).normal(4.7, 0.5, 60)
    values[0], values[40] = 11.9, -14.6
    [entry] = told(logged(steps(60), values.tolist(), "timeperf/train_step"))
    assert (entry.severity, entry.step, entry.last) == ("warn", 40, 40)


def test_a_level_that_climbs_back_is_told_by_the_steps_beside_its_edge():
    """Seen once: “kl_loss fell from 0.034 to 0.027” where it fell from 0.040 to 0.003 and climbed again, as a reference that is replaced makes it."""
    t = np.arange(80)
    values = np.where(t < 38, 0.001 + t * 0.04 / 38, 0.003 + (t - 38) * 0.048 / 42)
    values = values * (1 + 0.03 * np.random.default_rng(5).normal(size=80))
    [entry] = told(logged(steps(80), values.tolist(), "actor/kl_loss"))
    assert entry.step == 38 and entry.before > 4 * entry.after


def test_what_rises_within_a_few_steps_and_stays_while_rollouts_do_nothing_is_not_learned():
    """Seen three times: seconds of a step from 70 to 213 over nineteen of 88 steps, memory from 62 to 72 GB over seventeen, as info."""
    rng, t = np.random.default_rng(7), np.arange(88)
    for before, after, severity in ((70.0, 213.0, "error"), (62.0, 72.4, "warn")):
        values = (before + (after - before) * np.clip((t - 26) / 19, 0, 1)) * (1 + 0.01 * rng.normal(size=88))
        [entry] = told(logged(steps(88), values.tolist(), "perf/step"))
        assert (entry.severity, abs(entry.step - 26) <= 3) == (severity, True)


def test_a_divergence_of_fourteen_times_as_much_that_stays_is_an_error():
    """Seen once: 0.0122 to 0.174 over fourteen of 55 steps, “No warning; what follows may be learning”."""
    values = (
        "20 27 33 35 39 50 59 60 62 68 75 83 109 93 112 106 101 116 97 108 112 117 130 130 129 129 132 121 133 143 124 153 158 172"
        " 237 288 294 421 538 631 747 952 1132 1360 1554 1552 1588 1788 1793 1764 1707 1827 1779 1864 1553"
    )
    [entry] = told(logged(steps(55), [int(each) / 1e4 for each in values.split()], "actor/kl"))
    assert (entry.severity, entry.step) == ("error", 33)


def test_such_a_rise_is_told_beside_another_movement_of_the_number():
    rng, t = np.random.default_rng(7), np.arange(120)
    values = (70 + 140 * np.clip((t - 50) / 19, 0, 1) + 60 * ((t >= 20) & (t < 32))) * (
        1 + 0.01 * rng.normal(size=120)
    )
    found = told(logged(steps(120), values.tolist(), "perf/step"))
    assert sorted(each.step for each in found) == [20, pytest.approx(50, abs=2)]


def test_what_rises_so_with_what_rollouts_learn_is_learned():
    rng, t = np.random.default_rng(8), np.arange(88)
    rise = 1 / (1 + np.exp(-(t - 36) / 4))
    rows = steps(88, groups=8, success=lambda s, g, i: int(happens(0.2 + 0.6 * rise[s], s, g, i)))
    values = (70 + 140 * rise) * (1 + 0.03 * rng.normal(size=88))
    assert not told(logged(rows, values.tolist(), "perf/step"))


def test_two_steps_in_a_row_that_lie_far_from_all_others_are_a_warning():
    """Seen once: a gradient of 1.54 at two steps among 0.46, thirteen times its noise, “perhaps by chance”."""
    rng = np.random.default_rng(9)
    norm = 0.45 * np.exp(0.12 * rng.standard_t(4, size=62))
    norm[39:41] = 1.5, 1.6
    [entry] = told(logged(steps(62), norm.tolist(), "actor/grad_norm"))
    assert entry.step in (38, 39) and entry.last == 40


@pytest.mark.parametrize("seed", range(8))
def test_noise_that_lasts_has_no_two_such_steps(seed):
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=80)
    for i in range(1, 80):
        noise[i] += 0.7 * noise[i - 1]
    assert not told(logged(steps(80), np.exp(0.2 * noise).tolist(), "perf/tokens_per_s"))


def test_steps_that_lack_most_of_their_rollouts_for_a_while_are_a_warning():
    """Seen once: 30 rollouts of a step, 12 for 24 steps, as an info."""
    rows = [row for row in steps(80, groups=10, size=3) if not (40 <= row["step"] < 60 and row["group"] > 3)]
    [entry] = [each for each in told(table(rows)) if "rollouts of a step" in each.sentence]
    assert entry.sentence == "“rollouts of a step” fell from 30 to 12, from step 40 to 59."


@pytest.mark.parametrize("on_the_way", [(0.35,), (0.3, 0.4), (0.25, 0.3, 0.4)])
@pytest.mark.parametrize("seed", range(3))
def test_a_level_that_is_reached_by_and_by_begins_at_the_first_step_off_its_way(seed, on_the_way):
    values = 0.03 * np.random.default_rng(seed).normal(size=100)
    values[60:] += 1
    values[60 - len(on_the_way) : 60] += on_the_way
    [entry] = told(logged(steps(100), values.tolist(), "train/x"))
    assert (entry.shape, entry.step) == ("level", 60 - len(on_the_way))


EARLY_KL = """
37.2 22.2 33.2 1.7 54.1 68.2 49.6 77.0 50.0 18.6 40.3 18.2 18.3 11.8 13.0 51.3 43.3 53.3 101.0 32.3 73.3 45.3 62.6
"""
"""A run's first distances from its reference, in millionths."""


def test_a_number_whose_noise_is_larger_beside_its_level_at_first_has_no_windows():
    """Seen once: “train/kl” fell from 5.91e-05 to 1.53e-05, from step 11 to 14, as the first error: of a number that grows a thousandfold, each step's noise is the same."""
    n_grown = 110 - len(EARLY_KL.split())
    grown = 60 + 9 * np.arange(n_grown) + 25 * np.random.default_rng(0).normal(size=n_grown)
    values = 1e-6 * np.concatenate([[float(each) for each in EARLY_KL.split()], grown])
    assert told(logged(steps(110), values.tolist(), "train/kl")) == []


def test_one_gradient_of_thirty_times_the_usual_one_is_said():
    """Seen once: 17.3 among 0.55, the next largest 3.1, and no word of it: the noise of its logarithm is wide where groups tie."""
    rng = np.random.default_rng(5)
    values = np.exp(rng.normal(-0.6, 0.35, 190)) * np.where(rng.random(190) < 0.15, 0.02, 1.0)
    values[40], values[151] = 3.1, 17.3
    found = diagnose(logged(steps(190), values.tolist(), "train/grad_norm"), "run").diagnoses
    assert [(each.shape, each.step) for each in found if each.step == 151] == [("spike", 151)]
