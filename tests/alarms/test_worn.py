"""A row wears what is abnormal for its run; the rest is said once, of the run, of the group, or under its cause."""

from __future__ import annotations

import dataclasses

import pytest

from rollout_traces.alarms.incidents import Incident
from rollout_traces.alarms.signals import signals_of
from rollout_traces.alarms.worn import usual_flags, worn
from tests.alarms.steps import ledger


def usual_of(flags, n_steps=20, **options):
    return usual_flags(signals_of(ledger(flags, seed=step, **options), step) for step in range(n_steps))


class TestUsual:
    def test_is_what_more_than_a_tenth_carry_from_the_beginning(self):
        usual = usual_of({"template_drift": 1.0, "stale": 0.3, "repetition": 0.05})
        assert set(usual) == {"template_drift", "stale"}
        assert usual["stale"].share == pytest.approx(0.3, abs=0.05)

    def test_is_no_error(self):
        assert usual_of({"mask_leak": 1.0}) == {}

    def test_is_judged_by_the_first_twenty_steps(self):
        steps = [signals_of(ledger({"stale": float(step >= 20)}, seed=step), step) for step in range(60)]
        assert usual_flags(steps) == {}

    def test_of_text_is_judged_by_rows_read_at_random(self):
        usual = usual_of({"template_drift": 1.0}, kept_at_random=8)
        assert usual["template_drift"].n == 8 * 20

    def test_needs_enough_rollouts(self):
        assert usual_of({"stale": 1.0}, n_steps=1, n_groups=2, size=4) == {}


class TestWorn:
    def test_leaves_out_what_is_usual_unless_it_rose(self):
        usual = usual_of({"stale": 0.3})
        assert worn(("stale", "repetition"), 50, None, usual, ()).names == ("repetition",)
        rose = Incident("stale", "", "warn", 40, 60, 0.9, 0.9, 0.5, closed=65)
        assert worn(("stale",), 50, None, usual, [rose]).names == ("stale",)
        for step in (39, 61):
            assert worn(("stale",), step, None, usual, [rose]).usual == ("stale",)

    def test_leaves_out_what_began_while_the_run_did(self):
        steps = [signals_of(ledger({"stale": 0.4 * (step >= 5)}, seed=step), step) for step in range(20)]
        warmed_up = Incident("stale", "", "warn", 8, 60, 0.4, 0.4, 0.25)
        assert worn(("stale",), 50, None, usual_flags(steps), [warmed_up]).usual == ("stale",)
        came_back = dataclasses.replace(warmed_up, reopened=(45,))
        assert worn(("stale",), 50, None, usual_flags(steps), [came_back]).names == ("stale",)

    def test_wears_a_rise_of_its_own_source_alone(self):
        usual = usual_of({"stale": 0.3})
        rose = Incident("stale", "code", "warn", 40, 60, 0.9, 0.9, 0.5)
        assert worn(("stale",), 50, "code", usual, [rose]).names == ("stale",)
        assert worn(("stale",), 50, "math", usual, [rose]).names == ()

    def test_wears_errors_always_and_first(self):
        row = worn(("repetition", "mask_leak"), 1, None, {}, ())
        assert row.names == ("mask_leak", "repetition")

    def test_has_causes_hold_what_they_explain(self):
        flags = ("thinking_unclosed", "truncated", "no_end_marker", "tool_call_unparsed", "empty_completion")
        assert worn(flags, 1, None, {}, ()).worn == (
            ("truncated", ("thinking_unclosed", "no_end_marker", "tool_call_unparsed", "empty_completion")),
        )
        assert worn(("mask_leak", "mask_shifted"), 1, None, {}, ()).worn == (
            ("mask_leak", ("mask_shifted",)),
        )
        assert worn(("thinking_unclosed",), 1, None, {}, ()).names == ("thinking_unclosed",)

    def test_a_usual_cause_takes_what_it_explains_along(self):
        usual = usual_of({"truncated": 0.4})
        assert worn(("truncated", "thinking_unclosed"), 1, None, usual, ()).names == ()

    def test_leaves_facts_of_the_group_to_the_group(self):
        row = worn(("tied_group", "duplicate_completions", "noise_amplified_group"), 1, None, {}, ())
        assert row.names == () and len(row.of_group) == 3

    def test_wears_flags_of_a_newer_version(self):
        assert worn(("not_known_here",), 1, None, {}, ()).names == ("not_known_here",)


def test_an_open_incident_covers_every_step_from_its_first():
    incident = Incident("stale", "", "warn", 40, 60, 0.9, 0.9, 0.5)
    assert [step for step in (39, 40, 60, 99) if incident.covers(step)] == [40, 60, 99]
    closed = dataclasses.replace(incident, closed=65)
    assert [step for step in (39, 40, 60, 65, 99) if closed.covers(step)] == [40, 60]
