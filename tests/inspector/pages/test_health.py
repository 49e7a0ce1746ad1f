"""Health over a run's steps, and the rollouts behind a point of it."""

from __future__ import annotations

import pytest

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.health import examples, health, tie_reasons
from rollout_traces.settings.run_settings import RunSettings
from tests.store.projects import make_ledger


class TestARun:
    def test_has_measures_flags_and_ties_at_every_step(self, ask):
        found = ask(health)
        assert found["steps"] == [0, 1, 2] and (found["n_traced"], found["n_rows"]) == (9, 24)
        assert not found["kept_only"]
        measures = {measure["key"]: measure["values"] for measure in found["measures"]}
        assert measures["group/tie_share"] == [0.5] * 3
        assert all(len(values) == 3 for values in measures.values())
        flags = {row["name"]: row for row in found["flags"]}
        assert flags["truncated"]["values"] == [0.25] * 3 and flags["truncated"]["counts"] == [2] * 3
        assert not flags["truncated"]["estimated"]
        assert flags["repetition"]["values"] == [0.125] * 3 and flags["repetition"]["counts"] == [1] * 3
        assert [row["name"] for row in found["ties"]] and found["discards"] == []

    def test_of_an_evaluation_measures_nothing_of_training(self, ask):
        found = ask(health, split="eval-rollout")
        assert found["steps"] == [2] and found["n_rows"] == 2
        assert "group/tie_share" not in {measure["key"] for measure in found["measures"]}


class TestAPoint:
    def test_of_a_flag_shows_its_rollouts_and_how_many_there_are(self, ask):
        found = ask(examples, step=1, name="truncated", what="flags")
        assert found["where"] == "flags has 'truncated'"
        assert (found["n_matched"], len(found["samples"]), found["n_rows"]) == (1, 1, 2)

    def test_of_a_flag_of_texts_is_counted_among_the_kept_alone(self, ask):
        found = ask(examples, step=1, name="gibberish", what="flags")
        assert found["n_rows"] is None and found["n_matched"] == 0

    def test_of_a_tie_shows_the_rollouts_of_tied_groups(self, ask):
        found = ask(examples, step=1, name="all at 0.25", what="ties")
        assert found["where"] == "flags has 'tied_group'" and found["n_matched"] == 1

    def test_of_a_discard_asks_for_its_reason(self, ask):
        found = ask(examples, step=1, name="it's late", what="discards")
        assert found["where"].startswith("discard_reason = ") and found["n_matched"] == 0

    def test_of_a_measure_that_there_is_not_is_refused(self, ask):
        with pytest.raises(StoreError, match=r"measure: no 'nope'\. Measures: "):
            ask(examples, step=1, name="nope")


class TestTies:
    @pytest.mark.parametrize(
        ("groups", "reasons"),
        [
            ([[1.0, 1.0]], {"all at 1": (1.0, 1)}),
            ([[1.0, 1.0], [0.5]], {"all best": (1.0, 1)}),
            ([[1.0, 1.0], [0.0, 1.0]], {"all best": (0.5, 1)}),
        ],
    )
    def test_are_a_share_of_the_groups_of_two_or_more(self, groups, reasons):
        assert tie_reasons(make_ledger(groups, step=1), RunSettings()) == reasons

    def test_of_groups_of_one_there_are_none(self):
        assert tie_reasons(make_ledger([[1.0], [0.5]], step=1), RunSettings()) == {}


def test_a_resumed_run_has_the_newest_attempt_alone_and_says_what_came_late(ask_resumed):
    found = ask_resumed(health)
    assert found["steps"] == [0, 1] and (found["n_traced"], found["n_rows"]) == (4, 8)
    assert found["late"] == {"1": 1}
    point = ask_resumed(examples, step=1, name="reward/mean")
    assert (point["n_rows"], point["n_matched"]) == (4, 2)
