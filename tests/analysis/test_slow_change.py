"""What is learned, told from what turns, bends upwards or falls at once."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_traces.analysis import diagnose
from rollout_traces.analysis.curves import SeriesName
from rollout_traces.analysis.detected_movement import beside, constant_basis
from rollout_traces.analysis.diagnosis import Diagnosis
from rollout_traces.analysis.noise import crude
from rollout_traces.analysis.panel import Panel
from rollout_traces.analysis.run_rows import RunRows
from rollout_traces.analysis.scan import Template
from rollout_traces.analysis.slow_change import beside_learning, less_of_all
from tests.analysis.builders import steps, table, uniform
from tests.analysis.test_movements import drawn, happens, logged, told
from tests.perturbations.spec import draw_spec
from tests.perturbations.tables import Relations
from tests.perturbations.truth import draw_trial

SEEDS = range(3)


def of_logged(values_T: np.ndarray, key: str = "train/critic_loss") -> list[Diagnosis]:
    relations = logged(steps(len(values_T)), values_T.tolist(), key)
    return [each for each in diagnose(relations, "run").diagnoses if each.series[0].column == key]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loss_that_falls_and_then_diverges_is_said_from_where_it_turned(seed):
    """Seen once: a value loss eight times as large stood in “also rose” of what is learned."""
    t = np.arange(70)
    noise = np.random.default_rng(seed).normal(0, 0.003, 70)
    values = 0.015 + 0.05 * np.exp(-t / 12) + 0.02 * (np.exp(np.maximum(t - 50, 0) / 8) - 1) + noise
    entry = of_logged(values)[0]
    assert (entry.severity, entry.shape) in (("warn", "ramp"), ("error", "ramp"))
    assert 44 <= entry.step <= 58 and entry.before is not None and entry.after is not None
    assert entry.after > 2 * entry.before


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_learned_fast_and_then_less_does_not_turn(seed):
    t = np.arange(80)
    values = 0.4 + 0.4 * (1 - np.exp(-t / 15)) + np.random.default_rng(seed).normal(0, 0.02, 80)
    assert {each.severity for each in of_logged(values, "train/score")} == {"info"}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_reward_that_is_halved_at_once_is_an_error_and_no_learning(seed):
    """Seen once: a reward that lost half in one step was info, as a curve over a fifth of the run was nearly as likely."""

    def reward(s: int, g: int, i: int) -> float:
        return (0.37 + 0.05 * drawn(s, g, 0, seed) + 0.2 * drawn(s, g, i, seed + 9)) * (0.5 if s >= 50 else 1)

    [entry] = told(table(steps(90, reward=reward)))
    assert entry.severity == "error" and entry.onset[0] <= 50 <= entry.onset[1]
    assert str(entry.series[0]) == "reward" and entry.sentence.startswith("the reward falls")


def test_a_reward_that_falls_slowly_is_no_learning():
    """Seen once: a policy that collapsed over twenty steps was told as learning."""

    def reward(s: int, g: int, i: int) -> float:
        return 0.5 - 0.4 * min(max(s - 60, 0) / 20, 1) + 0.3 * drawn(s, g, i)

    entries = told(table(steps(100, reward=reward)))
    assert entries and entries[0].after < entries[0].before


def test_a_phrase_is_an_alarm_only_where_it_is_new():
    """Seen once: “is” was written less often, an error, where answers took another form."""

    def texts(rows: list[dict[str, object]], old: float, new: float) -> list[dict[str, str]]:
        def written(row: dict[str, object]) -> str:
            s, g, i = int(row["step"]), int(row["group"]), int(row["sample"])  # type: ignore[call-overload]
            own = " ".join(f"word{int(abs(drawn(s, g, i, k)) * 1e6)}" for k in range(6))
            share = old if s < 30 else new
            return f"{own} and so I think it is right" if happens(share, s, g, i) else own

        return [{"uid": str(row["uid"]), "written": written(row)} for row in rows]

    rows = steps(60, traced=True, selected_by="random", selected_probability=1.0)
    for at, row in enumerate(rows):
        row |= {"uid": f"u{at}", "id": f"u{at}", "sample": at % 4}
    less = diagnose(table(rows, texts(rows, 0.6, 0.2)), "run").diagnoses
    assert {each.severity for each in less if each.series[0].column == "written"} == {"info"}
    came = diagnose(table(rows, texts(rows, 0.0, 0.4)), "run").diagnoses
    assert "error" in {each.severity for each in came if each.series[0].column == "written"}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_divergence_is_said_from_where_it_ran_away_and_not_as_learning(seed):
    """Seen once: a divergence from the reference twenty times as large was told as learning, or “perhaps by chance” since step 8."""
    t = np.arange(60)
    plain = 0.0005 + 0.008 * (1 - np.exp(-t / 15))
    values = (plain + 0.008 * (np.exp(np.maximum(t - 35, 0) / 8) - 1)) * np.exp(
        np.random.default_rng(seed).normal(0, 0.04, 60)
    )
    entry = of_logged(values, "train/kl")[0]
    assert entry.shape == "ramp" and abs(entry.step - 35) <= 3


@pytest.mark.parametrize("seed", SEEDS)
def test_a_number_that_grows_ever_less_does_not_run_away(seed):
    t = np.arange(60)
    values = 0.0005 + 0.03 / (1 + np.exp(-(t - 20) / 4)) * np.exp(
        np.random.default_rng(seed).normal(0, 0.04, 60)
    )
    assert {each.severity for each in of_logged(values, "train/kl")} == {"info"}


class TestFallsBesideLearning:
    """Seen once, each: not said, or said upside down."""

    @staticmethod
    def solved(share, n_parts=1, what=5, spread=0.0):
        """A success of rollouts by their share, a function of the step and whose they are; prompts differ by a spread."""

        def success(step: int, group: int, sample: int) -> int:
            easy = spread * (uniform(step, group, what) - 0.5)
            return int(uniform(step, group, sample, what) < share(step, sample % n_parts) + easy)

        return success

    @pytest.mark.parametrize("what", [5, 6, 7])
    def test_an_engine_that_solves_less_from_the_eighth_of_forty_steps_on_is_named(self, what):
        """Seen once: the engine's level was taken for noise that lasts, as none of the others has."""

        def share(step: int, engine: int) -> float:
            return (0.5 + 0.2 * step / 40) * (0.5 if step >= 8 and engine == 5 else 1.0)

        rows = steps(
            40, 48, 6, success=self.solved(share, 6, what, 1.0), engine=lambda s, g, i: f"engine-{i}"
        )
        [entry] = told(table(rows))
        assert entry.part == (("engine", "engine-5"),) and entry.onset[0] <= 8 <= entry.onset[1]

    @pytest.mark.parametrize("what", [5, 6, 7])
    def test_a_fall_for_eight_steps_is_told_and_not_what_rises_behind_it(self, what):
        def share(step: int, _: int) -> float:
            return 0.3 if 20 <= step < 28 else 0.4 + 0.3 * (1 - np.exp(-step / 20))

        [entry] = told(table(steps(60, 16, 8, success=self.solved(share, what=what))))
        assert (entry.severity, entry.step, entry.last) == ("error", 20, 27) and entry.after < entry.before

    @pytest.mark.parametrize("what", [5, 6, 7])
    def test_what_is_hardly_solved_at_first_is_learned_late(self, what):
        """Seen once: an error that success rises, and one that fewer groups are tied."""

        def share(step: int, _: int) -> float:
            return 0.03 + 0.65 / (1 + np.exp(-(step - 40) / 2.5))

        success = self.solved(share, what=what)
        rows = steps(60, 16, 8, success=success, reward=success, **{"component/correct": success})
        assert not told(table(rows))

    def test_an_evaluation_whose_answers_are_cut_off_from_its_fourth_time_on_is_an_error(self):
        def stop_reason(step: int, group: int, sample: int) -> str:
            return "length" if step >= 30 and happens(0.7, step, group, sample) else "stop"

        evaluated = steps(70, 100, 1, split="eval-rollout", stop_reason=stop_reason, success=1)
        rows = steps(70, 4, success=0, stop_reason="stop") + [
            row for row in evaluated if row["step"] % 10 == 0
        ]
        first = told(table(rows))[0]
        assert (first.severity, first.step, str(first.series[0])) == (
            "error",
            30,
            "eval-rollout/stop_reason length",
        )


