"""What the timeline tells, and what it leaves out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rollout_traces.analysis import diagnose, events
from tests.analysis.builders import normal, steps, table


def noisy(step: int, group: int, sample: int) -> float:
    return normal(step, group, sample)


def told(**columns: object) -> set[str]:
    """What the timeline of a run with some columns speaks of."""
    relations = table(steps(40, reward=noisy, **columns))
    return {f"{event.kind}: {event.what}" for event in events(relations, "run")}


class TestValuesOfTheTrainer:
    def test_what_differs_from_prompt_to_prompt_is_no_event(self):
        assert not told(**{"extra/level": lambda s, g, i: f"level {(7 * s + g) % 30}"})

    def test_a_value_that_comes_and_goes_is_no_event(self):
        assert not told(**{"extra/kind": lambda s, g, i: "odd" if s in (9, 30) and g < 2 else "usual"})

    def test_a_category_that_begins_and_one_that_ends_are_events(self):
        found = told(**{"extra/backend": lambda s, g, i: "new" if s >= 20 else "old"})
        assert {"first seen: extra/backend new", "last seen: extra/backend old"} <= found

    def test_a_text_that_is_stored_twice_is_distinct_phrases(self):
        def backend(step: int, group: int, sample: int) -> str:
            return "new" if step >= 20 else "old"

        found = told(**{"extra/backend": backend, "backend": backend})
        assert not {what for what in found if ": backend" in what}

    def test_a_text_of_a_kept_rollout_that_differs_from_prompt_to_prompt_is_no_event(self):
        assert not told(expected=lambda s, g, i: str(s % 20))

    def test_every_value_of_a_known_column_is_one(self):
        found = told(engine=lambda s, g, i: "c" if s in (20, 21) and i == 0 else "ab"[i % 2])
        assert {"first seen: engine c", "last seen: engine c"} <= found


class TestByChance:
    """A value at a constant rate is no event, however rare it is; one that begins or ends is."""

    @pytest.mark.parametrize("seed", range(6))
    @pytest.mark.parametrize("rate", [0.01, 0.03, 0.1])
    def test_a_flag_of_a_healthy_run_neither_comes_nor_goes(self, rate, seed):
        rng = np.random.default_rng([seed, int(100 * rate)])
        hit = rng.random((40, 6)) < rate
        assert not told(flags=lambda s, g, i: ["duplicate_completions"] if hit[s, g] else [])

    def test_a_flag_that_had_been_there_is_not_first_seen_later(self):
        def flags(step: int, group: int, sample: int) -> list[str]:
            return ["truncated"] if step >= 20 or (step == 5 and group == sample == 0) else []

        assert not {what for what in told(flags=flags) if what.startswith("first seen")}

    def test_a_flag_that_begins_and_one_that_ends_are_told_with_what_gives_their_figures_again(self):
        rows = steps(
            40, reward=noisy, flags=lambda s, g, i: ["truncated"] * (s >= 20) + ["stale"] * (s < 20 and g < 3)
        )
        relations = table(rows)
        found = [event for event in events(relations, "run") if event.kind in ("first seen", "last seen")]
        assert [(each.kind, each.what, each.step) for each in found] == [
            ("last seen", "flags stale", 19),
            ("first seen", "flags truncated", 20),
        ]
        (row,) = relations.sql(found[1].query).to_pylist()
        assert (row["first"], row["last"], row["n_rows"], row["share_since"]) == (20, 39, 480, 1.0)
        assert "100% of the rollouts since" in found[1].sentence


def test_a_run_without_rollouts_has_no_events():
    assert events(table(steps(3)), "other") == []


def test_what_may_be_chance_is_no_event():
    relations = table(steps(40, reward=lambda s, g, i: noisy(s, g, i) - 2 * (s >= 20)))
    report = diagnose(relations, "run")
    chance = replace(report, diagnoses=tuple(replace(each, is_sure=False) for each in report.diagnoses))
    moved, left = (
        [each for each in events(relations, "run", report=one) if each.kind == "change"]
        for one in (report, chance)
    )
    assert moved and not left
