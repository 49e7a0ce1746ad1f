"""What fails while all else learns, what a few groups carry, and what is joined with what."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from rollout_traces.analysis import diagnose
from rollout_traces.analysis.learning import is_of_prompts
from rollout_traces.analysis.run_rows import read_rows
from rollout_traces.analysis.selections import RunScope
from tests.analysis.builders import steps, table
from tests.analysis.test_movements import drawn, happens, logged, told
from tests.perturbations.equations import compute
from tests.perturbations.run import Run
from tests.perturbations.spec import draw_spec
from tests.perturbations.tables import Relations
from tests.perturbations.truth import draw_trial
from tests.stories.relations import TableRelations


def learned(step: int, n_steps: int) -> float:
    """Share that is solved: from 0.25 to 0.7, fastest in the middle."""
    return 0.25 + 0.45 / (1 + float(np.exp(-8 * (step / n_steps - 0.45))))


def test_a_key_of_prompts_that_nobody_logged_is_no_prompt():
    """Seen once: all rollouts were of one prompt, so that sources were not the prompts' and each one's learning was a fault."""
    rows = steps(8, source=lambda s, g, i: "ab"[g % 2], **{"extra/host": lambda s, g, i: f"h{g % 2}"})
    read = read_rows(RunScope(table([{**row, "prompt_key": None} for row in rows]), "run", "rollout"))
    assert not len(read.prompt)
    assert is_of_prompts(read, "source") and not is_of_prompts(read, "extra/host")


@pytest.mark.parametrize("seed", range(3))
def test_where_one_part_fails_what_the_others_learn_is_no_fault(seed):
    """Seen once: “the reward rises ... on h1 and h0” as the first error, above the host whose tools failed."""
    rng = np.random.default_rng(seed)
    of_rollouts = rng.random((60, 6, 6))
    host = rng.integers(0, 3, (60, 6))

    def fails(s: int, g: int) -> bool:
        return s >= 34 and host[s, g] == 2

    def solved(s: int, g: int, i: int) -> int:
        return int(of_rollouts[s, g, i] < learned(s, 60) * (0.4 if fails(s, g) else 1.0))

    def errors(s: int, g: int, i: int) -> int:
        return int(of_rollouts[s, g, i] * 3 < (2.0 if fails(s, g) else 0.15))

    rows = steps(
        60,
        size=6,
        success=solved,
        n_tool_errors=errors,
        **{"extra/env_host": lambda s, g, i: f"h{host[s, g]}"},
    )
    entries = told(table([{**row, "prompt_key": None} for row in rows]))
    assert entries[0].part == (("extra/env_host", "h2"),)
    assert not any("rises" in each.sentence for each in entries if each.severity == "error")


@pytest.mark.parametrize("seed", range(3))
def test_one_opponent_that_is_lost_to_falls_beside_what_is_learned_against_the_others(seed):
    """Seen once: 0.59 to 0.16 against one of five, and nothing said: its own curve was taken to be learned and lost again."""
    rng = np.random.default_rng(seed)
    of_rollouts = rng.random((90, 8, 8))
    opponent = rng.integers(0, 5, (90, 8))

    def solved(s: int, g: int, i: int) -> int:
        lost = s >= 50 and opponent[s, g] == 3
        return int(of_rollouts[s, g, i] < (0.16 if lost else learned(s, 90)))

    rows = steps(
        90, groups=8, size=8, success=solved, **{"extra/opponent": lambda s, g, i: f"o{opponent[s, g]}"}
    )
    report = diagnose(table([{**row, "prompt_key": f"o{row['extra/opponent']}"} for row in rows]), "run")
    [entry] = [each for each in report.diagnoses if each.after < each.before]
    assert entry.part == (("extra/opponent", "o3"),)
    assert abs(entry.step - 50) <= 4


@pytest.mark.parametrize("seed", (0, 11))
def test_a_host_that_solves_less_and_less_is_said_while_all_others_learn(seed):
    """Seen once: 0.4 to 0.09 on one host of six, and nothing said: what all learn was taken off it twice."""

    def solved(s: int, g: int, i: int) -> int:
        less = 0.02 * max(s - 19, 0) if i == 0 else 0.0
        return int(happens(max(0.25 + 0.25 * min(s / 25, 1.0) - less, 0.0), s, g, 1000 * seed + i))

    hosts = {"extra/host": lambda s, g, i: f"node{i}"}
    [entry] = told(table(steps(45, groups=10, size=6, success=solved, **hosts)))
    assert (entry.severity, entry.part) == ("error", (("extra/host", "node0"),))
    assert entry.sentence.startswith("the reward falls") and entry.step >= 19


class TestRowsOfOneGroupOrTwo:
    @staticmethod
    def scores(far: float, n_groups: int):
        def score(s: int, g: int, i: int) -> float:
            return 0.5 + 0.1 * drawn(s, g, i) + (far if s == 37 and g < n_groups else 0.0)

        return table(steps(60, groups=8, size=6, **{"component/style": score}))

    @pytest.mark.parametrize(("far", "n_groups"), [(60.0, 1), (2.5, 1), (60.0, 2)])
    def test_that_lie_far_out_together_carry_their_step(self, far, n_groups):
        """Seen once: nothing said of a reward of 60 in place of 0.5: they were too many for a handful, too few for a part."""
        [entry] = told(self.scores(far, n_groups))
        assert (entry.severity, entry.step, entry.last) == ("error", 37, 37)
        assert len(entry.carriers) == 6 * n_groups


def test_what_is_set_later_does_not_take_in_what_moved_before():
    """Seen once: a step that took a thousand times as long, as last words of an info about a running maximum."""
    rng = np.random.default_rng(3)
    seconds = 17 * np.exp(rng.normal(0, 0.08, 80)) * np.where(np.arange(80) < 40, 1, 1000)
    best = np.repeat([0.28, 0.44, 0.56, 0.67, 0.75, 0.79, 0.91], [4, 9, 17, 9, 10, 4, 27])
    tables = [logged(steps(80), each.tolist(), key) for each, key in ((seconds, "step_time"), (best, "best"))]
    metrics = pa.concat_tables(each.sql("select * exclude superseded from metrics") for each in tables)
    [entry] = told(TableRelations(tables[0].sql("select * from rollouts"), metrics))
    assert (entry.series[0].column, entry.step, entry.severity) == ("step_time", 40, "error")


def test_a_logged_number_that_repeats_a_figure_of_the_rollouts_is_said_once():
    rows = steps(60, n_prompt=lambda s, g, i: (200 if s < 30 else 260) + int(9 * drawn(s, g, i)))
    means = [np.mean([row["n_prompt"] for row in rows if row["step"] == s]) for s in range(60)]
    [entry] = diagnose(logged(rows, means, "data/prompt_length"), "run").diagnoses
    assert [str(each) for each in entry.series] == ["n_prompt"]


def test_what_adds_up_to_the_same_is_left_out_where_a_part_moved_otherwise():
    """What a part has more of the update others have less of: it is neither the part's nor the others'."""

    def is_late(s: int, g: int) -> bool:
        return s >= 30 and g % 2 == 1

    rows = steps(
        60,
        source=lambda s, g, i: "code" if g % 2 else "math",
        n_sampled=lambda s, g, i: (300 if is_late(s, g) else 100) + 9 * drawn(s, g, i),
        update_share=lambda s, g, i: (3 if is_late(s, g) else 1) * np.exp(0.1 * drawn(s, g, i, 1)),
    )
    for s in range(60):
        of_step = [row for row in rows if row["step"] == s]
        total = sum(row["update_share"] for row in of_step)
        for row in of_step:
            row["update_share"] /= total
    entries = told(table(rows))
    [entry] = [each for each in entries if "n_sampled" in map(str, each.series)]
    assert "update_share" not in map(str, entry.series) and entry.part == (("source", "code"),)


def test_all_rows_that_fall_by_one_factor_fall_together():
    """Seen once: the source with the longest answers, of which a tenth less is most."""

    def length(s: int, g: int, i: int) -> float:
        usual = (100, 300, 1500)[g % 3]
        return usual * (0.7 if s >= 30 else 1.0) * float(np.exp(0.15 * drawn(s, g, i)))

    [entry] = told(table(steps(60, groups=9, n_sampled=length, source=lambda s, g, i: f"s{g % 3}")))
    assert entry.part == ()


def test_one_number_that_was_logged_is_a_warning_at_most_and_two_in_a_row_are_an_error():
    """Seen once: an error in a healthy run, of one timing that was four times as long."""
    for n_steps, severity in ((1, "warn"), (2, "error")):
        seconds = 2.3 * np.exp(np.random.default_rng(5).normal(0, 0.05, 60))
        seconds[40 : 40 + n_steps] *= 4
        [entry] = told(logged(steps(60), seconds.tolist(), "timing/update_weights"))
        assert (entry.severity, entry.step) == (severity, 40)


def test_a_level_is_held_against_what_is_learned_beside_the_same_curve():
    """Seen once: half of the prompts paid less from step 50 on, which beside a parabola a curve tells as well as a level alone does."""
    shares = """0.312 0.4 0.482 0.466 0.333 0.304 0.263 0.482 0.327 0.347 0.411 0.448 0.487 0.558 0.339 0.5 0.321 0.365 0.42 0.464
        0.394 0.45 0.25 0.5 0.472 0.562 0.542 0.554 0.607 0.646 0.625 0.5 0.422 0.534 0.479 0.512 0.646 0.67 0.385 0.583 0.432
        0.615 0.479 0.427 0.362 0.466 0.463 0.625 0.641 0.675 0.188 0.196 0.288 0.348 0.321 0.054 0.214 0.356 0.286 0.542 0.333
        0.196 0.393 0.511 0.156 0.312 0.417 0.113 0.319 0.236 0.212 0.25 0.317 0.1 0.222 0.222 0.214 0.205 0.24 0.232 0.362 0.234
        0.25 0.354 0.188 0.312 0.425 0.227 0.339 0.212"""
    report = diagnose(logged(steps(90), list(map(float, shares.split())), "paid/in_full"), "run")
    [entry] = [each for each in report.diagnoses if each.step == 50]
    assert not any(each.drift for each in entry.movements)


def test_when_something_began_is_said_as_well_as_it_is_known():
    """Seen once: “since step 51” of a phrase that came between 36 and 53; a reader looked at 51."""
    rng = np.random.default_rng(2)
    of_rollouts = rng.normal(0, 1, (60, 6, 4))
    slow = steps(60, n_sampled=lambda s, g, i: 100 + 0.6 * max(s - 30, 0) + 9 * of_rollouts[s, g, i])
    entries = diagnose(table(slow), "run").diagnoses
    wide = [each for each in entries if each.last is None and each.onset[1] - each.onset[0] > 3]
    assert wide and all(f" (between {each.onset[0]} and {each.onset[1]})" in each.sentence for each in wide)
    sharp = steps(60, n_sampled=lambda s, g, i: 100 + 40 * (s >= 30) + 9 * of_rollouts[s, g, i])
    [entry] = told(table(sharp))
    assert ", since step 30." in entry.sentence


def test_groups_that_are_all_alike_once_nearly_all_is_solved_are_learned():
    """Seen once: an error, that more groups teach nothing since step 51, in a healthy run that learned from its first step on."""
    healthy = Relations(compute(Run(draw_spec("agent", 715043), 0, ())))
    assert "error" not in [each.severity for each in diagnose(healthy, "run").diagnoses]


def test_groups_that_are_all_alike_at_once_are_an_error_all_the_same():
    """Half of the groups get one reward for all from step 40 on, of which the mean says nothing."""

    def reward(s: int, g: int, i: int) -> float:
        solved = 0.3 + 0.4 * s / 80
        chance = drawn(s, g, 0 if s >= 40 and g % 2 else i)
        return float(chance < solved)

    found = diagnose(table(steps(80, groups=16, size=4, reward=reward)), "run").diagnoses
    assert any(
        str(each.series[0]) in ("group/tie_share", "group/reward_std_mean")
        and each.severity == "error"
        and 38 <= each.step <= 42
        for each in found
    )


def test_an_evaluation_that_rises_is_no_warning_whatever_training_does():
    """Seen once: “the evaluation rises” as a warning, since what was rewarded in training fell."""

    def rows(split: str, way: float) -> list[dict]:
        def success(s: int, g: int, i: int) -> int:
            return int(drawn(s, g, i) < 0.5 + way * (s / 60 - 0.5))

        return [{**row, "split": split} for row in steps(60, groups=16, reward=success, success=success)]

    for way, severity in ((0.4, "info"), (-0.4, "warn")):
        found = diagnose(table(rows("rollout", -way) + rows("eval-rollout", way)), "run").diagnoses
        of_evaluation = [each.severity for each in found if "eval" in str(each.series[0])]
        assert of_evaluation and (severity == "info") == (set(of_evaluation) == {"info"})


def test_what_is_lost_after_it_was_learned_fell_then():
    """Seen once: “the reward rises, from step 24 to 78” as an info, and an error that it rose at the last two steps, where it was low from 79 to 117."""
    rng = np.random.default_rng(7).normal(0, 0.5, (120, 8, 6))

    def reward(s: int, g: int, i: int) -> float:
        return 0.65 + 0.4 * (1 - float(np.exp(-s / 25))) - 0.35 * (79 <= s < 118) + rng[s, g, i]

    found = told(table(steps(120, groups=8, size=6, reward=reward)))
    assert [(each.name, each.step, each.last) for each in found] == [("the reward falls", 79, 117)]


def test_a_component_that_falls_with_what_is_solved_is_not_learned():
    """Seen once: the component that says what is solved fell from 0.6 to 0.38 as an info, beside a success that fell “perhaps by chance”."""
    report = diagnose(Relations(draw_trial(draw_spec("agent", 715008), 2).run), "run")
    fell = [
        each
        for each in report.diagnoses
        if "component/correct" in map(str, each.series) and each.severity == "warn"
    ]
    assert [(each.name, 45 <= each.step <= 55) for each in fell] == [
        ("a component of the reward changed", True)
    ]


def test_one_reward_beyond_all_others_is_said_though_its_step_hardly_shows_it():
    """Seen once: a reward of ten among rewards of at most 1.5, in a step of 24 rollouts whose mean rose by less than three errors."""
    rng = np.random.default_rng(5).normal(0.8, 0.45, (60, 3, 8))
    rng[20, 1, 3] = 10.0
    found = told(table(steps(60, groups=3, size=8, reward=lambda s, g, i: float(rng[s, g, i]))))
    assert [(str(each.series[0]), each.step, len(each.carriers)) for each in found] == [("reward", 20, 1)]


@pytest.mark.parametrize("seed", [1, 5])
def test_a_reward_that_is_never_paid_again_is_said_though_its_mean_hardly_shows_it(seed):
    """Seen once: the share of rewards of 1.2 from 57 % to 0 at step 7 for good, and no word of it: the mean, which fell “perhaps by chance”, had taken its place."""
    drawn_S_G_I = np.random.default_rng(seed).random((44, 10, 8))

    def solved(s: int, g: int, i: int) -> int:
        return int(drawn_S_G_I[s, g, i] < 0.4 + 0.55 * (1 - float(np.exp(-s / 6))))

    def reward(s: int, g: int, i: int) -> float:
        return (1.2 if s < 7 else 0.96) if solved(s, g, i) else 0.2

    found = told(table(steps(44, 10, 8, success=solved, reward=reward)))
    assert ("error", 7, "1.2") in [(each.severity, each.step, each.series[0].value) for each in found]


def test_what_is_learned_until_something_else_changes_it_is_read_until_then():
    """Seen once: “format fell from 0.9 to 0.42, since step 0” as what is learned, beside “fell from 0.95 to 0.43, since step 30”: it had risen until then."""
    drawn_S_G_I = np.random.default_rng(0).random((44, 6, 8))

    def form(s: int, g: int, i: int) -> float:
        return float(drawn_S_G_I[s, g, i] < (0.85 + 0.1 * s / 44 if s < 30 else 0.42))

    found = diagnose(table(steps(44, 6, 8, **{"component/format": form})), "run").diagnoses
    assert [(each.step, each.after > each.before) for each in found] == [(30, False), (0, True)]