def all_and_a_host(of_all: np.ndarray, of_host: np.ndarray) -> Panel:
    """A measure of all rows and of one host, of which more than half of what the others do is taken off already."""
    n = len(of_all)
    rows = RunRows(
        np.arange(n),
        np.arange(n),
        np.arange(n),
        {"extra/host": (np.zeros(n, int), ["h1"])},
        of_prompts={"extra/host": False},
    )
    many, values = np.full((2, n), 40.0), np.stack([of_all, of_host])
    name = SeriesName("reward")
    return Panel(
        np.arange(n),
        (name, name),
        ((), (("extra/host", "h1"),)),
        values,
        np.full((2, n), 1e-4),
        many,
        many,
        ("", ""),
        values,
        np.full(2, np.nan),
        rows,
        control=np.asarray([0.0, 0.6]),
    )


def test_a_host_does_not_move_where_all_learn_late_whose_curve_alone_would_hold_the_rise_too():
    """Seen once: a curve and then a rise beside it were taken off one by one, so that a host fell by what was taken twice."""
    n = 40
    t = np.arange(n)
    late = 0.3 * Template("ramp", 21, 34).over(n) + 0.002 * t
    panel = all_and_a_host(0.6 + late, 0.65 + 0.4 * late)
    noise = crude(panel.values, panel.errors)
    _, _, basis, of_all = beside_learning(panel, noise, constant_basis(panel))
    basis = beside(basis, Template("ramp", 21, 34).over(n)[None])
    of_all = (*of_all, (slice(basis.shape[1] - 1, basis.shape[1]), panel.beside_rest))
    left, _ = less_of_all(panel, noise, basis, of_all)
    assert np.ptp(left.values[1]) < 0.01 < 0.1 < np.ptp(panel.values[1])


