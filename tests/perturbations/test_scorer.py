"""A perfect report scores 1, an empty one finds nothing, and what is wrong is called so."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.perturbations.change import Change, Perturbation
from tests.perturbations.claims import claims_of
from tests.perturbations.habits import Habits
from tests.perturbations.named import Series
from tests.perturbations.plot import recall_plot
from tests.perturbations.reports import empty_report, entry, perfect_report
from tests.perturbations.scorer import judge, of_population, size_of
from tests.perturbations.scores import scores, table, worst
from tests.perturbations.series import figures, thinned
from tests.perturbations.spec import draw_spec
from tests.perturbations.truth import Trial, draw_trial, make_trial
from tests.perturbations.trying import ask, scored, try_seed

SEEDS = range(300, 312)
VISIBLE = 5.0
"""Size from which a perturbation has a series that an entry may speak of."""
WORLD_NAMES = ("agent", "short math", "long code", "alternating", "evaluated", "large steps")


@pytest.fixture(scope="module")
def trials() -> list[Trial]:
    """A small set of seeds that never changes."""
    return [draw_trial(draw_spec(WORLD_NAMES[s % 6], s, 40), 1 + s % 3) for s in SEEDS]


@pytest.fixture(scope="module")
def slow_engine() -> Trial:
    """One engine of eight whose rollouts are longer from step 15 to 25."""
    spec = draw_spec("large steps", 8)
    p = Perturbation(
        1,
        (Change("log_length", "add", 0.6),),
        (("engine", "vllm-1"),),
        "rollout",
        "window",
        15,
        10,
        spec.n_steps,
    )
    return make_trial(spec, [p])


def _records(trials: list[Trial], report_of: Any) -> list[dict[str, Any]]:
    records = []
    for trial in trials:
        claims, problems = claims_of(report_of(trial))
        records.append(
            {
                "seed": trial.spec.seed,
                "world": trial.spec.world,
                "n_steps": trial.spec.n_steps,
                "problems": problems,
                "seconds": 0.0,
            }
            | scored(trial, claims)
        )
    return records


def test_a_perfect_report_scores_one(trials: list[Trial]) -> None:
    records = _records(trials, perfect_report)
    for record in records:
        record["perturbations"] = [p for p in record["perturbations"] if p["size"] >= VISIBLE]
    assert sum(len(r["perturbations"]) for r in records) >= 8
    found = scores(records)
    assert found["recall, all sizes"] == 1.0
    assert found["precision of warnings and errors"] == 1.0
    assert found["onset covered"] == 1.0
    assert found["never hidden under another"] == 1.0
    assert found["runs with an exception"] == 0.0


def test_an_empty_report_finds_nothing(trials: list[Trial]) -> None:
    found = scores(_records(trials, lambda trial: empty_report()))
    assert found["recall, all sizes"] == 0.0
    assert found["precision of warnings and errors"] is None


def test_a_report_about_other_steps_is_false(trials: list[Trial]) -> None:
    found = scores(_records(trials, lambda trial: perfect_report(trial, step=0, onset=(0, 0), last=1)))
    assert found["recall, all sizes"] == 0.0
    assert found["precision of warnings and errors"] == 0.0


def test_a_report_about_a_series_that_is_not_there_is_false(trials: list[Trial]) -> None:
    wrong = (SimpleNamespace(column="extra/nothing", value=None, statistic="mean"),)
    found = scores(_records(trials, lambda trial: perfect_report(trial, series=wrong)))
    assert found["recall, all sizes"] == 0.0
    assert found["precision of warnings and errors"] == 0.0


def _judged(trial: Trial, **other: Any) -> Any:
    p = trial.perturbations[0]
    length = size_of(trial, p).series
    assert length is not None
    report = SimpleNamespace(diagnoses=(entry(length, p, **other),), problems=())
    return judge(trial, claims_of(report)[0][0])


def test_the_perturbed_part_is_true_and_a_hit(slow_engine: Trial) -> None:
    assert _judged(slow_engine).true and _judged(slow_engine).hits == {1}


def test_another_engine_is_false(slow_engine: Trial) -> None:
    assert not _judged(slow_engine, part=(("engine", "vllm-0"),)).true


def test_all_rows_are_true_but_no_hit_where_one_engine_has_it(slow_engine: Trial) -> None:
    wide = _judged(slow_engine, part=())
    assert wide.true and not wide.hits


def test_a_source_is_false_where_an_engine_has_it_in_all_sources(slow_engine: Trial) -> None:
    source = _judged(slow_engine, part=(("source", "math"),))
    assert not source.true and source.reason == "wrong part" and not source.hits


def test_another_way_of_cutting_that_holds_the_same_rows_is_named_beside(slow_engine: Trial) -> None:
    beside = _judged(slow_engine, part=(("extra/host", "node-2"),), also=((("engine", "vllm-1"),),))
    assert beside.hits == {1}


def test_an_unknown_part_is_no_hit_where_enough_rows_are_outside(slow_engine: Trial) -> None:
    assert not _judged(slow_engine, part=None).hits


def test_the_other_direction_is_false(slow_engine: Trial) -> None:
    assert _judged(slow_engine, before=300.0, after=500.0).true
    assert _judged(slow_engine, before=500.0, after=300.0).reason == "wrong direction"


def test_what_is_nested_alone_is_hidden(slow_engine: Trial) -> None:
    p = slow_engine.perturbations[0]
    series = size_of(slow_engine, p).series
    assert series is not None
    wrong = entry(series, p, part=(("engine", "vllm-0"),), consequences=(entry(series, p),))
    became = scored(slow_engine, claims_of(SimpleNamespace(diagnoses=(wrong,), problems=()))[0])[
        "perturbations"
    ][0]
    assert became["hidden"] and became["rank"] is None


def test_a_hit_past_the_first_entries_is_none_in_time(slow_engine: Trial) -> None:
    p = slow_engine.perturbations[0]
    series = size_of(slow_engine, p).series
    assert series is not None
    wrong = [entry(series, p, part=(("engine", "vllm-0"),))] * 3
    report = SimpleNamespace(diagnoses=(*wrong, entry(series, p)), problems=())
    became = scored(slow_engine, claims_of(report)[0])["perturbations"][0]
    assert became["rank"] == 4 and not became["in_time"]


def test_an_answer_that_raises_is_counted() -> None:
    def raises(relations: Any, run: str) -> Any:
        raise ZeroDivisionError("nothing")

    claims, problems, _ = ask(raises, None)  # type: ignore[arg-type]
    assert claims == [] and problems == ["raised ZeroDivisionError: nothing"]


def test_an_entry_that_cannot_be_read_is_counted_and_its_siblings_are_read() -> None:
    report = SimpleNamespace(
        diagnoses=(SimpleNamespace(step="never"), SimpleNamespace(step=3)), problems=("a rule raised",)
    )
    claims, problems = claims_of(report)
    assert [c.step for c in claims] == [3] and len(problems) == 2


def test_a_seed_gives_a_whole_record_and_the_tables_print() -> None:
    def one_entry(relations: Any, run: str) -> Any:
        steps = relations.sql("select max(step) s from rollouts where split = 'rollout'").to_pylist()[0]["s"]
        return SimpleNamespace(
            diagnoses=(
                SimpleNamespace(
                    severity="error", sentence="all is lost", series=(), part=(), shape="level", step=steps
                ),
            ),
            problems=(),
        )

    records = [try_seed(seed, WORLD_NAMES, one_entry, capped=True) for seed in (3, 4)]
    found = scores(records)
    assert found["healthy: errors a run"] == 1.0
    assert found["precision of warnings and errors"] == 0.0
    assert "all is lost" in "\n".join(worst(records))
    assert "healthy: errors a run" in table(records)
    assert recall_plot(records).startswith("<svg")


@pytest.fixture(scope="module")
def restarted() -> Trial:
    """A schedule that warms up once more from step 24 on, in a run that logs much beside."""
    habits = Habits(warmup=0.1, counters=True, settings=True, parts=True, extremes=True)
    spec = replace(draw_spec("large steps", 8), habits=habits)
    change = Change("logged train/lr", "again", 1.0)
    p = Perturbation(1, (change,), (), "rollout", "window", 24, 3, spec.n_steps)
    return make_trial(spec, [p])


def _said_of(trial: Trial, series: Series, **other: Any) -> Any:
    p = trial.perturbations[0]
    report = SimpleNamespace(diagnoses=(entry(series, p, **other),), problems=())
    return judge(trial, claims_of(report)[0][0])


def test_a_schedule_that_is_begun_anew_is_true_at_its_steps_alone(restarted: Trial) -> None:
    lr = Series("train/lr", None, "logged")
    assert size_of(restarted, restarted.perturbations[0]).series == lr
    assert _said_of(restarted, lr).true and _said_of(restarted, lr).hits == {1}
    early = _said_of(restarted, lr, step=0, onset=(0, 0), last=3)
    assert not early.true and not early.hits


@pytest.mark.parametrize(
    "key", ["counters/tokens", "train/clip_range", "data/batch_size", "length/max", "time/step"]
)
def test_what_goes_as_planned_beside_it_is_false(restarted: Trial, key: str) -> None:
    assert key in restarted.run.logged
    assert not _said_of(restarted, Series(key, None, "logged")).true


def test_a_setting_that_is_multiplied_is_true_and_a_hit() -> None:
    spec = replace(draw_spec("large steps", 8), habits=Habits(settings=True))
    change = Change("logged train/clip_range", "times", 0.7)
    p = Perturbation(1, (change,), (), "rollout", "level", 20, spec.n_steps, spec.n_steps)
    trial = make_trial(spec, [p])
    now, was = (run.logged["train/clip_range"] for run in (trial.run, trial.healthy))
    assert now[19:21] / was[19:21] == pytest.approx([1.0, np.exp(0.7)])
    one = _said_of(trial, Series("train/clip_range", None, "logged"))
    assert one.true and one.hits == {1}


def test_a_counter_and_a_mean_of_what_became_longer_are_true() -> None:
    spec = replace(draw_spec("large steps", 8), habits=Habits(counters=True, extremes=True))
    change = Change("log_length", "add", 0.6)
    p = Perturbation(1, (change,), (), "rollout", "level", 15, spec.n_steps, spec.n_steps)
    trial = make_trial(spec, [p])
    assert _said_of(trial, Series("counters/tokens", None, "logged")).true
    assert _said_of(trial, Series("length/mean", None, "logged")).hits == {1}


def _level(node: str, how: str, size: float, value: str | None = None, **other: Any) -> Perturbation:
    """A change from step 20 on."""
    given = {"part": (), "shape": "level", "length": 40} | other
    return Perturbation(1, (Change(node, how, size, value),), split="rollout", onset=20, n_steps=40, **given)


@pytest.fixture(scope="module")
def few_carry() -> Trial:
    """Four rollouts of a step weigh much more in its update, at steps 20 and 21."""
    heavy = _level("weight", "scale", 5.0, shape="spike", length=2, carriers=4)
    return make_trial(draw_spec("agent", 7, 40), [heavy])


def test_how_much_three_rollouts_carry_is_true_at_its_steps_alone(few_carry: Trial) -> None:
    carried = Series("update/top3_share", None, "mean")
    one = _said_of(few_carry, carried, before=0.15, after=0.7)
    assert one.true and one.hits == {1}
    early = _said_of(few_carry, carried, step=5, onset=(5, 5), last=6)
    assert early.reason == "no difference at its steps" and not early.hits
    assert _said_of(few_carry, carried, before=0.7, after=0.15).reason == "wrong direction"


def test_how_much_three_rollouts_carry_has_a_wrong_part(few_carry: Trial) -> None:
    part = (("source", "retail"),)
    assert _said_of(few_carry, Series("update/top3_share", None, "mean"), part=part).reason == "wrong part"


@pytest.fixture(scope="module")
def longer_is_better() -> Trial:
    """Longer rollouts of one source earn more from step 20 on."""
    spec = draw_spec("large steps", 8, 40)
    return make_trial(spec, [_level("reward", "bias", 0.5, part=(("source", spec.sources[0]),))])


def test_a_covariance_is_true_of_the_rows_and_the_column_that_have_it(longer_is_better: Trial) -> None:
    together = Series("n_sampled", None, "covariance")
    one = _said_of(longer_is_better, together)
    assert one.true and one.hits == {1}
    assert not _said_of(longer_is_better, together, step=5, onset=(5, 5), last=9).true
    assert not _said_of(longer_is_better, Series("n_prompt", None, "covariance")).true
    assert not _said_of(longer_is_better, Series("n_sampled", None, "mean")).true
    other = (("source", longer_is_better.spec.sources[1]),)
    assert not _said_of(longer_is_better, together, part=other).true


def test_a_covariance_is_true_of_rewards_that_spread_where_no_correlation_is() -> None:
    trial = make_trial(draw_spec("long code", 3, 40), [_level("reward", "scale", 1.5)])
    late = np.arange(40) >= 20
    p = trial.perturbations[0]
    sizes = [
        effect.size(late)
        for name in ("covariance", "correlation")
        if (effect := trial.effect(Series("n_sampled", None, name), (), p))
    ]
    assert sizes[0] > 3 and sizes[1] < 1
    assert _said_of(trial, Series("n_sampled", None, "covariance")).true


WROTE = {
    "written/refusal": ("I am sorry, but I cannot", "refusal", None),
    "written/script": ("Сначала я проверю условие задачи.", "Latin with Cyrillic", "Latin with Indic"),
    "written/answer": ("```python", "code block", "answer tag"),
}


@pytest.mark.parametrize("column", list(WROTE))
def test_what_texts_are_like_is_true_of_the_rows_that_write_so(column: str) -> None:
    phrase, value, wrong = WROTE[column]
    spec = replace(draw_spec("large steps", 8, 40), cap=0)
    trial = make_trial(spec, [_level("written", "write", 0.8, phrase, part=(("engine", "vllm-1"),))])
    shape = Series(column, value, "share")
    one = _said_of(trial, shape)
    assert one.true and one.hits == {1}
    assert not _said_of(trial, shape, step=5, onset=(5, 5), last=9).true
    assert _said_of(trial, shape, part=(("source", spec.sources[0]),)).reason == "wrong part"
    if wrong:
        assert _said_of(trial, Series(column, wrong, "share")).reason == "no difference at its steps"
    assert _said_of(trial, Series(column, "unheard of", "share")).reason.startswith("no such series")


def test_what_texts_are_like_is_known_of_traces_alone() -> None:
    spec = replace(draw_spec("large steps", 8, 40), cap=8)
    trial = make_trial(spec, [_level("written", "write", 0.1, "I am sorry, but I cannot")])
    refusal = Series("written/refusal", "refusal", "share")
    assert thinned(trial.run, refusal) < 0.5
    report = SimpleNamespace(diagnoses=(entry(refusal, trial.perturbations[0]),), problems=())
    assert not of_population(claims_of(report)[0][0])


def test_prompts_come_again_where_a_step_is_shown_twice_which_no_perturbation_did() -> None:
    spec = draw_spec("replayed", 1)
    given = {"onset": 12, "n_steps": spec.n_steps}
    trial = make_trial(spec, [replace(_level("reward", "add", 0.5), **given)])
    again = Series("group/prompts", "again", "share")
    found, c = figures(trial.run, again, ()), trial.run.c
    assert found is not None and set(found.value) == {0.0, 1.0}
    asked = [set(c["prompt"][trial.run.train & (c["step"] == step)]) for step in range(spec.n_steps)]
    assert all(asked[step] == asked[step - 1] for step in np.flatnonzero(found.value))
    assert _said_of(trial, again).reason == "no difference at its steps"
