"""An incident in words: one alert when it opens, with its figures and without a rollout's text."""

from __future__ import annotations

from rollout_traces.alarms.incidents import AlarmState, advance
from rollout_traces.alarms.report import alerts_of
from rollout_traces.alarms.signals import signals_of, watched
from tests.alarms.steps import ledger

SIGNALS = watched()


def alerts(ledgers):
    """All alerts of a run, with the step of each."""
    state, found = AlarmState(), []
    for step, one in enumerate(ledgers):
        state, events = advance(state, signals_of(one, step), SIGNALS)
        found += [(step, alert) for alert in alerts_of(events, SIGNALS, "rollout")]
    return found


def test_a_fault_that_stays_alerts_once():
    [(step, alert)] = alerts([ledger({"truncated": 0.9 if s >= 30 else 0.02}, seed=s) for s in range(80)])
    assert (step, alert.title, alert.level) == (31, "truncated on rollout", "warn")
    assert alert.text.startswith("Since step 31, rollout: 89.8% truncated, 2.1% in the steps before")
    assert "sampling stopped at the length limit" in alert.text and "above 50.0%" in alert.text


def test_one_that_comes_back_soon_alerts_no_more():
    faulty = {*range(30, 36), *range(50, 56)}
    assert len(alerts([ledger({"truncated": 0.9 if s in faulty else 0.02}, seed=s) for s in range(80)])) == 1


def test_the_worst_comes_first():
    found = alerts(
        [ledger({"truncated": 0.9 * (s >= 30), "mask_leak": 0.1 * (s >= 31)}, seed=s) for s in range(40)]
    )
    assert [(step, alert.level) for step, alert in found] == [(31, "error"), (31, "warn")]


def test_a_mean_is_told_with_what_it_was():
    found = alerts(
        [
            ledger(seed=s, mismatch_k3=0.001 + 0.02 * (s >= 30) + ledger(seed=s).get("group") * 0.0)
            for s in range(40)
        ]
    )
    [(_, alert)] = found
    assert alert.title == "mismatch on rollout"
    assert "mismatch is 0.021, 0.001 in the steps before" in alert.text