@pytest.mark.parametrize("selected_by", ["random", "all"])
def test_a_phrase_that_is_there_for_a_while_alone_is_no_slow_change(selected_by):
    """Seen once: an info, below what was learned, of a phrase in half of the answers from step 30 to 43 and in none else."""
    rng = np.random.default_rng(2)
    words = ["then", "add", "both", "sides", "and", "carry", "one", "over", "to", "the", "left"]
    rows = [
        {**row, "uid": f"u{at}", "traced": True, "selected_by": selected_by, "selected_probability": 1.0}
        for at, row in enumerate(steps(70, groups=6, size=4))
    ]
    texts = [
        {
            "uid": row["uid"],
            "written": " ".join(rng.choice(words, 30))
            + (" as we all know it" if 30 <= row["step"] < 44 and rng.random() < 0.5 else ""),
        }
        for row in rows
    ]
    found = told(table(rows, texts))
    assert {(each.name, each.severity, each.step, each.last) for each in found} == {
        ("a phrase is written more often", "error", 30, 43)
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_a_part_that_gets_far_more_late_in_a_short_run_in_which_all_learn_is_an_error(seed):
    """Seen once: a judge that gave 0.97 for 0.45 in one suite, “perhaps slow change or noise that lasts”: a line over a fifth of 40 steps is nearly a step."""

    def judged(s: int, g: int, i: int) -> float:
        lenient = 0.5 if g % 3 == 0 and s >= 32 else 0.0
        return 0.4 + 0.003 * s + lenient + 0.15 * drawn(s, g, i, seed) + 0.1 * drawn(s, g, 0, seed + 5)

    rows = steps(40, groups=9, **{"component/judge": judged, "source": lambda s, g, i: "abc"[g % 3]})
    entry = told(table(rows))[0]
    assert entry.severity in ("warn", "error") and (entry.part, entry.step) == ((("source", "a"),), 32)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_source_learned_by_few_evaluations_and_lost_at_once_is_lost_since_then(seed):
    """Seen once: an error that a component rose, from the middle of what was learned to where it fell."""

    def judged(s: int, g: int, i: int) -> float:
        learned = 0.12 * np.clip((s - 75) / 75, 0, 1) * (g % 2 == 0) * (s < 150)
        return 0.45 + learned + 0.06 * drawn(s, g, i, seed)

    own = {"component/judge": judged, "source": lambda s, g, i: "ab"[g % 2]}
    evaluated = [row for row in steps(200, groups=12, split="eval-rollout", **own) if row["step"] % 5 == 0]
    entry = told(table([*steps(200), *evaluated]))[0]
    assert entry.part == (("source", "a"),) and entry.step == 150
    assert entry.after is not None and entry.before is not None and entry.after < entry.before


@pytest.mark.parametrize("seed", (12, 28, 53))
def test_a_source_that_was_paid_more_for_five_steps_has_lost_nothing(seed):
    """Seen once: “the reward falls, since step 28”, where it was 0.48 before step 23 and is 0.5 since 28."""
    rng = np.random.default_rng([11, seed])
    rows = []
    for s in range(40):
        for g, of_group in enumerate(rng.normal(0, 0.5, 12)):
            more = 0.3 if g % 3 == 1 and 23 <= s < 28 else 0.0
            for reward in 0.5 + 0.2 * (of_group + rng.normal(size=4)) + more:
                rows.append({"step": s, "group": g, "source": "abc"[g % 3], "reward": float(reward)})
    [entry] = told(table(rows))
    assert (entry.shape, entry.part) == ("window", (("source", "b"),))


def test_rewards_of_an_engine_that_all_had_learned_and_it_lost_are_lost_since_then():
    """Seen once: they “rose” from step 9, where all had learned most, to 44."""
    run = draw_trial(draw_spec("alternating", 585329), 1).run
    entry = next(each for each in told(Relations(run)) if SeriesName("reward") in each.series)
    assert abs(entry.step - 45) <= 1 and entry.after is not None and entry.before is not None
    assert entry.after < entry.before


def test_a_component_that_is_learned_and_then_falls_by_and_by_is_not_said_to_rise():
    """Seen once: it fell from 0.88 to 0.76 at step 11, "rose from 0.74 to 0.774, since step 9": of the steps before most were those in which it was learned."""

    def share(s: int) -> float:
        return 0.6 + 0.035 * s if s < 9 else 0.915 - 0.02 * min(s - 8, 8)

    rows = steps(
        30, groups=16, size=8, **{"component/format": lambda s, g, i: float(happens(share(s), s, g, i))}
    )
    later = [each for each in diagnose(table(rows), "run").diagnoses if each.step > 5]
    assert later and all(
        " fell from 0.8" in each.sentence or " fell from 0.9" in each.sentence for each in later
    )


def test_what_one_source_alone_does_by_and_by_is_said_of_it():
    """Seen once: answers of one source were cut off, 16 to 51 %, and stood among what all rollouts did since step 0."""

    def stop_reason(s: int, g: int, i: int) -> str:
        share = 0.16 + (0.35 * min(max(s - 16, 0), 8) / 8 if g % 2 else 0.0)
        return "length" if happens(share, s, g, i) else "stop"

    rows = steps(
        30, groups=12, size=8, source=lambda s, g, i: ("gaia", "hotpot")[g % 2], stop_reason=stop_reason
    )
    [entry] = diagnose(table(rows), "run").diagnoses
    assert entry.part == (("source", "hotpot"),) and "answers are cut off" in entry.sentence


class TestToolsThatFailMore:
    """Seen once: a tool failed ever more often from the middle of a run on, and “the policy became more certain; also rose: n_tool_errors”."""

    @pytest.mark.parametrize("seed", SEEDS)
    def test_are_no_learning(self, seed):
        def errors(s: int, g: int, i: int) -> int:
            return int(happens(0.04 + 0.024 * max(s - 20, 0), s, g, 1000 * seed + i))

        entry = told(table(steps(40, groups=10, n_tool_errors=errors)))[0]
        assert (entry.severity, entry.shape, entry.name) == ("error", "ramp", "tools fail")
        assert 16 <= entry.step <= 27

    @pytest.mark.parametrize("seed", SEEDS)
    def test_as_more_calls_are_made_are(self, seed):
        def calls(s: int, g: int, i: int) -> int:
            return sum(happens(0.2 + 0.6 * s / 40, s, g, 1000 * seed + 10 * i + at) for at in range(6))

        def errors(s: int, g: int, i: int) -> int:
            n = calls(s, g, i)
            return sum(happens(0.15, s, g, 1000 * seed + 100 + 10 * i + at) for at in range(n))

        found = told(table(steps(40, groups=10, n_tool_calls=calls, n_tool_errors=errors)))
        assert {each.severity for each in found} <= {"info"}


SOLVED = """
10 12 11 14 13 12 12 12 12 10 18 15 14 11 13 13 9 16 12 10 13 11 13 13 13 17 18 15 16 10 12 15 11 15 9 11 19 13 16 17
21 17 13 13 11 10 15 11 10 17 15 16 13 14 6 10 16 12 14 10 8 11 7 5 12 12 9 11 8 9 5 6 9 8 8 6 3 14 11 6
12 11 10 9 10 6 5 8 20 15 13 15 17 15 18 16 17 13 15 18 19 17 15 16 15 21 14 13 22 13 16
"""
"""Of 27 rollouts of a step, how many were solved."""


def test_success_that_falls_for_a_third_of_a_run_is_no_learning():
    """Seen once: 13 of 27 solved, 9 of 27 from step 54 to 87 and 16 since, and “the reward rises, since step 88”."""
    solved = [int(n) for n in SOLVED.split()]
    rows = steps(len(solved), groups=27, size=1, success=lambda s, g, i: int(g < solved[s]))
    [entry] = diagnose(table(rows), "run").diagnoses
    assert entry.sentence.startswith("the reward falls: success fell") and (entry.step, entry.last) == (
        54,
        87,
    )
