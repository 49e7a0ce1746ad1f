"""What rollouts are given, and what somebody or something sets: mixes, workers, controllers, and the trainer's own numbers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from rollout_traces.analysis import diagnose
from rollout_traces.analysis.curves import STEP_SIZE
from rollout_traces.analysis.schedules import is_steered
from tests.analysis.builders import steps, table
from tests.analysis.test_movements import drawn, happens, logged, told
from tests.perturbations.equations import compute
from tests.perturbations.run import Run
from tests.perturbations.spec import draw_spec
from tests.perturbations.tables import Relations
from tests.stories.relations import TableRelations


def test_a_number_that_the_trainer_logs_under_the_name_of_a_split_is_looked_at():
    """Seen once: a queue twice as long, a hundred errors, of which nothing was said: its key began with `rollout/`."""
    values = np.random.default_rng(4).normal(45, 1, 60)
    values[20:33] += 50
    relations = logged(steps(60, n_prompt=7), values.tolist(), "rollout/queue_size")
    [entry] = told(relations)
    assert (entry.series[0].column, entry.step, entry.last) == ("rollout/queue_size", 20, 32)
    [finding, *_] = [
        each for each in diagnose(relations, "run").in_force(25, 25) if "queue_size" in each.sentence
    ]
    assert finding is not None


@pytest.mark.parametrize("seed", range(4))
def test_a_coefficient_that_a_controller_multiplies_has_no_onset(seed):
    """Seen once: an error in each healthy run whose coefficient fell to half, and then rose to twenty times that."""
    rng = np.random.default_rng(seed)
    of_target = 0.2 + 0.05 * np.arange(90) + rng.normal(0, 0.1, 90)
    values = 0.05 * np.cumprod(1 + np.clip(of_target - 1, -0.2, 0.2) / 4)
    assert is_steered(values) and not told(logged(steps(90), values.tolist(), "train/kl_coef"))
    assert not is_steered(np.cumsum(rng.normal(size=90)))


class TestTheMixOfPrompts:
    def test_one_that_changes_in_stages_is_no_error(self):
        """Seen once: an error in each run with a curriculum."""

        def source(s: int, g: int, i: int) -> str:
            share = 0.8 if s < 24 else 0.5 if s < 30 else 0.25
            return "easy" if happens(share, s, g, 0) else "hard"

        report = diagnose(table(steps(70, groups=24, size=2, source=source)), "run")
        assert {each.severity for each in report.diagnoses} <= {"warn", "info"}
        assert any(each.series[0].column == "source" for each in report.diagnoses)

    def test_one_that_changes_at_once_is_a_warning(self):
        source = [
            each
            for each in told(
                table(
                    steps(50, groups=9, source=lambda s, g, i: "math" if g < (6 if s < 25 else 2) else "code")
                )
            )
            if each.series[0].column == "source"
        ]
        assert [each.severity for each in source] == ["warn"]


def test_a_step_of_old_samples_is_no_chance_of_the_loader():
    """Seen once: samples seven versions old at one step, an info, since all of a group are as old."""
    rows = steps(60, groups=16, staleness_max=lambda s, g, i: 7 if s == 38 else int(happens(0.3, s, g, 0)))
    [entry] = told(table(rows))
    assert (str(entry.series[0]), entry.step, entry.last) == ("staleness_max", 38, 38)


def workers(n_steps: int) -> list[dict[str, object]]:
    """Rows of four workers, of which one is lost at step 30, and with it its rollouts; five steps before, groups shrink."""
    rows = steps(
        n_steps,
        groups=8,
        size=8,
        **{"extra/worker": lambda s, g, i: f"w{(i + int(4 * abs(drawn(s, g, i)))) % 4}"},
    )
    return [row for row in rows if row["step"] < 30 or row["extra/worker"] != "w3"]


def test_a_worker_that_is_lost_is_said_though_steps_are_smaller_for_it():
    """Seen once: info, the last words of a line about a timing."""
    rng = np.random.default_rng(7)
    seconds = np.where(np.arange(60) < 30, 14, 9) + rng.normal(0, 0.2, 60)
    [entry] = told(logged(workers(60), seconds.tolist(), "timing_s/update_actor"))
    assert entry.severity == "error"
    assert entry.sentence.startswith("a worker went: extra/“worker” “w3” fell from")


@pytest.mark.parametrize(("seed", "left"), [(1, 0.1), (1, 0.12), (3, 0.06)])
def test_a_source_whose_solved_share_falls_is_sure_though_a_curve_may_fall_too(seed, left):
    """Seen once: eleven errors, “perhaps by chance”: no policy learns to solve less."""
    rng = np.random.default_rng(seed)
    share = {"math": 0.4, "code": 0.42}
    drawn_of = rng.random((68, 8, 4))

    def solved(s: int, g: int, i: int) -> int:
        fell = g % 2 and s >= 43
        return int(drawn_of[s, g, i] < (left if fell else share["code" if g % 2 else "math"]))

    rows = steps(68, groups=8, success=solved, source=lambda s, g, i: "code" if g % 2 else "math")
    [entry] = told(table(rows))
    assert entry.part == (("source", "code"),) and abs(entry.step - 43) <= 3


def test_a_window_beside_a_curve_that_falls_comes_back_to_the_curve():
    """Seen once: an entropy told as an error since the window began, and as one that fell where it ended."""
    before = "543 531 528 530 529 522 507 502 505 496 484 485 478 474 473 477 466 464 462 457 452 446 441 443 440 436 437"
    inside, after = "530 516 510 500 503 496", "410 409 404 399 399 397 392"
    values = np.asarray(f"{before} {inside} {after}".split(), float) / 1000
    [entry] = told(logged(steps(40), values.tolist(), "train/entropy"))
    assert (entry.step, entry.last, entry.shape) == (27, 32, "window")


def test_a_fall_in_a_run_of_eleven_steps_is_the_fault_and_not_where_it_ends():
    """Seen once: “rose from 0.3 to 0.54, from step 9 to 10”."""

    def solved(s: int, g: int, i: int) -> int:
        return int(happens(0.15 if 4 <= s < 9 else 0.52, s, g, i))

    [entry] = told(table(steps(11, groups=12, size=6, success=solved)))
    assert (entry.step, entry.last) == (4, 8) and entry.after < entry.before


def test_what_cannot_move_where_rollouts_end_otherwise_says_nothing_of_its_part():
    """Seen once: more turns “on stop_reason “stop”, 11 elsewhere”: those that reached the limit of 11."""

    def turns(s: int, g: int, i: int) -> int:
        wanted = (4 if s < 30 else 7) + 4 * drawn(s, g, i) + drawn(s, g, 0, 1)
        return int(np.clip(round(wanted), 1, 11))

    rows = steps(
        60, groups=8, n_turns=turns, stop_reason=lambda s, g, i: "limit" if turns(s, g, i) == 11 else "stop"
    )
    entries = [each for each in told(table(rows)) if "n_turns" in map(str, each.series)]
    assert [each.part for each in entries] == [()]


def test_a_text_that_holds_the_name_of_a_host_is_that_host_s_by_definition():
    rows = steps(
        30,
        **{
            "extra/host": lambda s, g, i: f"tools-{'ab'[i % 2]}",
            "flags": lambda s, g, i: [f"refused by tools-{'ab'[i % 2]}"] if happens(0.4, s, g, i) else [],
        },
    )
    assert not told(table(rows))


@pytest.mark.parametrize("seed", range(3))
def test_a_source_that_takes_its_turn_is_as_sure_as_its_groups_are(seed):
    """Seen once: the tails of twenty steps in place of those of a hundred groups: 0.62 to 0.39, “perhaps by chance”."""
    rng = np.random.default_rng(seed)
    of_rollouts = rng.random((60, 16, 6))

    def solved(s: int, g: int, i: int) -> int:
        return int(of_rollouts[s, g, i] < (0.36 if s % 3 == 2 and s >= 42 else 0.62))

    entries = told(table(steps(60, groups=16, size=6, success=solved, source=lambda s, g, i: f"s{s % 3}")))
    assert entries and abs(entries[0].step - 42) <= 3 and str(entries[0].series[0]) == "success"


@pytest.mark.parametrize("seed", range(3))
def test_an_engine_that_falls_at_the_end_is_judged_beside_what_all_learn_until_then(seed):
    """Seen once: a level since step 16, where learning became less, of an engine that fell at step 32."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(0, 0.06, (40, 8, 4))

    def certainty(s: int, g: int, i: int) -> float:
        fell = 0.18 * min(max(s - 31, 0) / 6, 1) if i % 2 else 0.0
        return -0.6 + 0.18 * (1 - np.exp(-s / 12)) - fell + noise[s, g, i]

    [entry] = told(table(steps(40, groups=8, engine=lambda s, g, i: f"vllm-{i % 2}", mean_logprob=certainty)))
    assert entry.part == (("engine", "vllm-1"),) and 29 <= entry.step <= 36 and entry.after < entry.before


