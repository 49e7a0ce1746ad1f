"""The truth is what differs between two runs on the same random numbers, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from tests.perturbations.change import Change, Perturbation
from tests.perturbations.equations import compute
from tests.perturbations.named import Series
from tests.perturbations.replayed import n_stored_steps
from tests.perturbations.run import Run
from tests.perturbations.scorer import size_of
from tests.perturbations.series import figures
from tests.perturbations.spec import HELD_OUT, WORLDS, draw_spec
from tests.perturbations.text import written
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
    spec = draw_spec("agent", 6, 60)
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
