"""Planted causes are named first, with their step; healthy runs stay silent. All of them: `calibrate.py`."""

from __future__ import annotations

import pytest

from rollout_traces.analysis import diagnose
from tests.stories.calibrate import PAIRS, look, names_it
from tests.stories.causes import CAUSES, both
from tests.stories.relations import of_story
from tests.stories.world import KINDS, write_run

QUICK = ("mask leak", "tool breaks", "one engine off", "weights frozen for ten steps", "judge likes a phrase")


def story_of(name: str, seed: int):
    cause = CAUSES[name]
    return write_run(seed, cause.kinds[seed % len(cause.kinds)], name, cause.changes), cause


class TestPlanted:
    @pytest.mark.parametrize("name", QUICK)
    def test_a_cause_is_the_first_entry_with_its_step(self, name):
        story, cause = story_of(name, 3)
        found = look(story, cause, name)
        assert found.rank == 1
        assert found.off is not None and abs(found.off) <= 2

    @pytest.mark.slow
    @pytest.mark.parametrize("name", [name for name in CAUSES if name not in QUICK])
    def test_every_other_cause_is_among_the_first_three_entries(self, name):
        story, cause = story_of(name, 2)
        found = look(story, cause, name)
        assert found.rank is not None and found.rank <= 3

    @pytest.mark.parametrize("names", PAIRS[:1], ids=" and ".join)
    def test_two_causes_at_once_are_both_told(self, names):
        story = write_run(1, "mixed", " and ".join(names), both(*names))
        entries = diagnose(of_story(story), story.run).diagnoses[:3]
        assert all(any(names_it(entry, CAUSES[name]) for entry in entries) for name in names)


class TestHealthy:
    @pytest.mark.parametrize("kind", ["mixed", "alternating", "asynchronous", "resumed"])
    def test_a_healthy_run_has_no_error_and_at_most_one_warning(self, kind):
        told = [d for d in diagnose(of_story(write_run(5, kind)), "run").diagnoses if d.severity != "info"]
        assert not [d for d in told if d.severity == "error"]
        assert len(told) <= 1

    def test_how_samples_get_older_at_first_leaves_no_level_behind(self):
        """Seen once: ages that reach their level in three steps are no ramp, and what one left of them was an error."""
        told = diagnose(of_story(write_run(6, "sigmoid")), "run").diagnoses
        assert [d.severity for d in told if d.series[0].column == "staleness_max"] == ["info"]

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", list(KINDS))
    def test_every_kind_of_healthy_run_is_silent(self, kind):
        told = [d for d in diagnose(of_story(write_run(6, kind)), "run").diagnoses if d.severity != "info"]
        assert not [d for d in told if d.severity == "error"]
        assert len(told) <= 1
