"""The truth is what differs between two runs on the same random numbers, and nothing else."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from tests.perturbations.change import Change, Perturbation
from tests.perturbations.drawn import draw_perturbations
from tests.perturbations.equations import compute, learned
from tests.perturbations.habits import Habits
from tests.perturbations.keys import KEYS
from tests.perturbations.logged import COUNTED, DESIGN, SCHEDULE, SETTING, UNSIZED
from tests.perturbations.named import Series
from tests.perturbations.replayed import n_stored_steps
from tests.perturbations.run import Run
from tests.perturbations.scorer import size_of
from tests.perturbations.series import figures, series_of
from tests.perturbations.spec import HELD_OUT, WORLDS, draw_spec
from tests.perturbations.tables import metrics
from tests.perturbations.text import written
from tests.perturbations.text_shapes import text_shapes
from tests.perturbations.truth import Effect, draw_trial, make_trial, whitened

ALL_WORLDS = (*WORLDS, *HELD_OUT)


def _level(node: str, size: float, n_steps: int, onset: int = 20, **other: object) -> Perturbation:
    given = {"part": (), "split": "rollout", "shape": "level", "length": n_steps} | other
    return Perturbation(1, (Change(node, "add", size),), onset=onset, n_steps=n_steps, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("world", ALL_WORLDS)
def test_the_same_seed_writes_the_same_run(world: str) -> None:
    a, b = (compute(Run(draw_spec(world, 5, 20), 0, ())) for _ in range(2))
    assert all(np.array_equal(a.c[name], b.c[name], equal_nan=True) for name in a.c)
    assert all(np.array_equal(a.logged[key], b.logged[key], equal_nan=True) for key in a.logged)


@pytest.mark.parametrize("world", ALL_WORLDS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nothing_differs_before_the_first_onset(world: str, seed: int) -> None:
    trial = draw_trial(draw_spec(world, seed, 40), 2)
    first = min(p.onset for p in trial.perturbations)
    before = trial.run.c["step"] < first
    for name in trial.healthy.c:
        a, b = trial.run.c[name][before], trial.healthy.c[name][before]
        known = trial.run.values.get(name)
        if known is not None:
            texts = [
                [values[c] if c >= 0 else None for c in codes]
                for values, codes in ((known, a), (trial.healthy.values[name], b))
            ]
            assert texts[0] == texts[1], name
        else:
            assert np.array_equal(a, b, equal_nan=True), name
    for key, values in trial.healthy.logged.items():
        if not any(c.node == f"logged {key}" for p in trial.perturbations for c in p.changes):
            assert np.array_equal(trial.run.logged[key][:first], values[:first], equal_nan=True), key


def test_rows_outside_the_part_are_untouched_where_nothing_is_shared() -> None:
    spec = draw_spec("large steps", 4)
    p = _level("log_length", 0.5, spec.n_steps, part=(("engine", "vllm-1"),))
    trial = make_trial(spec, [p], replicates=[compute(Run(spec, 1, ()))])
    outside = ~trial.run.rows_of(p.part)
    assert np.array_equal(trial.run.c["n_sampled"][outside], trial.healthy.c["n_sampled"][outside])
    assert not np.array_equal(trial.run.c["n_sampled"], trial.healthy.c["n_sampled"])


def test_a_tool_that_fails_lowers_the_reward_and_moves_what_is_logged() -> None:
    spec = replace(draw_spec("agent", 6, 60), habits=Habits())
    p = _level("error_rate", 0.7, spec.n_steps, onset=30)
    trial = make_trial(spec, [p], replicates=[compute(Run(spec, n, ())) for n in range(1, 4)])
    late = np.arange(spec.n_steps) >= 30

    def moved(column: str, statistic: str = "mean") -> float:
        effect = trial.effect(Series(column, None, statistic), (), p)
        assert effect is not None
        return effect.mean(late)

    assert moved("n_tool_errors") > 0.5
    assert moved("success") < -0.1 and moved("reward") < -0.1
    assert moved("time/step", "logged") == 0.0
    assert moved("train/grad_norm", "logged") != 0.0
    assert moved("n_prompt") == 0.0


def test_a_size_is_the_matched_filters_signal_to_noise() -> None:
    n, at, jump, sd = 100, 60, 0.5, 2.0
    difference = np.where(np.arange(n) >= at, jump, 0.0)
    white = Effect(difference, np.full(n, sd), 0.0)
    after = n - at
    assert white.size(difference) == pytest.approx(jump / sd * np.sqrt(after * (1 - after / n)))


def test_a_size_says_how_often_the_matched_filter_would_tell_it_from_noise() -> None:
    n, rho, sd = 80, 0.6, 1.5
    difference = np.where((np.arange(n) >= 30) & (np.arange(n) < 50), 1.2, 0.0)
    effect = Effect(difference, np.full(n, sd), rho)
    rng = np.random.default_rng(0)
    shown = []
    for _ in range(3000):
        noise = np.empty(n)
        noise[0] = rng.normal()
        for t in range(1, n):
            noise[t] = rho * noise[t - 1] + np.sqrt(1 - rho**2) * rng.normal()
        level = whitened(np.ones(n), rho)
        y, x = whitened(difference / sd, rho), whitened(difference / sd + noise, rho)
        y -= level * (y @ level) / (level @ level)
        shown.append(y @ x / np.sqrt(y @ y))
    assert np.mean(shown) == pytest.approx(effect.size(difference), rel=0.03)
    assert np.std(shown) == pytest.approx(1.0, abs=0.05)


def test_perturbations_are_about_as_large_as_they_were_drawn() -> None:
    small = draw_trial(draw_spec("large steps", 11), 1)
    assert figures(small.run, Series("reward", None, "mean"), ()) is not None
    sizes = []
    for seed in range(12):
        trial = draw_trial(draw_spec("short math", seed, 40), 1)
        sizes.append(size_of(trial, trial.perturbations[0]).size)
    assert sum(1.5 <= s <= 60 for s in sizes) >= 9


def test_rows_that_were_really_logged_are_shown_as_they_are_where_nothing_is_perturbed() -> None:
    spec = draw_spec("replayed", 1)
    run = compute(Run(spec, 0, ()))
    train = run.train
    assert run.spec.n_steps == n_stored_steps() and train.sum() == spec.n_steps * 64
    rebuilt = sum(w * run.c[f"component/{name}"] for name, w in (spec.components or {}).items())
    assert np.allclose(rebuilt, run.c["reward"], atol=1e-5)
    assert len(set(written(run, range(200)))) > 100


def test_beside_an_unknown_drift_a_late_level_shows_less_and_a_spike_as_much() -> None:
    steps = np.arange(40)
    level, spike = (steps >= 24).astype(float), (steps == 24).astype(float)
    of_level, of_spike = (Effect(shape, np.full(40, 0.2), 0.0) for shape in (level, spike))
    assert of_level.size_beside_drift(level) < 0.7 * of_level.size(level)
    assert of_spike.size_beside_drift(spike) > 0.9 * of_spike.size(spike)


def test_beside_an_unknown_drift_a_parabola_shows_nothing() -> None:
    curve = np.linspace(-1, 1, 40) ** 2
    effect = Effect(curve, np.full(40, 0.2), 0.3)
    assert effect.size(curve) > 4
    assert effect.size_beside_drift(curve) < 1e-6


def _computed(
    world: str, seed: int, habits: Habits, n_steps: int = 40, noise: int = 0, **other: object
) -> Run:
    """A healthy run of a world with some habits."""
    drawn = draw_spec(world, seed, n_steps)
    spec = replace(drawn, habits=habits, **other)  # type: ignore[arg-type]
    return compute(Run(spec, noise, ()))


def test_every_habit_and_every_trainer_comes_in_some_worlds_and_not_in_others() -> None:
    drawn = [draw_spec("anything", seed).habits for seed in range(200)]
    for one in fields(Habits):
        assert len({getattr(habits, one.name) for habits in drawn}) > 1, one.name
    keys = [set(compute(Run(draw_spec("evaluated", seed, 20), 0, ())).logged) for seed in range(40)]
    for lr in ("train/lr", "actor/lr", "train/learning_rate", "ppo_actor/update/lr"):
        assert any(lr in one for one in keys), lr
    for name in KEYS:
        written = [any(key in one for key in KEYS[name].values()) for one in keys]
        assert any(written), name


def test_a_world_without_habits_logs_a_few_scalars_and_drops_nothing() -> None:
    run = _computed("agent", 6, Habits(), evaluated_every=0)
    assert set(run.logged) == {
        *("train/loss", "train/grad_norm", "train/kl", "train/entropy", "train/lr", "time/step")
    }
    assert run.kept.all() and "discard_reason" not in run.c


@pytest.mark.parametrize("schedule", ["constant", "warm-up", "cosine", "linear", "wsd"])
def test_what_is_planned_has_no_noise_and_a_schedule_rises_and_falls_once(schedule: str) -> None:
    habits = Habits(schedule=schedule, warmup=0.1, settings=True, annealed=True, kl_coef="fixed")
    runs = [_computed("agent", 6, habits, noise=noise) for noise in range(2)]
    planned = [key for key, kind in runs[0].kinds.items() if kind in (SCHEDULE, SETTING, DESIGN)]
    assert {"train/lr", "train/clip_range", "sampling/temperature", "train/kl_coef"} <= set(planned)
    for key in planned:
        assert np.array_equal(runs[0].logged[key], runs[1].logged[key]), key
    lr = runs[0].logged["train/lr"]
    turns = np.diff(np.sign(np.diff(lr))[np.diff(lr) != 0])
    assert lr.max() == pytest.approx(habits.peak) and np.count_nonzero(turns) <= 1
    assert (lr[0] < habits.peak / 2) == (schedule != "constant")
    assert (lr[-1] < habits.peak / 2) == (schedule in ("cosine", "linear", "wsd"))


def test_counters_never_fall_and_count_the_rows() -> None:
    run = _computed("agent", 6, Habits(counters=True, parts=True))
    counted = [key for key, kind in run.kinds.items() if kind == COUNTED]
    assert {"counters/tokens", "counters/samples", "counters/epoch", "time/elapsed"} <= set(counted)
    for key in counted:
        assert (np.diff(run.logged[key]) >= 0).all(), key
    tokens = run.c["n_sampled"] + run.c["n_prompt"]
    assert run.logged["counters/tokens"][-1] == tokens[run.train].sum()
    assert run.logged["counters/samples"][-1] == run.train.sum()
    assert run.logged["time/elapsed"][-1] * 3600 == pytest.approx(run.logged["time/step"].sum())


def test_hours_begin_again_with_a_second_attempt_and_no_size_is_measured_on_them() -> None:
    habits = Habits(counters=True, first_step=2.0, extremes=True)
    run = _computed("agent", 6, habits, resumed=True)
    again = int(run.c["step"][run.c["attempt"] == 1].min())
    assert np.flatnonzero(np.diff(run.logged["time/elapsed"]) < 0).tolist() == [again - 1]
    assert {0, again} == set(np.argsort(run.logged["time/step"])[-2:])
    unsized = {key for key, kind in run.kinds.items() if kind in UNSIZED}
    assert {"time/elapsed", "length/mean", "reward/equal_groups"} <= unsized
    assert not {series.column for series in series_of(run)} & unsized


def test_what_begins_late_or_is_switched_off_has_no_numbers_at_other_steps() -> None:
    habits = Habits(
        benchmark=(0.5, 1.0), profiled=0.25, evaluated=(0.0, 0.6), checkpoint_every=10, parts=True
    )
    run = _computed("agent", 6, habits, evaluated_every=5)
    table = metrics(run).to_pydict()
    steps: dict[str, list[int]] = {}
    for key, step, value in zip(table["key"], table["step"], table["value"], strict=True):
        assert np.isfinite(value), (key, step)
        steps.setdefault(key, []).append(step)
    assert steps["eval/benchmark"] == [20, 25, 30, 35]
    assert steps["profiler/idle_share"] == list(range(10))
    assert steps["eval/score"] == sorted(set(run.c["step"][~run.train])) == [0, 5, 10, 15, 20]
    assert steps["time/checkpoint"] == [9, 19, 29, 39] and steps["time/step"] == list(range(40))
    for key, at in steps.items():
        assert np.flatnonzero(np.isfinite(run.logged[key])).tolist() == at, key
    saving = _computed("agent", 6, replace(habits, checkpoint=9.0))
    assert sorted(np.argsort(saving.logged["time/step"])[-4:]) == [9, 19, 29, 39]


@pytest.mark.parametrize("drops", ["gone", "marked"])
def test_groups_that_earn_the_same_are_dropped_and_more_of_them_as_it_learns(drops: str) -> None:
    run = _computed("short math", 3, Habits(drops=drops), 80, gain=6.0, learning="linear")
    used = run.train & run.kept & (run.c.get("discard_reason", np.full(run.n, -1)) < 0)
    n = int(run.group[-1]) + 1
    solved, size = (np.bincount(run.group[used], w, n) for w in (run.c["success"][used], None))
    equal = (size > 0) & ((solved == 0) | (solved == size))
    of_whole_steps = {int(s) for s in run.c["step"][used & equal[run.group]]}
    for step in of_whole_steps:
        assert equal[run.group[used & (run.c["step"] == step)]].all(), step
    dropped = run.logged["sampling/dropped_groups"]
    groups = len(set(run.group[run.train])) - len(set(run.group[used]))
    assert dropped.sum() == groups > 0 and dropped[60:].mean() > dropped[:20].mean()
    left_out = run.train & run.kept & ~used
    assert left_out.any() == (drops == "marked")
    assert not np.nan_to_num(run.c["update_share"])[left_out].any()


def test_a_step_that_would_lose_all_its_groups_keeps_them() -> None:
    run = _computed("short math", 3, Habits(drops="gone"), 80, gain=12.0, learning="linear")
    assert set(run.c["step"][run.train & run.kept]) == set(range(80))
    assert not run.logged["sampling/dropped_groups"][75:].any()
    assert run.c["success"][run.c["step"] >= 75].all()


def test_prompts_come_again_in_one_order_and_are_learned_by_heart() -> None:
    plain = _computed("short math", 3, Habits(), 80, visits=4.0)
    same = _computed("short math", 3, Habits(same_order=True), 80, visits=4.0)

    def epochs(run: Run) -> list[list[int]]:
        asked = run.c["prompt"][run.c["sample"] == 0].tolist()
        pool = len(set(asked))
        return [asked[i * pool : (i + 1) * pool] for i in range(2)]

    assert epochs(same)[0] == epochs(same)[1] and epochs(plain)[0] != epochs(plain)[1]
    known = _computed("short math", 3, Habits(same_order=True, memorized=2.0), 80, visits=4.0)
    first = same.c["step"] < 15
    assert np.array_equal(known.c["success"][first], same.c["success"][first])
    assert known.c["success"][~first].mean() > same.c["success"][~first].mean() + 0.1


def test_shares_and_batches_change_by_design_as_the_settings_say() -> None:
    run = _computed("large steps", 4, Habits(curriculum=0.5, larger_batch=0.25))
    for i, source in enumerate(run.spec.sources):
        share = run.logged[f"data/share/{source}"]
        assert share[0] != share[-1] and len(set(share)) == 2
        seen = np.bincount(run.c["step"], run.c["source"] == i) / np.bincount(run.c["step"])
        assert abs(seen - share)[:20].mean() < 0.1 and abs((seen - share)[20:].mean()) < 0.03
    assert np.array_equal(run.logged["data/batch_size"], np.bincount(run.c["step"]))
    batch = run.logged["data/batch_size"]
    assert batch[10:].mean() > 1.6 * batch[:10].mean()


@pytest.mark.parametrize("learning", ["plateaus", "fast", "late", "hinge"])
def test_learning_has_its_course_and_a_flat_world_learns_nothing(learning: str) -> None:
    habits = Habits(learning=learning, bend=0.5)
    course = learned(Run(replace(draw_spec("agent", 6, 100), habits=habits, gain=1.0), 0, ()))
    quarters = np.diff(course[[0, 24, 49, 74, 99]])
    most = {"plateaus": 0, "fast": 0, "late": 2, "hinge": 3}[learning]
    assert course[-1] == pytest.approx(1.0, abs=0.02) and quarters[most] > 0.4
    assert (np.diff(course) >= 0).all()
    flat = replace(draw_spec("short math", 6, 100), habits=habits, learning="flat")
    assert not learned(Run(flat, 0, ())).any()


def _logged(
    key: str, how: str, size: float, onset: int, shape: str = "level", length: int = 40
) -> Perturbation:
    changes = (Change(f"logged {key}", how, size),)
    return Perturbation(1, changes, (), "rollout", shape, onset, length, 40)


def test_a_schedule_that_is_begun_anew_goes_from_its_start_once_more() -> None:
    spec = replace(draw_spec("agent", 6, 40), habits=Habits(schedule="cosine", warmup=0.1))
    trial = make_trial(spec, [_logged("train/lr", "again", 1.0, 25)], [compute(Run(spec, 1, ()))])
    was, now = trial.healthy.logged["train/lr"], trial.run.logged["train/lr"]
    assert np.array_equal(now[:25], was[:25]) and np.array_equal(now[25:], was[:15])
    assert size_of(trial, trial.perturbations[0]).series == Series("train/lr", None, "logged")


def test_a_schedule_that_is_drawn_to_begin_anew_lasts_as_long_as_it_differs() -> None:
    found = []
    for seed in range(400):
        spec = draw_spec("short math", seed, 40)
        run = compute(Run(spec, 0, ()))
        rng = np.random.default_rng(seed)
        (p,) = draw_perturbations(run, rng, 1)
        if p.changes[0].how == "again":
            key = p.changes[0].node.removeprefix("logged ")
            without, there = run.logged[key], compute(Run(spec, 0, (p,))).logged[key]
            differs = abs(there - without) > 0.02 * without.max()
            assert differs[p.last]
            assert not differs[: p.onset].any() and not differs[p.last + 1 :].any()
            found.append(p.shape)
        for change in p.changes:
            assert run.kinds.get(change.node.removeprefix("logged ")) not in (DESIGN, *UNSIZED)
    assert {"level", "window"} <= set(found)


def test_a_step_that_hangs_shows_in_hours_and_throughput() -> None:
    spec = replace(draw_spec("agent", 6, 40), habits=Habits(counters=True, parts=True))
    p = _logged("time/step", "add", 30.0, 20, "spike", 1)
    trial = make_trial(spec, [p], [compute(Run(spec, n, ())) for n in range(1, 4)])
    more, less = (
        trial.run.logged[key] - trial.healthy.logged[key]
        for key in ("time/elapsed", "perf/tokens_per_second")
    )
    assert not more[:20].any() and (more[20:] > 0).all()
    assert np.ptp(more[20:]) == pytest.approx(0, abs=1e-9)
    assert np.flatnonzero(less).tolist() == [20] and less[20] < 0


def test_a_share_that_was_always_nought_has_some_noise_and_what_never_moves_is_not_drawn() -> None:
    habits = Habits(extremes=True)
    spec = replace(draw_spec("large steps", 4), habits=habits)
    p = replace(_level("reward", 0.3, spec.n_steps), changes=(Change("reward", "tie", 0.3),))
    trial = make_trial(spec, [p], [compute(Run(spec, n, ())) for n in range(1, 4)])
    equal = Series("reward/equal_groups", None, "logged")
    effect, late = trial.effect(equal, (), p), np.arange(spec.n_steps) >= 20
    assert not trial.healthy.logged["reward/equal_groups"].any() and effect is not None
    assert effect.mean(late) > 0.1 and 5 < effect.size(p.envelope()) < 100
    still = compute(Run(replace(spec, habits=replace(habits, profiled=0.2, memory="flat")), 0, ()))
    still.logged["memory/allocated_gb"][:] = 50.0
    drawn = draw_perturbations(still, np.random.default_rng(0), 300)
    nodes = {p.changes[0].node for p in drawn}
    assert "logged train/loss" in nodes
    assert not nodes & {"logged memory/allocated_gb", "logged profiler/idle_share"}


def test_rollouts_that_are_left_out_for_another_reason_have_no_weight() -> None:
    spec = replace(draw_spec("agent", 6, 40), habits=Habits(drops="overlong"))
    change = Change("discard_reason", "set", 0.5, "stale")
    p = replace(_level("reward", 0.3, 40), changes=(change,))
    trial = make_trial(spec, [p], [compute(Run(spec, 1, ()))])
    effect = trial.effect(Series("discard_reason", "stale", "share"), (), p)
    assert effect is not None and effect.mean(np.arange(40) >= 20) == pytest.approx(0.5, abs=0.06)
    c, stale = trial.run.c, trial.run.values["discard_reason"].index("stale")
    assert not np.nan_to_num(c["update_share"])[c["discard_reason"] == stale].any()


def test_how_much_three_rollouts_carry_is_read_from_the_rows_that_have_a_share() -> None:
    run = compute(Run(draw_spec("agent", 6, 20), 0, ()))
    carried = figures(run, Series("update/top3_share", None, "mean"), ())
    share, step = run.c["update_share"], run.c["step"]
    assert carried is not None
    for one in range(20):
        known = np.sort(share[(step == one) & run.train & (share >= 0)])
        assert carried.value[one] == pytest.approx(known[-3:].sum() / known.sum())
    shorter = compute(Run(draw_spec("agent", 6, 20), 0, ()))
    shorter.c["update_share"][np.flatnonzero((step == 5) & run.train)[3:]] = np.nan
    few = figures(shorter, Series("update/top3_share", None, "mean"), ())
    assert few is not None and np.isnan(few.value[5]) and np.isfinite(few.value[6])
    assert figures(run, Series("update/top3_share", "3", "share"), ()) is None


def test_a_covariance_grows_with_the_reward_and_a_correlation_does_not() -> None:
    small, large = (compute(Run(draw_spec("long code", 3, 20), 0, ())) for _ in range(2))
    large.c["reward"] = 3 * large.c["reward"]
    for name, ratio in (("covariance", 3.0), ("correlation", 1.0)):
        was, now = (figures(run, Series("n_sampled", None, name), ()) for run in (small, large))
        assert was is not None and now is not None
        assert now.value == pytest.approx(ratio * was.value) and np.isfinite(was.value).all()


def test_no_size_is_measured_on_a_series_that_judges_entries_alone() -> None:
    sized = set(series_of(compute(Run(draw_spec("agent", 6, 20), 0, ()))))
    assert Series("n_sampled", None, "correlation") in sized
    assert not {one for one in sized if one.statistic == "covariance"}
    assert not {one for one in sized if one.column.startswith(("written/", "update/", "group/prompts"))}


@pytest.mark.parametrize(
    ("column", "text", "value", "holds"),
    [
        ("written/script", "so it is", "Latin", 1),
        ("written/script", "so это is it", "Latin with Cyrillic", 1),
        ("written/script", "so это is it", "Cyrillic with Latin", 0),
        ("written/script", "so это is it", "Latin", 0),
        ("written/script", "we see 方程 here", "Latin with Chinese or Japanese", 1),
        ("written/answer", "#### 3", "hashes", 1),
        ("written/answer", "The answer is \\boxed{3}.", "boxed", 1),
        ("written/answer", "The answer is \\boxed{3}.", "final answer", 0),
        ("written/answer", "**Final answer:** 3", "final answer", 1),
        ("written/refusal", "I'm sorry, no", "refusal", 1),
        ("written/refusal", "I can read it", "refusal", 0),
    ],
)
def test_a_text_is_of_a_shape(column: str, text: str, value: str, holds: int) -> None:
    found = text_shapes([text], column, value)
    assert found is not None and found.tolist() == [holds]


@pytest.mark.parametrize(
    ("column", "value"), [("written/script", "Klingon"), ("written/answer", None), ("written/mood", "glad")]
)
def test_a_text_of_a_shape_that_is_not_known_has_no_truth(column: str, value: str | None) -> None:
    assert text_shapes(["so"], column, value) is None