def test_a_rate_that_is_ten_times_as_high_is_a_warning_and_one_that_is_doubled_is_none():
    for factor, severity in ((20.0, "warn"), (2.0, "info")):
        values = (1e-6 * (1 - np.arange(60) / 80) * np.where(np.arange(60) < 30, 1, factor)).tolist()
        [entry] = diagnose(logged(steps(60), values, "train/lr"), "run").diagnoses
        assert (entry.severity, entry.step) == (severity, 30)
        assert entry.after / entry.before == pytest.approx(factor, rel=0.05)


def test_a_number_that_rises_from_nothing_still_shows_a_window_behind_it():
    """Seen once: a divergence five times as large for eight steps, “perhaps by chance”: its first steps counted as its noise."""
    t = np.arange(60)
    values = 0.001 + 0.022 * (1 - np.exp(-t / 5)) * np.exp(np.random.default_rng(1).normal(0, 0.08, 60))
    values[32:40] *= 5
    [entry] = told(logged(steps(60), values.tolist(), "train/kl"))
    assert (entry.step, entry.last, entry.severity) == (32, 39, "error")


def test_a_number_that_jumps_over_two_steps_is_as_sure_as_over_one():
    """Seen once: a quarter more memory over two steps was “perhaps by chance”, over one an error."""
    before = "58637 58698 58144 58704 58741 58883 59334 58437 58798 58842 59294 59284 58791 58561 58683 59030 58778 58685"
    after = "73813 73710 73841 74030 73840 73899 74013 74002 73574 73896 74109 73920 73668 74172 73741 74164 73824 73523"
    values = np.asarray(f"{before} 58457 59126 66378 73487 {after}".split(), float) / 1000
    [entry] = told(logged(steps(40), values.tolist(), "perf/gpu_mem_gb"))
    assert entry.is_sure and entry.step == 20


