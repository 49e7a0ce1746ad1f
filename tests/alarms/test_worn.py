"""A row wears what is abnormal for its run; the rest is said once, of the run, of the group, or under its cause."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rollout_traces.alarms.incidents import Incident, over_steps
from rollout_traces.alarms.signals import signals_of, watched
from rollout_traces.alarms.worn import usual_flags, worn
from tests.alarms.steps import GROUPS, SIZE, ledger


def usual_of(flags, n_steps=20, **options):
    return usual_flags(signals_of(ledger(flags, seed=step, **options), step) for step in range(n_steps))


class TestUsual:
    def test_is_what_more_than_a_tenth_carry_from_the_beginning(self):
        usual = usual_of({"template_drift": 1.0, "stale": 0.3, "repetition": 0.05})
        assert set(usual) == {"template_drift", "stale"}
        assert usual["stale"].share == pytest.approx(0.3, abs=0.05)

    def test_is_the_most_frequent_of_many_that_together_mark_more_than_a_twentieth(self):
        usual = usual_of({"tool_error": 0.07, "thinking_unclosed": 0.04, "repetition": 0.015, "loop": 0.01})
        assert set(usual) == {"tool_error", "thinking_unclosed"}
        assert usual_of({"thinking_unclosed": 0.03, "repetition": 0.01}) == {}

    def test_counts_rollouts_whose_tools_failed_and_no_calls(self):
        calls = np.full(GROUPS * SIZE, 10)
        errors = np.arange(GROUPS * SIZE) % 2
        steps = []
        for step in range(20):
            one = ledger(seed=step, n_tool_calls=calls, n_tool_errors=errors)
            one.columns["flags"][:] = [("tool_error",) if n else () for n in errors]
            steps.append(signals_of(one, step))
        assert usual_flags(steps)["tool_error"].share == 0.5

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

    def test_leaves_out_staleness_that_grew_while_the_run_began(self):
        steps = [signals_of(ledger({"stale": 0.4 * (step >= 5)}, seed=step), step) for step in range(60)]
        incidents = over_steps(steps, watched()).incidents
        assert incidents == ()
        assert worn(("stale",), 50, None, usual_flags(steps), incidents).usual == ("stale",)

    def test_wears_a_rise_within_the_first_steps(self):
        steps = [signals_of(ledger({"truncated": 0.9 * (step >= 8)}, seed=step), step) for step in range(30)]
        usual, incidents = usual_flags(steps), over_steps(steps, watched()).incidents
        assert "truncated" in usual
        assert worn(("truncated",), 15, None, usual, incidents).names == ("truncated",)

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
