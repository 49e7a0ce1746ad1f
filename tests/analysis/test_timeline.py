"""What the timeline tells, and what it leaves out."""

from __future__ import annotations

import numpy as np

from rollout_traces.analysis import events
from tests.analysis.builders import steps, table


def noisy(step: int, group: int, sample: int) -> float:
    return float(np.random.default_rng([step, group, sample]).normal())


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

    def test_a_text_that_is_stored_twice_is_told_once(self):
        def backend(step: int, group: int, sample: int) -> str:
            return "new" if step >= 20 else "old"

        found = told(**{"extra/backend": backend, "backend": backend})
        assert not {what for what in found if ": backend" in what}

    def test_a_text_of_a_kept_rollout_that_differs_from_prompt_to_prompt_is_no_event(self):
        assert not told(expected=lambda s, g, i: str(s % 20))

    def test_every_value_of_a_known_column_is_one(self):
        found = told(engine=lambda s, g, i: "c" if s in (20, 21) and i == 0 else "ab"[i % 2])
        assert {"first seen: engine c", "last seen: engine c"} <= found
