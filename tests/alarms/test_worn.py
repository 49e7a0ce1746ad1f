"""A row wears what is abnormal for its run; the rest is said once, of the run, of the group, or under its cause."""

from __future__ import annotations

import pytest

from rollout_traces.alarms.worn import Rise, rises, usual_flags, worn
from rollout_traces.analysis.selections import RunScope
from tests.alarms.steps import ledger
from tests.analysis.builders import table


def scope_of(ledgers) -> RunScope:
    """A run of some ledgers."""
    rows = [
        {**one.row(b), "step": step, "id": f"{step}-{b}", "traced": one.get("trace_uid")[b] is not None}
        for step, one in enumerate(ledgers)
        for b in range(one.n_rows)
    ]
    return RunScope(table(rows), "run", "rollout")


def usual_of(flags, n_steps=20, **options):
    return usual_flags(scope_of([ledger(flags, seed=step, **options) for step in range(n_steps)]))


class TestUsual:
    def test_is_what_more_than_a_tenth_carry_from_the_beginning(self):
        usual = usual_of({"template_drift": 1.0, "stale": 0.3, "repetition": 0.05})
        assert set(usual) == {"template_drift", "stale"}
        assert usual["stale"].share == pytest.approx(0.3, abs=0.05)

    def test_is_the_most_frequent_of_many_that_together_mark_more_than_a_twentieth(self):
        usual = usual_of({"tool_error": 0.07, "thinking_unclosed": 0.04, "repetition": 0.015, "loop": 0.01})
        assert set(usual) == {"tool_error", "thinking_unclosed"}
        assert usual_of({"thinking_unclosed": 0.03, "repetition": 0.01}) == {}

    def test_is_no_error(self):
        assert usual_of({"mask_leak": 1.0}) == {}

    def test_is_judged_by_the_first_twenty_steps(self):
        assert usual_flags(scope_of([ledger({"stale": float(s >= 20)}, seed=s) for s in range(40)])) == {}

    def test_of_text_is_judged_by_rows_read_at_random(self):
        usual = usual_of({"template_drift": 1.0}, kept_at_random=8)
        assert usual["template_drift"].n == 8 * 20

    def test_needs_enough_rollouts(self):
        assert usual_of({"stale": 1.0}, n_steps=1, n_groups=2, size=4) == {}


class TestRises:
    def test_are_found_as_explain_finds_them(self):
        scope = scope_of([ledger({"stale": 0.9 if 20 <= s < 30 else 0.3}, seed=s) for s in range(40)])
        assert rises(scope, usual_flags(scope)) == [Rise("stale", 20, 29)]

    def test_of_a_source_are_said_of_it(self):
        def one(s):
            faulty = {"code": {"stale": 0.9 if s >= 20 else 0.3}, "math": {"stale": 0.3}}
            return ledger(seed=s, sources=("math", "code"), flags_of_source=faulty)

        scope = scope_of([one(s) for s in range(40)])
        assert rises(scope, usual_flags(scope)) == [Rise("stale", 20, None, (("source", "code"),))]

    def test_are_none_while_a_run_fills_its_queue(self):
        scope = scope_of([ledger({"stale": 0.4 * (s >= 2)}, seed=s) for s in range(60)])
        assert "stale" in usual_flags(scope) and rises(scope, usual_flags(scope)) == []

    def test_that_begin_within_the_first_twenty_steps_and_last_are_worn(self):
        """Seen once: half of all searches failed from step 12 on, and no row wore it: it was usual in this run."""
        scope = scope_of([ledger({"tool_error": 0.5 * (s >= 12)}, seed=s) for s in range(24)])
        assert "tool_error" in usual_flags(scope)
        assert rises(scope, usual_flags(scope)) == [Rise("tool_error", 12, None)]

    def test_that_may_be_noise_that_lasts_are_worn(self):
        """Seen once: a tool host was down from step 18 to 25, and the rows that failed wore nothing."""

        def one(s: int):
            return ledger({"tool_error": 0.4 if 18 <= s < 26 else 0.1}, seed=s, kept_at_random=3)

        scope = scope_of([one(s) for s in range(40)])
        [rise] = rises(scope, usual_flags(scope))
        assert rise.name == "tool_error" and abs(rise.first - 18) <= 2 and abs(rise.last - 25) <= 2


class TestWorn:
    def test_leaves_out_what_is_usual_unless_it_rose(self):
        usual = usual_of({"stale": 0.3})
        assert worn(("stale", "repetition"), 50, None, usual, ()).names == ("repetition",)
        rose = Rise("stale", 40, 60)
        assert worn(("stale",), 50, None, usual, [rose]).names == ("stale",)
        for step in (39, 61):
            assert worn(("stale",), step, None, usual, [rose]).usual == ("stale",)

    def test_wears_a_rise_of_its_own_source_alone(self):
        usual = usual_of({"stale": 0.3})
        rose = Rise("stale", 40, 60, (("source", "code"),))
        assert worn(("stale",), 50, "code", usual, [rose]).names == ("stale",)
        assert worn(("stale",), 50, "math", usual, [rose]).names == ()

    def test_wears_errors_always_and_first(self):
        row = worn(("repetition", "mask_leak"), 1, None, {}, ())
        assert row.names == ("mask_leak", "repetition")

    def test_has_causes_hold_what_they_explain(self):
        """Seen once: one fact was said four times."""
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


def test_a_rise_that_lasts_covers_every_step_from_its_first():
    assert [step for step in (39, 40, 60, 99) if Rise("stale", 40, None).covers(step, None)] == [40, 60, 99]
    assert [step for step in (39, 40, 60, 65, 99) if Rise("stale", 40, 60).covers(step, None)] == [40, 60]
