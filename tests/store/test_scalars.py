"""Logged numbers by key: each row is read once, and the newest value of a step holds."""

from __future__ import annotations

import math

import orjson
import pytest

from rollout_traces.store.scalars import Scalars, superseded_steps


class Rows:
    """A source with rows of logged numbers, in order of arrival."""

    label = "rows"

    def __init__(self, *rows):
        self.rows = [
            (number, step, "", text if isinstance(text, bytes) else orjson.dumps(text))
            for number, (step, text) in enumerate(rows, 1)
        ]
        self.asked = []

    def metrics(self, run_id, after):
        self.asked.append(after)
        return [row for row in self.rows if row[0] > after]


def test_of_a_step_that_a_later_attempt_logged_anew_the_newest_value_holds():
    rows = Rows((4, {"loss": 4.0}), (5, {"loss": 5.0}), (6, {"loss": 6.0}), (5, {"loss": 0.5, "kl": 0.1}))
    assert Scalars(rows).of("run") == {"loss": ([4, 6, 5], [4.0, 6.0, 0.5]), "kl": ([5], [0.1])}


def test_a_row_is_read_once_and_later_ones_are_added():
    rows = Rows((1, {"loss": 1.0}))
    scalars = Scalars(rows)
    assert scalars.of("run")["loss"] == ([1], [1.0])
    rows.rows.append((2, 1, "", orjson.dumps({"loss": 2.0})))
    assert scalars.of("run")["loss"] == ([1], [2.0])
    assert rows.asked == [0, 1, 1, 2]


def test_a_row_that_says_the_trainers_step_stands_at_it():
    """Seen once: a loss that was NaN since step 17 of 37, "since step 32": transformers' trainers log without a step, and Trackio counted their calls."""
    rows = Rows(
        (40, {"train/loss": 0.5, "train/global_step": 17}), (41, {"train/kl": 0.1, "train/global_step": 18.0})
    )
    read = Scalars(rows).of("run")
    assert (read["train/loss"], read["train/kl"]) == (([17], [0.5]), ([18], [0.1]))
    assert Scalars(Rows((40, {"loss": 1.0, "train/global_step": "NaN"}))).of("run")["loss"] == ([40], [1.0])


@pytest.mark.parametrize("text", [b"{", b"[1]"])
def test_a_damaged_row_is_left_out(text):
    assert Scalars(Rows((1, text), (2, {"a": 1, "b": True, "c": "NaN", "d": "text"}))).of("run").keys() == {
        "a",
        "c",
    }


def test_values_that_are_not_finite_are_kept_as_such():
    [value] = Scalars(Rows((1, {"a": "NaN"}))).of("run")["a"][1]
    assert math.isnan(value)


def marked(attempt, **numbers):
    return {**numbers, "_attempt": attempt}


class TestNumbersOfSeveralAttempts:
    def test_the_newest_attempt_has_the_step_whatever_came_last(self):
        rows = Rows((5, marked("a2", loss=0.5)), (5, marked("a1", loss=5.0)), (4, marked("a1", loss=4.0)))
        assert Scalars(rows).of("run") == {"loss": ([4, 5], [4.0, 0.5])}

    def test_what_only_an_older_one_has_past_where_the_newer_trained_is_superseded(self):
        old = [(step, marked("a1", loss=1.0, score=1.0)) for step in (1, 2, 3, 4, 5, 6)]
        rows = Rows(*old, (3, marked("a2", loss=2.0)))
        found = Scalars(rows).by_attempt("run", [("a1", 1), ("a2", 3)])
        assert found["loss"].superseded == {4, 5, 6}
        assert found["score"].superseded == {3, 4, 5, 6}
        assert dict(zip(found["loss"].steps, found["loss"].attempts, strict=True))[3] == "a2"

    def test_an_evaluation_of_what_was_loaded_supersedes_only_what_came_behind_it(self):
        old = [(step, marked("a1", loss=1.0)) for step in (1, 2, 3)]
        rows = Rows(*old, (2, marked("a2", score=2.0)), (3, marked("a2", loss=2.0)))
        assert not Scalars(rows).by_attempt("run", [("a1", 1), ("a2", 3)])["loss"].superseded
        assert not Scalars(rows).by_attempt("run", [])["loss"].superseded

    def test_without_rollouts_the_first_number_tells_where_an_attempt_began(self):
        rows = Rows(
            *((step, marked("a1", loss=1.0, score=1.0)) for step in (1, 2, 3, 4)), (2, marked("a2", loss=2.0))
        )
        found = Scalars(rows).by_attempt("run", [])
        assert (found["loss"].superseded, found["score"].superseded) == ({3, 4}, {3, 4})

    def test_what_an_older_version_logged_is_older_than_what_has_an_attempt(self):
        rows = Rows((1, {"loss": 1.0}), (2, {"loss": 1.0}), (3, {"loss": 1.0}), (2, marked("a1", loss=2.0)))
        assert Scalars(rows).by_attempt("run", [("a1", 2)])["loss"].superseded == {3}

    def test_of_what_carries_no_attempt_the_order_tells(self):
        rows = Rows(*((step, {"loss": 1.0}) for step in (1, 2, 3, 4, 2)))
        found = Scalars(rows).by_attempt("run", [("a1", 1), ("a2", 2)])["loss"]
        assert found.superseded == {3, 4} and found.attempts == [None] * 4


class TestSupersededSteps:
    def test_are_those_past_the_first_step_of_a_newer_attempt_that_came_before_it(self):
        assert superseded_steps([1, 2, 5, 6, 3, 4], [3]) == {5, 6}

    def test_are_none_once_the_newer_attempt_has_come_as_far(self):
        assert superseded_steps([1, 2, 3, 4, 5, 6, 7], [3]) == set()

    def test_are_found_where_a_number_is_logged_at_some_steps_only(self):
        assert superseded_steps([10, 30, 40, 20], [15]) == {30, 40}

    def test_are_none_before_the_newer_attempt_logged_the_number(self):
        assert superseded_steps([1, 2], [3]) == set()

    def test_of_several_attempts_are_all_that_one_of_them_replaced(self):
        assert superseded_steps([1, 9, 2, 7, 3, 4], [2, 3]) == {9, 7}
