"""One cause opens one incident: what follows from it is a child of that incident, and nested on its rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rollout_traces.alarms.incidents import over_steps
from rollout_traces.alarms.report import sentence_of
from rollout_traces.alarms.signals import FOLLOWS_IN_A_RUN, signals_of, watched
from rollout_traces.alarms.worn import usual_flags, worn
from rollout_traces.decode import TranscriptDecoder
from rollout_traces.flags import REGISTRY
from tests.alarms.one_cause import N_ROWS, run_with
from tests.alarms.steps import ledger
from tests.flags.planted import faults_for
from tests.flags.steps import healthy_step, made_up_conversations
from tests.generator import tiny_tokenizer

SIGNALS = watched()
TOKENIZER = tiny_tokenizer("qwen3")
FAULTS = faults_for(TOKENIZER)
TOO_FEW = ("noise_amplified_group", "dominates_update", "reward_outlier")
"""Flags without a limit, whose planted rows are too few to be a rise."""

OTHER = {"tool_error": ("ends_unsampled",)}
"""What else is planted: the failed result is a rollout's last turn, and no tool was called."""


@pytest.fixture(scope="module")
def healthy():
    return healthy_step(TOKENIZER, made_up_conversations(N_ROWS), "made up"), TranscriptDecoder(TOKENIZER)


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{fault.flag}: {fault.what}" for fault in FAULTS])
def test_a_planted_fault_opens_one_incident_at_most(healthy, fault):
    step, decoder = healthy
    everything = replace(fault, parameters={"retokenized.context": 6, **fault.parameters})
    opened = run_with(everything, step, decoder).incidents
    assert len(opened) <= 1, [incident.name for incident in opened]
    assert opened or fault.flag in TOO_FEW
    expected = {fault.flag, *SIGNALS[fault.flag].explained_by, *OTHER.get(fault.flag, ())}
    assert {incident.signal for incident in opened} <= expected


def faulty(names_at, n_steps=40, **options):
    """Steps of rows that all carry the flags that `names_at` gives for the step."""
    return [
        signals_of(ledger(dict.fromkeys(names_at(step), 0.9), seed=step, **options), step)
        for step in range(n_steps)
    ]


class TestChildren:
    def test_of_a_cause_that_opens_in_the_same_step_open_nothing(self):
        steps = faulty(lambda step: ("tied_group", "duplicate_completions") if step >= 25 else ())
        [incident] = over_steps(steps, SIGNALS).incidents
        assert (incident.signal, incident.children) == ("duplicate_completions", ("tied_group",))

    def test_that_opened_just_before_their_cause_are_taken_in(self):
        steps = faulty(
            lambda step: (
                *(("tied_group",) if step >= 25 else ()),
                *(("duplicate_completions",) if step >= 27 else ()),
            )
        )
        [incident] = over_steps(steps, SIGNALS).incidents
        assert (incident.signal, incident.opened, incident.children) == (
            "duplicate_completions",
            28,
            ("tied_group",),
        )

    def test_that_were_open_long_before_stay_incidents(self):
        steps = faulty(
            lambda step: (
                *(("tied_group",) if step >= 22 else ()),
                *(("duplicate_completions",) if step >= 32 else ()),
            )
        )
        found = over_steps(steps, SIGNALS).incidents
        assert [incident.signal for incident in found] == ["tied_group", "duplicate_completions"]

    def test_of_another_source_open_their_own(self):
        steps = [
            signals_of(
                ledger(
                    seed=step,
                    n_groups=24,
                    sources=("math", "code", "chat", "search"),
                    flags_of_source={
                        "code": {"repetition": 0.9 * (step >= 25)},
                        "math": {"truncated": 0.95 * (step >= 25)},
                    },
                ),
                step,
            )
            for step in range(45)
        ]
        found = {(incident.signal, incident.source) for incident in over_steps(steps, SIGNALS).incidents}
        assert found == {("repetition", "code"), ("truncated", "math")}

    def test_are_named_in_the_sentence_and_worn_while_it_is_open(self):
        def of(step):
            late = step >= 25
            one = ledger({"untrained_sampled": 0.95 if late else 0.2}, seed=step, kept_at_random=32)
            kept = [uid is not None for uid in one.get("trace_uid")]
            one.columns["flags"][:] = [
                (*names, "eos_untrained") if late and is_kept and names else names
                for names, is_kept in zip(one.get("flags"), kept, strict=True)
            ]
            return signals_of(one, step)

        steps = [of(step) for step in range(40)]
        usual, [incident] = usual_flags(steps), over_steps(steps, SIGNALS).incidents
        assert (incident.signal, incident.children) == ("eos_untrained", ("untrained_sampled",))
        assert "It explains untrained_sampled." in sentence_of(incident, SIGNALS, "rollout")
        assert "untrained_sampled" in usual
        assert worn(("untrained_sampled",), 30, None, usual, [incident]).names == ("untrained_sampled",)
        assert worn(("untrained_sampled",), 10, None, usual, [incident]).names == ()


def test_a_cause_has_fewer_causes_than_what_it_explains():
    for signal in SIGNALS.values():
        for cause in signal.explained_by:
            assert signal.name not in SIGNALS[cause].explained_by, "no circle"
            assert len(SIGNALS[cause].explained_by) < len(signal.explained_by)


def test_what_follows_in_a_run_names_signals():
    assert {*FOLLOWS_IN_A_RUN, *(name for names in FOLLOWS_IN_A_RUN.values() for name in names)} <= set(
        SIGNALS
    )
    assert all(cause in REGISTRY for spec in REGISTRY.values() for cause in spec.explained_by)


def test_a_row_with_an_end_marker_out_of_the_loss_wears_one_flag():
    assert worn(("untrained_sampled", "eos_untrained"), 1, None, {}, ()).worn == (
        ("eos_untrained", ("untrained_sampled",)),
    )