def adapted(kind: str, seed: int, n: int = 80) -> np.ndarray:
    """What a controller makes of a noisy divergence: multiplied by 1.5 or two thirds, often or at times, or by at most a tenth."""
    rng = np.random.default_rng(seed)
    off = rng.normal(0, 1, n) + np.convolve(rng.normal(0, 1, n + 9), np.ones(10) / 6, "valid")
    by = {
        "by factors": np.select([off > 0.7, off < -0.7], [1.5, 1 / 1.5], 1.0),
        "in a dead band": np.select([off > 1.7, off < -1.7], [1.5, 1 / 1.5], 1.0),
        "up to a tenth": 1 + np.clip(off / 5, -0.1, 0.1),
    }
    return 0.02 * np.cumprod(by[kind])


@pytest.mark.parametrize("kind", ["by factors", "in a dead band", "up to a tenth"])
def test_a_coefficient_that_wanders_is_no_fault(kind):
    """Seen in four of fifty healthy runs: “kl_coef fell from 0.776 to 0.0227, since step 17”, an error."""
    found = [told(logged(steps(80), adapted(kind, seed).tolist(), "train/kl_coef")) for seed in (0, 3, 5, 18)]
    assert not [each.sentence for entries in found for each in entries]


def test_a_coefficient_that_wanders_and_is_raised_hundredfold_is_said():
    values = adapted("up to a tenth", 1) * np.where(np.arange(80) < 50, 1, 100)
    [entry] = [each for each in told(logged(steps(80), values.tolist(), "train/kl_coef")) if each.step == 50]
    assert entry.severity == "error"


