"""What needs no statistics: numbers that are NaN or end, and rewards that are all equal."""

from __future__ import annotations

import pyarrow as pa
import pytest

from rollout_traces.analysis import diagnose
from rollout_traces.analysis.curves import FEWEST_BESIDE
from rollout_traces.analysis.in_words import number
from tests.analysis.builders import steps, table, uniform
from tests.analysis.test_movements import drawn, happens, logged, told
from tests.stories.relations import TableRelations

NAN = float("nan")


def said(values: list[float]) -> list[tuple[str, str]]:
    report = diagnose(logged(steps(40), values), "run")
    return [(each.severity, each.sentence) for each in report.diagnoses if "train/loss" in each.sentence]


class TestNumbers:
    def test_that_are_nan_for_some_steps_are_an_error_with_first_and_last(self):
        """Seen once: a gradient that was NaN for seven steps of sixty, and nothing said so."""
        values = [0.1 * (i % 3) for i in range(40)]
        values[20:27] = [NAN] * 7
        assert (
            "error",
            "what the trainer logs is no longer a number: “train/loss”, from step 20 to 26.",
        ) in said(values)

    def test_that_are_nan_at_one_step_are_too(self):
        values = [0.1 * (i % 3) for i in range(40)]
        values[30] = NAN
        assert ("error", "what the trainer logs is no longer a number: “train/loss”, at step 30.") in said(
            values
        )

    def test_that_are_never_a_number_are_a_warning(self):
        """Seen once: “nothing stands out” of a run whose loss was NaN at each of sixty steps."""
        for value in (NAN, float("inf")):
            assert said([value] * 40) == [
                ("warn", "what the trainer logs is never a number: “train/loss”, since step 0.")
            ]

    def test_that_are_there_at_times_from_the_start_are_meant_so(self):
        values = [1.0 + i % 3 if i % 10 == 0 else NAN for i in range(40)]
        assert not said(values)
        values = [0.1 * (i % 3) for i in range(40)]
        values[FEWEST_BESIDE - 1] = NAN
        assert not [each for each in said(values) if each[0] == "error"]


class TestFewSteps:
    @pytest.mark.parametrize(
        ("n", "remark"),
        [
            (1, "1 step is too few to look for changes; 6 are needed."),
            (5, "5 steps are too few to look for changes; 6 are needed."),
            (8, "8 steps show what groups are sure of alone; of logged scalars 12 are needed."),
        ],
    )
    def test_what_was_not_looked_at_is_said_and_not_that_nothing_stands_out(self, n, remark):
        report = diagnose(table(steps(n, n_sampled=lambda s, g, i: 50 + drawn(s, g, i))), "run")
        assert report.remarks == (remark,)
        assert ("Nothing stands out." in repr(report)) == (n >= 6)

    def test_a_plain_fall_within_ten_steps_is_said(self):
        def thought(s: int, g: int, i: int) -> float:
            return (200 if s < 6 else 0) + 5 * drawn(s, g, i)

        report = diagnose(table(steps(10, groups=10, n_thinking=thought)), "run")
        assert any(str(each.series[0]) == "n_thinking" and each.step == 6 for each in report.diagnoses)

    def test_scalars_of_a_run_without_rollouts_are_looked_at(self):
        values = [0.1 * drawn(s, 0, 0) + (5.0 if s >= 20 else 0.0) for s in range(40)]
        rows = [row | {"split": "eval-rollout"} for row in steps(1)]
        report = diagnose(logged(rows, values), "run")
        assert (report.n_rows, report.n_steps) == (0, 40)
        assert report.diagnoses[0].severity == "error" and report.diagnoses[0].step == 20
        assert report.remarks == ("No rollouts: what the trainer logged is all that is looked at.",)


class TestFlags:
    @pytest.mark.parametrize(
        ("n_steps", "said"), [(10, "2.6%, since step 2"), (20, "4.2%, from step 2 to 6")]
    )
    def test_their_share_is_of_the_rollouts_of_the_steps_that_are_named(self, n_steps, said):
        """Seen once: “12 rollouts carry nonfinite, 1.4%, since step 1”, of the 886 up to the last that does; 954 were since."""

        def flags(s: int, g: int, i: int) -> list[str]:
            return ["nonfinite"] if 2 <= s <= 6 and g == i == 0 else []

        report = diagnose(table(steps(n_steps, flags=flags)), "run")
        [entry] = [each for each in report.diagnoses if each.name == "a fault of the data"]
        assert entry.sentence.startswith(f"5 rollouts carry nonfinite, {said}:")


