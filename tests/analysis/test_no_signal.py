"""Rollouts of which nothing can be learned."""

from __future__ import annotations

from rollout_traces.analysis import diagnose
from tests.analysis.builders import steps, table
from tests.analysis.test_movements import drawn, happens


class TestEqualRewards:
    def test_of_a_whole_run_are_an_error(self):
        """Seen once: all 2,560 rewards were 0, and nothing stood out."""
        report = diagnose(table(steps(20, reward=0.0, n_sampled=lambda s, g, i: 50 + drawn(s, g, i))), "run")
        assert report.diagnoses[0].severity == "error"
        assert report.diagnoses[0].sentence == "all 480 rewards are 0: nothing can be learned from them."

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
