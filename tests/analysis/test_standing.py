"""What stands from the first step on and does not hang on prompts: one worker that is off."""

from __future__ import annotations

import pytest

from rollout_traces.analysis import diagnose
from tests.analysis.builders import steps, table
from tests.analysis.test_movements import drawn, happens, told


def engine(step: int, group: int, sample: int) -> str:
    return f"vllm-{(step + group) % 4}"


def mismatch(step: int, group: int, sample: int) -> float:
    usual = 0.001 * (1 + 0.2 * drawn(step, group, sample))
    return 8 * usual if engine(step, group, sample) == "vllm-2" else usual


class TestStanding:
    def test_an_engine_that_is_off_from_the_first_step_on_is_said_with_its_level_and_that_of_the_others(self):
        [entry] = told(table(steps(30, engine=engine, mismatch_k3=mismatch)))
        assert (entry.severity, entry.shape, entry.part) == ("warn", "standing", (("engine", "vllm-2"),))
        assert (
            entry.sentence
            == "mismatch_k3 is 0.00801 on engine “vllm-2”, 0.001 elsewhere, from the first step on."
        )
        assert (entry.step, entry.last, entry.where) == (0, None, "engine = 'vllm-2'")

    def test_the_worker_that_fails_is_named_where_its_share_is_low_too(self):
        def ok(s: int, g: int, i: int) -> int:
            return int(happens(0.1 if engine(s, g, i) == "vllm-1" else 0.7, s, g, i))

        [entry] = told(table(steps(40, groups=8, engine=engine, success=ok)))
        assert (str(entry.series[0]), entry.part) == ("success", (("engine", "vllm-1"),))
        assert entry.after == pytest.approx(0.1, abs=0.04) and entry.elsewhere == pytest.approx(0.7, abs=0.04)

    def test_what_differs_by_less_than_rollouts_do_or_by_chance_is_not_said(self):
        def length(s: int, g: int, i: int) -> float:
            return (100 + 8 * (engine(s, g, i) == "vllm-2")) * (1 + 0.1 * drawn(s, g, i))

        def rare(s: int, g: int, i: int) -> int:
            return int(happens(0.01, s, g, i))

        assert not told(table(steps(30, engine=engine, n_sampled=length, success=rare)))

    def test_a_source_may_differ_from_others_for_good(self):
        """Prompts of a source are asked again and are of it: that they are harder is no fault."""

        def source(s: int, g: int, i: int) -> str:
            return "math" if g % 2 else "code"

        def reward(s: int, g: int, i: int) -> float:
            return (0.1 if g % 2 else 0.8) + 0.05 * drawn(s, g, i)

        rows = [row | {"prompt_key": f"p{row['group']}"} for row in steps(30, source=source, reward=reward)]
        assert not told(table(rows))

    def test_an_engine_that_is_always_asked_the_same_prompts_is_not_off_where_they_are_longer(self):
        """Seen once: three warnings of an evaluation that sends each prompt to the same engine each time."""
        rows = [
            row | {"prompt_key": f"p{row['group']}"}
            for row in steps(
                12,
                groups=24,
                size=1,
                engine=lambda s, g, i: f"vllm-{g % 4}",
                n_prompt=lambda s, g, i: 60 if g % 4 == 1 else 20 + g,
                reward=lambda s, g, i: int(happens(0.1 if g % 4 == 1 else 0.9, s, g, i)),
            )
        ]
        assert not told(table(rows))
        assert {each.shape for each in told(table([row | {"prompt_key": None} for row in rows]))} == {
            "standing"
        }

    def test_what_an_engine_was_given_is_no_property_of_it(self):
        def host(s: int, g: int, i: int) -> str:
            return f"node-{(s + g) % 4 // 2}"

        report = diagnose(table(steps(30, engine=engine, **{"extra/host": host}, mismatch_k3=drawn)), "run")
        assert not [each for each in report.diagnoses if each.shape == "standing"]

    def test_what_began_within_the_run_is_a_movement_and_stands_nowhere(self):
        def late(s: int, g: int, i: int) -> float:
            return mismatch(s, g, i) if s >= 15 else 0.001 * (1 + 0.2 * drawn(s, g, i))

        assert [each.shape for each in told(table(steps(30, engine=engine, mismatch_k3=late)))] == ["level"]


class TestARareValueOfOnePartAlone:
    """Seen once: 22 rollouts of 4,000 were aborted, all of one engine of nine and none before step 30, and no word of it."""

    def engine(self, s: int, g: int, i: int) -> str:
        return f"sgl-{(s + g + i) % 8}"

    def said(self, of: str | None) -> list[str]:
        def stop_reason(s: int, g: int, i: int) -> str:
            bad = (
                happens(0.04 if of else 0.005, s, g, i)
                and s >= 20
                and self.engine(s, g, i) == (of or self.engine(s, g, i))
            )
            return "abort" if bad else "stop"

        found = told(table(steps(60, groups=8, size=8, engine=self.engine, stop_reason=stop_reason)))
        return [each.sentence for each in found if "alone" in each.sentence]

    def test_is_said_with_its_number_and_since_when(self):
        [sentence] = self.said("sgl-3")
        assert sentence.startswith("stop_reason “abort” occurs on engine “sgl-3” alone: ")
        assert sentence.endswith(", none elsewhere.") and "since step 20" in sentence

    def test_of_all_parts_is_not_said(self):
        assert not self.said(None)


class TestRewardsBeyondAllOthers:
    """Seen by three: two rewards of 4.3 a step, in half of the steps of half of a run, where no rollout can have more than 1.3."""

    @staticmethod
    def said(since: int, most: float = 1.3) -> list[str]:
        def reward(s: int, g: int, i: int) -> float:
            is_beyond = s >= since and s % 2 == 0 and (g, i) in ((1, 2), (3, 0))
            return 4.3 if is_beyond else most * happens(0.5, s, g, i) + 0.05 * drawn(s, g, i)

        found = diagnose(table(steps(60, groups=6, size=5, reward=reward)), "run").diagnoses
        assert all(
            each.severity == "info" for each in found
        )  # the reward of a task that is solved late is one too
        return [each.sentence for each in found if "“>" in each.sentence and "alone" in each.sentence]

    def test_that_come_late_are_said_with_their_number(self):
        assert self.said(31) == ["reward “>2.9” occurs since step 32 alone: 28 of 840 rollouts, none before."]

    def test_that_come_from_the_start_may_be_what_a_rare_rollout_gets(self):
        assert not self.said(0)

    def test_that_are_but_the_furthest_of_a_range_are_none(self):
        assert not self.said(31, most=3.0)


def test_what_became_of_a_few_rollouts_is_no_worker_that_is_off():
    """Seen once: warnings that rollouts whose verifier timed out are never solved, in three runs."""

    def status(s: int, g: int, i: int) -> str:
        return "timeout" if happens(0.03, s, g, i) else "ok"

    def solved(s: int, g: int, i: int) -> int:
        return int(status(s, g, i) == "ok" and happens(0.6, s, g, i + 100))

    rows = steps(60, groups=8, success=solved, reward=solved, **{"extra/verifier_status": status})
    assert not told(table(rows))
