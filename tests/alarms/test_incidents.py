"""One incident a fault: it opens when the fault is sure, stays one while it lasts, and comes back as the same one."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest

from rollout_traces.alarms import incidents as incidents_of_a_run
from rollout_traces.alarms.incidents import AlarmState, advance, over_steps
from rollout_traces.alarms.signals import signals_of, watched
from tests.alarms.steps import GROUPS, SIZE, ledger

SIGNALS = watched()


def incidents(ledgers):
    return over_steps((signals_of(one, step) for step, one in enumerate(ledgers)), SIGNALS).incidents


def run(share_at, n_steps=100, name="truncated", **options):
    return [ledger({name: share_at(step)}, seed=step, **options) for step in range(n_steps)]


class TestOpening:
    def test_takes_two_steps_of_three(self):
        [incident] = incidents(run(lambda step: 0.9 if step in (40, 42) else 0.05, 45))
        assert (incident.signal, incident.opened) == ("truncated", 42)

    def test_one_odd_step_is_none(self):
        assert incidents(run(lambda step: 0.9 if step == 40 else 0.05)) == ()

    def test_one_of_few_rollouts_is_none(self):
        few = run(lambda step: 0.9 if step > 40 else 0.05, 42 + 1, n_groups=2, size=3)
        assert incidents(few) == ()

    def test_pools_three_small_steps(self):
        few = run(lambda step: 0.95 if step >= 40 else 0.02, 60, n_groups=3, size=4)
        [incident] = incidents(few)
        assert 41 <= incident.opened <= 44

    def test_is_at_once_for_an_error_and_from_one_row(self):
        ledgers = run(lambda step: 0.0, 10, name="mask_leak")
        ledgers[6].columns["flags"][17] = ("mask_leak",)
        [incident] = incidents(ledgers)
        assert (incident.opened, incident.n_rows, incident.severity) == (6, 1, "error")

    @pytest.mark.parametrize("above, opens", [(None, False), (0.5, False), (0.001, True)])
    def test_of_an_error_follows_the_limit_that_was_set(self, above, opens):
        signals = watched({"mask_leak.alert_above": above})
        seen = signals_of(ledger({"mask_leak": 0.1}), 0)
        assert bool(advance(AlarmState(), seen, signals)[1]) == opens

    def test_an_error_that_needs_text_counts_kept_rows_that_were_not_drawn(self):
        ledgers = run(lambda step: 0.0, 10, name="mask_shifted", kept_at_random=8)
        ledgers[6].columns["selected_by"][:] = "longest"
        ledgers[6].columns["flags"][17] = ("mask_shifted",)
        assert [known.opened for known in incidents(ledgers)] == [6]

    def test_a_flag_that_needs_text_is_judged_by_rows_read_at_random(self):
        ledgers = run(
            lambda step: 0.9 if step >= 30 else 0.05, 40, name="tool_call_unparsed", kept_at_random=8
        )
        [incident] = incidents(ledgers)
        assert 31 <= incident.opened <= 34
        for step in range(30, 40):
            ledgers[step].columns["selected_by"][:] = "longest"
        assert incidents(ledgers) == (), "what was chosen for being odd tells no share"

    def test_is_of_the_source_that_has_it(self):
        found = incidents(
            [
                ledger(
                    seed=step,
                    n_groups=24,
                    sources=("math", "code", "chat", "search"),
                    flags_of_source={"code": {"repetition": 0.4 if step >= 30 else 0.01}},
                )
                for step in range(60)
            ]
        )
        assert [(known.signal, known.source) for known in found] == [("repetition", "code")]

    def test_of_all_sources_is_one(self):
        found = incidents(run(lambda step: 0.9 if step >= 30 else 0.05, 60, sources=("math", "code")))
        assert [(known.signal, known.source) for known in found] == [("truncated", "")]

    def test_what_a_cause_explains_is_not_told_again(self):
        ledgers = [
            ledger({"truncated": 0.9 if step >= 30 else 0.02}, seed=step, kept_at_random=32)
            for step in range(50)
        ]
        for one in ledgers:
            names = one.columns["flags"]
            names[:] = [
                (*row, "tool_call_unparsed", "empty_completion") if "truncated" in row else row
                for row in names
            ]
        assert [known.signal for known in incidents(ledgers)] == ["truncated"]


class TestWhatIsUsual:
    @pytest.mark.parametrize("share", [0.15, 0.6, 1.0])
    def test_for_the_run_is_no_incident(self, share):
        assert incidents(run(lambda step: share, 100)) == ()

    def test_is_one_once_it_rises(self):
        [incident] = incidents(run(lambda step: 0.6 if step < 50 else 0.98, 60))
        assert incident.opened == 51 and incident.limit == pytest.approx(0.9, abs=0.05)

    def test_is_what_the_runs_first_steps_had_also_where_a_rise_was_pooled(self):
        few = run(lambda step: 0.95 if step >= 40 else 0.1, 60, name="repetition", n_groups=3, size=4)
        [incident] = incidents(few)
        assert incident.usual == pytest.approx(0.1, abs=0.03)


class TestLasting:
    def test_a_fault_that_comes_and_goes_stays_one_incident(self):
        [incident] = incidents(run(lambda step: 0.9 if step >= 40 and step % 3 else 0.05))
        assert incident.closed is None and incident.last == 98

    def test_closes_after_five_quiet_steps(self):
        [incident] = incidents(run(lambda step: 0.9 if 40 <= step < 50 else 0.05))
        assert (incident.opened, incident.last, incident.closed) == (41, 49, 54)

    def test_closes_after_steps_that_have_its_source(self):
        def one(step):
            code = step % 3 == 0
            faulty = {"code": {"repetition": 0.8 if 30 <= step < 60 else 0.0}}
            sources = ("code", "math") if code else ("math", "chat")
            return ledger(seed=step, sources=sources, flags_of_source=faulty)

        [incident] = incidents([one(step) for step in range(100)])
        assert (incident.source, incident.last) == ("code", 57)
        assert incident.closed == 57 + 5 * 3

    def test_reopens_within_fifty_steps(self):
        [incident] = incidents(run(lambda step: 0.9 if 40 <= step < 45 or 70 <= step < 75 else 0.05))
        assert (incident.opened, incident.reopened) == (41, (71,))

    def test_is_another_one_later(self):
        found = incidents(run(lambda step: 0.9 if 40 <= step < 45 or step >= 130 else 0.05, 140))
        assert [known.opened for known in found] == [41, 131]


class TestChanges:
    def test_of_tool_errors_a_call(self):
        def one(step):
            rng = np.random.default_rng(step)
            calls = rng.integers(0, 4, GROUPS * SIZE)
            errors = rng.binomial(calls, 0.5 if step >= 60 else 0.1)
            return ledger(seed=step, n_tool_calls=calls, n_tool_errors=errors)

        [incident] = incidents([one(step) for step in range(80)])
        assert incident.signal == "tool_error" and incident.opened in (61, 62)
        assert incident.usual == pytest.approx(0.1, abs=0.03)

    def test_of_reward_failures(self):
        def one(step):
            failed = np.random.default_rng(step).random(GROUPS * SIZE) < (0.3 if step >= 40 else 0.01)
            return ledger(seed=step, reward_status=np.where(failed, "timeout", "ok").astype(object))

        steps = [one(step) for step in range(60)]
        [incident] = incidents(steps)
        assert (incident.signal, incident.opened) == ("reward_failure", 41)
        assert incident.n_rows == sum((rows.get("reward_status") == "timeout").sum() for rows in steps[41:])

    def test_of_truncation_below_its_limit(self):
        [incident] = incidents(run(lambda step: 0.4 if step >= 40 else 0.05, 60))
        assert (incident.signal, incident.opened) == ("truncated", 41)

    @pytest.mark.parametrize(
        "column, before, after", [("mismatch_k3", 1e-3, 1e-2), ("mean_logprob", -0.9, -0.3)]
    )
    def test_of_a_mean(self, column, before, after):
        def one(step):
            at = after if step >= 40 else before * (1 + 0.002 * step)
            values = at * np.random.default_rng(step).lognormal(0, 0.3, GROUPS * SIZE)
            return ledger(seed=step, **{column: values})

        [incident] = incidents([one(step) for step in range(60)])
        assert incident.is_level and incident.opened == 41

    def test_that_go_slowly_are_none(self):
        def one(step):
            values = -(0.9 - 0.008 * step) * np.random.default_rng(step).lognormal(0, 0.3, GROUPS * SIZE)
            return ledger({"truncated": 0.02 + 0.003 * step}, seed=step, mean_logprob=values)

        assert incidents([one(step) for step in range(100)]) == ()


def test_noise_alone_opens_less_than_one_in_a_hundred_steps():
    shares = {"truncated": 0.08, "repetition": 0.03, "reward_outlier": 0.05, "tied_group": 0.4, "stale": 0.2}
    n_incidents = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        drift = np.cumsum(rng.normal(0, 0.01, 100))
        ledgers = [
            ledger(
                {name: share * np.exp(drift[step]) for name, share in shares.items()},
                seed=1000 * seed + step,
                n_groups=int(rng.integers(4, 20)),
                mismatch_k3=None,
            )
            for step in range(100)
        ]
        for one in ledgers:
            one.columns.pop("mismatch_k3")
            one.columns["mismatch_k3"] = 1e-3 * rng.lognormal(0, 1.0, one.n_rows)
            one.columns["mean_logprob"] = -0.6 * rng.lognormal(0, 0.4, one.n_rows)
        n_incidents += len(incidents(ledgers))
    assert n_incidents <= 10


def test_a_state_that_was_written_and_read_goes_on_the_same():
    ledgers = run(lambda step: 0.9 if 40 <= step < 50 or step >= 70 else 0.05, 90)
    whole = over_steps((signals_of(one, step) for step, one in enumerate(ledgers)), SIGNALS)
    state = AlarmState()
    for step, one in enumerate(ledgers):
        state, _ = advance(state, signals_of(one, step), SIGNALS)
        state = AlarmState.from_plain(json.loads(json.dumps(state.as_plain())))
    assert state == whole and len(state.incidents) == 1


def test_a_state_hands_on_no_incident_that_is_long_over():
    ledgers = run(lambda step: 0.9 if 40 <= step < 45 else 0.05, 90)
    whole = over_steps((signals_of(one, step) for step, one in enumerate(ledgers)), SIGNALS)
    assert len(whole.pruned(90).incidents) == 1 and whole.pruned(120).incidents == ()


def test_a_state_is_small_enough_to_be_stored_with_every_step():
    ledgers = run(lambda step: 0.3, 60, sources=("math", "code", "chat"))
    state = over_steps((signals_of(one, step) for step, one in enumerate(ledgers)), SIGNALS)
    assert len(zlib.compress(json.dumps(state.as_plain()).encode())) < 8000


class TestSignalsThatAreAlike:
    @pytest.mark.parametrize("small", [False, True])
    def test_are_judged_as_each_would_be_alone(self, small, monkeypatch):
        """Signals that share a verdict leave the same tracks as signals that each have one of their own."""
        shape = {"n_groups": 1, "size": 1} if small else {}
        shares = {"truncated": 0.3, "stale": 0.2, "mixed_versions": 0.5, "nonfinite": 0.02, "repetition": 0.1}
        steps = [
            signals_of(
                ledger({name: share * (step % 7 > 3) for name, share in shares.items()}, seed=step, **shape),
                step,
            )
            for step in range(60)
        ]
        together = over_steps(steps, SIGNALS)
        judge = incidents_of_a_run._judge
        monkeypatch.setattr(incidents_of_a_run, "_judge", lambda *arguments: judge(*arguments[:-1], {}))
        alone = over_steps(steps, SIGNALS)
        assert (alone.incidents, dict(alone.tracks)) == (together.incidents, dict(together.tracks))

    def test_that_share_a_track_are_stored_with_it_once_and_share_it_again(self):
        state = over_steps([signals_of(ledger({}), step) for step in range(5)], SIGNALS)
        stored = json.loads(json.dumps(state.as_plain()))
        again = AlarmState.from_plain(stored)
        assert len(stored["tracks"]) < 5 < len(state.tracks)
        assert dict(again.tracks) == dict(state.tracks)
        assert len({id(track) for track in again.tracks.values()}) == len(stored["tracks"])