def test_a_schedule_that_begins_again_is_no_fault():
    """Seen once: a warning at the restart of a cosine."""
    t = np.arange(60)
    values = 3e-6 * (1 + np.cos(np.pi * (t % 30) / 30)) / 2
    assert not told(logged(steps(60), values.tolist(), "train/lr"))
    raised = values * np.where(t < 30, 1, 20)
    assert [each.step for each in told(logged(steps(60), raised.tolist(), "train/lr"))] == [30]


def test_a_learning_rate_that_is_raised_beyond_its_schedule_is_a_warning_that_names_it():
    """Seen once: twenty times the rate at step 60, and ten times the gradient, as info."""
    t = np.arange(80)
    rate = 1e-6 * (1 + np.cos(np.pi * t / 80)) / 2 * np.where(t >= 60, 40, 1)
    rate[60:] = rate[60]
    norm = 0.35 * np.exp(0.1 * np.random.default_rng(2).normal(size=80)) * np.where(t >= 60, 9, 1)
    metrics = pa.concat_tables(
        logged(steps(1), values.tolist(), key).sql("select * from metrics")
        for key, values in (("train/lr", rate), ("train/grad_norm", norm))
    )
    relations = TableRelations(table(steps(80)).sql("select * from rollouts"), metrics)
    [entry] = told(relations)
    assert (entry.severity, entry.step, entry.name) == ("warn", 60, "the learning rate changed")


def test_a_step_that_has_fewer_rollouts_is_said_and_may_be_meant():
    """Seen once: 256 rollouts and then 64 a step, and nothing said."""
    rows = [row for row in steps(60, groups=8, size=4) if row["step"] < 40 or int(row["group"]) < 2]
    report = diagnose(table(rows), "run")
    [entry] = [each for each in report.diagnoses if "rollouts of a step" in each.sentence]
    assert (entry.severity, entry.step, entry.before, entry.after) == ("info", 40, 32, 8)
    assert entry.queries[0].startswith("select step, count(*) as level from rollouts")


def test_what_becomes_known_is_no_fault():
    """Seen once: an error where a component was logged from a later step on."""
    rows = [
        {**row, "component/style": float(happens(0.5, row["step"], 0, at))} if row["step"] >= 20 else row
        for at, row in enumerate(steps(60))
    ]
    assert not told(table(rows))


def test_of_how_many_rollouts_the_reward_is_unknown_is_said():
    """Seen once: half of all rewards missing from the first step on, and nothing said."""
    rows = steps(40, reward=lambda s, g, i: drawn(s, g, i) if i % 2 else None)
    assert diagnose(table(rows), "run").remarks == (
        "The reward of 50% of the rollouts does not count: there is none, or its function failed.",
    )