class TestEqualRewards:
    def test_of_a_whole_run_are_an_error(self):
        """Seen once: all 2,560 rewards were 0, and nothing stood out."""
        report = diagnose(table(steps(20, reward=0.0, n_sampled=lambda s, g, i: 50 + drawn(s, g, i))), "run")
        assert report.diagnoses[0].severity == "error"
        assert report.diagnoses[0].sentence == "all 480 rewards are 0: nothing can be learned from them."

    @pytest.mark.parametrize(("n_steps", "first", "groups"), [(8, 5, 6), (20, 17, 4), (40, 39, 12)])
    def test_since_a_step_are_said_in_the_last_steps_of_a_run_too(self, n_steps, first, groups):
        """Seen once: in the last three of eight steps every reward was 0, and nothing was said."""

        def reward(s: int, g: int, i: int) -> float:
            return 0.0 if s >= first else float(happens(0.5, s, g, i))

        report = diagnose(table(steps(n_steps, groups=groups, reward=reward)), "run")
        told = [each for each in report.diagnoses if each.severity != "info" and "reward" in each.sentence]
        assert told and told[0].step == first and told[0].last is None

    def test_of_steps_in_between_are_a_warning(self):
        def reward(s: int, g: int, i: int) -> float:
            return 0.0 if s in (4, 5) else float(happens(0.5, s, g, i))

        report = diagnose(table(steps(10, groups=4, reward=reward)), "run")
        [entry] = [each for each in report.diagnoses if each.name == "all rewards are equal"]
        assert (entry.severity, entry.where) == ("warn", "step >= 4 and step <= 5")
        assert entry.sentence.startswith("all 32 rewards are 0, from step 4 to 5")

    @pytest.mark.parametrize("share", [0.02, 0.1])
    @pytest.mark.parametrize("seed", range(8))
    def test_of_a_few_groups_that_are_seldom_solved_are_chance(self, share, seed):
        def reward(s: int, g: int, i: int) -> float:
            return float(uniform(seed, s, g, i) < share)

        report = diagnose(table(steps(20, groups=4, reward=reward)), "run")
        assert "all rewards are equal" not in [each.name for each in report.diagnoses]

    def test_at_the_start_are_how_a_run_begins(self):
        def reward(s: int, g: int, i: int) -> float:
            return 0.0 if s < 4 else float(happens(0.5, s, g, i))

        report = diagnose(table(steps(20, reward=reward)), "run")
        assert "all rewards are equal" not in [each.name for each in report.diagnoses]

    def test_of_one_source_are_a_warning(self):
        def reward(s: int, g: int, i: int) -> float:
            return 0.0 if g % 2 else 0.5 + 0.1 * drawn(s, g, i)

        def source(s: int, g: int, i: int) -> str:
            return "gsm" if g % 2 else "math"

        report = diagnose(table(steps(20, reward=reward, source=source)), "run")
        [entry] = [each for each in report.diagnoses if each.name == "all rewards are equal"]
        assert (entry.severity, entry.where) == ("warn", "source = 'gsm'")
        assert entry.sentence == "all 240 rewards of source “gsm” are 0: nothing can be learned from them."

    def test_none_of_a_part_succeeds_is_said_with_what_all_do(self):
        """Seen once: a shard of the data with wrong answers, of which nothing was ever solved, was in no entry."""

        def shard(s: int, g: int, i: int) -> str:
            return f"part-{g % 4}"

        def success(s: int, g: int, i: int) -> int:
            return int(g % 4 != 3 and happens(0.5, s, g, i))

        rows = steps(20, groups=8, shard=shard, success=success, reward=lambda s, g, i: drawn(s, g, i))
        [entry] = [
            each
            for each in diagnose(table(rows), "run").diagnoses
            if each.name == "a reward that is never given"
        ]
        assert (entry.severity, entry.where) == ("warn", "shard = 'part-3'")
        assert entry.sentence == "success is 0 in all 160 rollouts of shard “part-3”, 0.389 over all."

    def test_none_of_few_rollouts_may_be_chance(self):
        def success(s: int, g: int, i: int) -> int:
            return int(g != 3 and happens(0.05, s, g, i))

        rows = steps(
            8, source=lambda s, g, i: f"part-{g}", success=success, reward=lambda s, g, i: drawn(s, g, i)
        )
        assert not [
            each
            for each in diagnose(table(rows), "run").diagnoses
            if each.name == "a reward that is never given"
        ]

    def test_of_a_few_steps_say_nothing_yet(self):
        report = diagnose(table(steps(5, reward=0.0)), "run")
        assert not report.diagnoses


def test_a_reward_that_pays_for_failures_is_named_by_that_and_by_its_source():
    """Seen once: success inverted for one source was “perhaps by chance”: its level moved by less than its noise."""

    def success(s: int, g: int, i: int) -> int:
        return int(happens(0.5, s, g, i))

    def reward(s: int, g: int, i: int) -> float:
        solved = success(s, g, i)
        return float(1 - solved if s >= 30 and g % 3 == 0 else solved)

    rows = steps(
        60,
        groups=12,
        size=8,
        source=lambda s, g, i: "math" if g % 3 == 0 else "code",
        success=success,
        reward=reward,
    )
    found = told(table(rows))
    assert (found[0].severity, found[0].step, found[0].part) == ("error", 30, (("source", "math"),))
    assert found[0].name == "reward and success part ways"