def test_what_a_later_attempt_replaced_is_said_to_be_left_out():
    """Seen once: half of a run whose steps came out of order, left out without a word."""
    rows = [
        {**row, "attempt": str(row["step"] // 10), "superseded": row["step"] % 10 >= 8} for row in steps(40)
    ]
    [remark] = diagnose(table(rows), "run").remarks
    assert remark.startswith(
        "192 further rollouts are left out: the run went back to an earlier step 3 times"
    )


def test_a_gradient_that_falls_while_the_rate_is_warmed_up_is_how_a_run_starts():
    """Seen once: an error since step 15 of a run whose learning rate was warmed up for thirty."""
    t, rng = np.arange(120), np.random.default_rng(4)
    rate = 1e-6 * np.minimum((t + 1) / 30, 1)
    norm = np.where(t < 15, 1.0, 0.35) * np.exp(0.08 * rng.normal(size=120))
    both = [("train/lr", rate), ("train/grad_norm", norm)]
    metrics = pa.concat_tables(
        logged(steps(1), values.tolist(), key).sql("select * from metrics") for key, values in both
    )
    rows = table(steps(120)).sql("select * from rollouts")
    assert not told(TableRelations(rows, metrics))
    [entry] = told(logged(steps(120), norm.tolist(), "train/grad_norm"))
    assert entry.step == 15


def test_a_learning_rate_that_starts_anew_and_decays_is_another_level():
    t = np.arange(200)
    rate = 1e-6 + 1e-5 * (1 + np.cos(np.pi * (t % 100) / 100))
    [entry] = diagnose(logged(steps(200), rate.tolist(), "train/learning_rate"), "run").diagnoses
    assert (entry.step, entry.last) == (100, None)


def test_prompts_that_are_asked_in_turn_again_and_again_are_said():
    """Seen once: nothing was said of 24 prompts, of 600, that a loader asked from step 40 on, eight at a step."""
    order = np.random.default_rng(2).permutation(600)

    def prompt(s: int, g: int, i: int) -> str:
        return f"p{order[(8 * s + g) % (24 if s >= 40 else 600)]}"

    found = told(table(steps(80, groups=8, prompt_key=prompt, reward=drawn)))
    assert [(each.name, 40 <= each.step <= 47) for each in found] == [
        ("the same prompts are asked again and again", True)
    ]


def test_prompts_of_a_small_data_set_come_again_in_every_epoch():
    rng = np.random.default_rng(4)
    order = np.concatenate([rng.permutation(80) for _ in range(8)])

    def prompt(s: int, g: int, i: int) -> str:
        return f"p{order[8 * s + g]}"

    assert told(table(steps(80, groups=8, prompt_key=prompt, reward=drawn))) == []


def test_prompts_of_a_few_steps_come_again_from_the_start():
    """Seen once: an error of a pool of forty prompts, since step 6: before it nobody knows what was asked."""
    asked = np.random.default_rng(1).integers(0, 40, (80, 8))
    assert told(table(steps(80, groups=8, prompt_key=lambda s, g, i: f"p{asked[s, g]}", reward=drawn))) == []


@pytest.mark.parametrize(("factor", "severity"), [(1.122, "warn"), (0.93, "info")])
def test_a_setting_that_stood_still_and_then_goes_on_is_said_from_there(factor, severity):
    """Seen once: nothing was said of a clip range that went from 0.0003 to 0.003 over twenty steps, since it went on by as much as before."""
    values = [0.0003 * factor ** min(max(s - 43, 0), 20) for s in range(80)]
    report = diagnose(logged(steps(80), values, "train/clip_range"), "run")
    assert [(each.severity, each.step, each.shape) for each in report.diagnoses] == [(severity, 44, "ramp")]


def test_a_rate_that_is_held_and_then_decays_is_an_info_from_there():
    values = [1e-5 * min(1.0, (s + 1) / 10, (200 - s) / 40) for s in range(200)]
    found = diagnose(logged(steps(200), values, "train/lr"), "run").diagnoses
    assert {each.severity for each in found} == {"info"}
    assert (161, "ramp") in [(each.step, each.shape) for each in found]


def test_a_rate_that_is_warmed_up_again_in_the_midst_of_its_decay_is_said():
    """Seen once: nothing was said of a warm-up at step 40, whose steps are larger than the one by which the rate fell."""
    own = [5e-7 * min((s + 1) / 6, 1 - max(s - 6, 0) / 54) for s in range(60)]
    [entry] = diagnose(logged(steps(60), [*own[:40], *own[:20]], "train/lr"), "run").diagnoses
    assert (entry.severity, entry.step) == ("info", 40)


class TestStepsThatShrink:
    """Seen once: nothing of batches of 128 rollouts that ever more filtered groups left 40 of, or their rise from 24 to 56 alone."""

    @staticmethod
    def of(left: list[int]) -> TableRelations:
        rows = [row for row in steps(len(left), groups=16, size=4) if row["group"] < left[row["step"]]]
        return table([{**row, "reward": drawn(row["step"], row["group"], 0)} for row in rows])

    @pytest.mark.parametrize("every", [1, 2, 3])
    def test_by_and_by_to_less_than_half_is_a_warning(self, every):
        left = [max(5, min(16, 16 - (step - 28) // every)) for step in range(80)]
        [entry] = [each for each in told(self.of(left)) if each.series[0] == STEP_SIZE]
        assert (entry.severity, entry.before, entry.after) == ("warn", 64.0, 20.0)
        assert 29 <= entry.step <= 28 + every

    @pytest.mark.parametrize("seed", range(3))
    def test_by_how_many_a_filter_leaves_is_a_warning_too(self, seed):
        drawn_left = np.random.default_rng(seed).binomial(16, np.clip(1 - (np.arange(80) - 30) / 16, 0.3, 1))
        [entry] = [each for each in told(self.of(drawn_left.tolist())) if STEP_SIZE in each.series]
        assert entry.severity == "warn" and 25 <= entry.step <= 41 and entry.before > 2 * entry.after

    def test_at_once_is_what_somebody_set(self):
        assert not [each for each in told(self.of([16] * 40 + [5] * 40)) if STEP_SIZE in each.series]


def test_prompts_that_are_a_hundredth_shorter_are_no_alarm():
    """Seen once: an error, before all others, of prompts of 67 tokens that had a digit less."""
    rows = steps(60, groups=16, n_prompt=lambda s, g, i: 200 + 3 * drawn(s, g, 0) - (2 if s >= 30 else 0))
    found = diagnose(table(rows), "run").diagnoses
    assert [each.severity for each in found if each.series[0].column == "n_prompt"] == ["info"]


@pytest.mark.parametrize("seed", range(3))
def test_which_sources_are_asked_is_no_chance_where_it_changed_at_once(seed):
    """Seen once: “the mix of sources changed: 48% to 14%, perhaps by chance”, since a curve of what is learned was nearly as near."""
    of_groups = np.random.default_rng(seed).random((60, 12))

    def source(s: int, g: int, i: int) -> str:
        return "math" if of_groups[s, g] < (0.5 if s < 26 else 0.12) else "code"

    found = diagnose(table(steps(60, groups=12, source=source)), "run").diagnoses
    [entry] = [each for each in found if each.series[0].column == "source"]
    assert entry.is_sure and abs(entry.step - 26) <= 1


def test_times_of_a_batch_that_grew_by_design_are_no_error_though_its_size_varies():
    """Seen once, in a healthy run: “time/generate rose from 8.5 to 14.1” as an error, beside a batch of 168 rollouts in place of 96."""
    found = diagnose(Relations(compute(Run(draw_spec("alternating", 732917), 0, ()))), "run").diagnoses
    assert not [each for each in found if each.severity == "error"]
    assert any(STEP_SIZE in each.series for each in found)


def test_the_level_of_a_curriculum_that_all_rollouts_of_a_step_have_is_no_movement():
    """Seen once: five errors of a level that was 0, 1, 2, 3 and 4 from step 0, 16, 32, 48 and 64 on, at other steps than these."""
    rows = steps(
        80, groups=8, reward=lambda s, g, i: drawn(s, g, i), **{"extra/level": lambda s, g, i: s // 16}
    )
    assert not told(table(rows))


def test_groups_that_merge_while_a_step_has_as_many_rollouts_are_said():
    """Seen once: one prompt asked in place of four, groups of 32 in place of 8, and not a word: their sizes add up to the same."""
    rows = [row | {"group": 0} if 20 <= row["step"] < 30 else row for row in steps(60, groups=4, size=8)]
    [entry] = told(table(rows))
    assert entry.sentence == (
        "groups hold several prompts: group/prompts “several” rose from 0% to 100%, from step 20 to 29; "
        "also rose: group/size_mean."
    )
    assert entry.severity == "warn"


def test_steps_that_get_fewer_rollouts_each_another_number_have_the_mean_of_them_and_are_a_warning():
    """Seen once: an info, "fell from 128 to 32", of steps of 32 to 80."""
    rows = [row for row in steps(50, groups=8) if row["step"] < 30 or row["group"] < 2 + row["step"] % 3]
    [entry] = [each for each in told(table(rows)) if "rollouts of a step" in each.sentence]
    assert entry.severity == "warn" and "fell from 32 to 11.8," in entry.sentence


def test_characters_tell_of_prompts_that_are_cut_where_there_are_no_tokens():
    def characters(s: int, g: int, i: int) -> int:
        return 90 if g % 2 and 14 <= s < 21 else 200 + 10 * g

    rows = steps(40, groups=8, prompt_characters=characters, source=lambda s, g, i: ("math", "code")[g % 2])
    [entry] = told(table(rows))
    assert entry.name == "prompts have another length" and (entry.part, entry.step, entry.last) == (
        (("source", "code"),),
        14,
        20,
    )