class TestNumbersThatStandStillOrLack:
    VALUES = tuple(0.01 + 0.002 * drawn(s, 0, 0) for s in range(60))

    def of(self, values: list[float], steps_of: list[int] | None = None) -> list[str]:
        """What is said of a number beside one that is always logged."""
        beside = logged(steps(60), [1 + 0.1 * drawn(s, 1, 0) for s in range(60)], "train/loss")
        rows = logged(steps(60), values, "train/kl").sql("select * from metrics").to_pylist()
        at = steps_of or list(range(60))
        metrics = beside.sql("select * from metrics").to_pylist() + [
            {**row, "step": at[i]} for i, row in enumerate(rows)
        ]
        report = diagnose(
            TableRelations(beside.sql("select * from rollouts"), pa.Table.from_pylist(metrics)), "run"
        )
        return [
            each.sentence
            for each in report.diagnoses
            if "train/kl" in each.sentence and each.severity != "info"
        ]

    def test_the_same_to_the_last_digit_for_a_while_is_a_warning(self):
        """Seen once: a divergence of 0.01125 at thirteen steps in a row, and no word of it."""
        values = [*self.VALUES[:19], *[self.VALUES[19]] * 13, *self.VALUES[32:]]
        assert self.of(values) == [
            f"“train/kl” was {number(values[19])} to the last digit at 13 steps in a row, from step 19 to 31."
        ]

    @pytest.mark.parametrize(
        "values",
        [
            [*VALUES[:40], *[max(VALUES)] * 20],
            [round(each, 3) for each in VALUES],
            [*(0.01 - 0.0001 * s for s in range(40)), *[0.006] * 20],
        ],
        ids=["at its bound", "often the same", "a schedule at its end"],
    )
    def test_what_may_well_be_the_same_is_none(self, values):
        assert not [each for each in self.of(list(values)) if "digit" in each]

    def test_what_lacks_for_a_while_is_a_warning(self):
        """Seen three times: a gradient that was not logged for twenty steps, and no word of it."""
        at = [s for s in range(60) if not 30 <= s < 36]
        assert self.of([self.VALUES[s] for s in at], at) == [
            "“train/kl” was not logged at 6 steps, from step 30 to 35."
        ]

    @pytest.mark.parametrize("at", [(9, 29, 49), tuple(range(0, 60, 6)), (*range(9), 20, 40, *range(50, 60))])
    def test_what_is_logged_at_times_lacks_nowhere(self, at):
        assert not self.of([self.VALUES[s] for s in at], list(at))


def test_an_evaluation_that_asks_half_as_much_is_a_warning():
    """Seen twice: 48 evaluated rollouts, then 10, and nothing said so."""

    def row(step: int, split: str, i: int) -> dict[str, object]:
        return {
            "step": step,
            "split": split,
            "group": i,
            "prompt_key": f"{split}{i}",
            "success": int(happens(0.5, step, i, 0)),
        }

    rows = [row(s, "rollout", i) for s in range(40) for i in range(8)]
    rows += [row(s, "eval-rollout", i) for s in range(0, 40, 2) for i in range(48 if s < 20 else 10)]
    [entry] = [each for each in told(table(rows)) if "rollouts of a step" in each.sentence]
    assert entry.sentence == "“eval-rollout/rollouts of a step” fell from 48 to 10, since step 20."
    assert "split = 'eval-rollout'" in entry.queries[0]


@pytest.mark.parametrize(
    ("steps_of", "said"),
    [
        (
            [s for s in range(0, 60, 4) if s not in (28, 32)],
            "did not run at 2 steps where it was due, from step 28 to 32.",
        ),
        ([s for s in range(0, 60, 4) if s != 28], ""),
        ([*range(0, 30, 3), *range(30, 60, 6)], ""),
        ([s for s in range(60) if happens(0.3, s, 0, 0)], ""),
    ],
    ids=["two lack", "one lacks", "half as often", "at any time"],
)
def test_evaluations_that_did_not_run_where_they_were_due_are_a_warning(steps_of, said):
    """Seen once: two of 22 evaluations that did not run, and no word of it."""
    rows = [
        {"step": s, "split": "rollout", "group": i, "prompt_key": f"p{s}-{i}"}
        for s in range(60)
        for i in range(4)
    ]
    rows += [
        {"step": s, "split": "eval-rollout", "group": i, "prompt_key": f"e{i}"}
        for s in steps_of
        for i in range(8)
    ]
    found = [each.sentence for each in told(table(rows)) if "where it was due" in each.sentence]
    assert found == ([f"eval-rollout {said}"] if said else [])
