"""A closed step, judged in milliseconds: no Trackio, no file, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rollout_traces.capture.host_copy import capture
from rollout_traces.ledger.build import build_ledger
from rollout_traces.ledger.columns import NULL_INT, Ledger
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.packed_batch import PackedBatch, StepKey, concatenate
from rollout_traces.model.transcript import Flag
from rollout_traces.settings.run_settings import RunSettings
from rollout_traces.sink.stored import StoredRow
from rollout_traces.steps.judge import LOSS_HISTOGRAM, UNSEEN, CopiedRows, Judge, Judgement, choose_rows
from rollout_traces.steps.open_step import ClosedStep
from rollout_traces.steps.row_reader import RowReader
from rollout_traces.steps.run_state import RunState, StepOptions, StoredStep, read_figures, read_run_state
from rollout_traces.trace.conversion import read_details, read_ledger

KEY = StepKey("a-001", 1, "rollout")
LENGTH = 6


def hand_over(name: str, rewards: list[float], groups: list[int], **tracks: np.ndarray) -> PackedBatch:
    """Rows of six tokens, of which the last four were sampled and the last three are in the loss."""
    n = len(rewards)
    sampled = np.tile([False, False, True, True, True, True], n)
    loss = np.tile([False, False, False, True, True, True], n)
    return PackedBatch(
        batch_id=name,
        step=1,
        split="rollout",
        offsets=np.arange(n + 1) * LENGTH,
        input_ids=np.arange(n * LENGTH) + hash(name) % 1000,
        loss_mask=loss,
        response_mask=sampled,
        response_mask_source="given",
        tracks={key: np.asarray(values, np.float32).reshape(-1) for key, values in tracks.items()},
        n_tokens=np.full(n, LENGTH),
        has_tokens=np.ones(n, bool),
        group_ids=np.asarray(groups),
        row_floats={"rewards": np.asarray(rewards, float)},
        attempt="a-001",
    )


def judge(
    *parts: PackedBatch,
    key: StepKey = KEY,
    stored: StoredStep | None = None,
    state: RunState | None = None,
    **options,
) -> Judgement:
    counters: Counter[str] = Counter()
    judged = Judge(StepOptions(metric_keys=("full",), **options), RowReader(None, counters), counters)
    return judged(
        closed_step(key, parts, options.get("settings")), stored or StoredStep(), state or RunState()
    )


def closed_step(
    key: StepKey, parts: Sequence[PackedBatch], settings: RunSettings | None = None
) -> ClosedStep:
    batch = concatenate(parts)
    uids = tuple(part.batch_id for part in parts)
    return ClosedStep(key, batch, build_ledger(batch, settings), uids, np.zeros(batch.n_rows, bool))


class TestAStepOfSeveralHandOvers:
    def test_groups_torn_over_two_calls_are_not_tied(self):
        groups = [0, 0, 1, 1]
        found = judge(hand_over("x", [1.0] * 4, groups), hand_over("y", [0.0] * 4, groups))
        assert found.scalars["rollout/group/tie_share"] == 0
        assert not any("tied_group" in names for names in found.rows.get("flags"))

    def test_groups_that_are_tied_over_both_calls_are(self):
        groups = [0, 0, 1, 1]
        found = judge(hand_over("x", [1.0] * 4, groups), hand_over("y", [1.0, 1.0, 0.0, 0.0], groups))
        assert found.scalars["rollout/group/tie_share"] == 0.5
        assert found.scalars["rollout/flags/tied_group_share"] == 0.5

    def test_every_column_is_what_one_call_would_have_given(self):
        rng = np.random.default_rng(0)
        advantages, logprobs = rng.normal(size=(8, LENGTH)), -rng.random((8, LENGTH))
        rewards, groups = rng.random(8).tolist(), [0, 1] * 4
        rows = {"advantages": advantages, "logprobs": logprobs}
        whole = judge(hand_over("x", rewards, groups, **rows))
        halves = [
            hand_over("x", rewards[at], groups[at], **{name: values[at] for name, values in rows.items()})
            for at in (slice(0, 4), slice(4, 8))
        ]
        torn = judge(halves[0], halves[1])
        for name in ("update_share", "advantage", "sample", "group", "mean_logprob"):
            np.testing.assert_allclose(torn.rows.get(name), whole.rows.get(name))
        assert torn.scalars == pytest.approx({**whole.scalars, **torn.scalars}, rel=1e-6)

    def test_the_summary_names_its_hand_overs_and_its_attempt(self):
        found = judge(hand_over("x", [1.0], [0]), hand_over("y", [0.0], [0]))
        assert found.summary is not None
        metadata = found.summary.metadata
        assert (metadata["batches"], metadata["attempt"], metadata["population"]) == ("x,y", "a-001", 2)
        ledger = read_ledger(found.summary)
        assert ledger.get("uid").tolist() == ["x-0", "y-0"]
        assert ledger.get("late").tolist() == [0, 0]


class TestLossTokens:
    """Update share, advantage and clip share speak of the loss tokens, which the sampled ones are not."""

    def test_of_which_the_advantage_is_the_mean(self):
        advantages = np.asarray([[0, 0, 9, 1, 2, 3]])
        found = judge(hand_over("x", [1.0], [0], advantages=advantages))
        assert found.rows.get("advantage").tolist() == [2.0]

    def test_of_which_the_update_is_the_sum(self):
        advantages = np.asarray([[0, 0, 100, 1, 1, 1], [0, 0, 0, 3, 3, 3]])
        logprobs = np.full((2, LENGTH), -1.0)
        found = judge(hand_over("x", [1.0, 0.0], [0, 0], advantages=advantages, logprobs=logprobs))
        assert found.rows.get("update_share") == pytest.approx([0.25, 0.75])

    def test_of_which_the_clip_share_is_taken(self):
        from rollout_traces.settings.run_settings import RunSettings

        new = np.asarray([[0, 0, 5.0, 5.0, 0, 0]])
        zeros = np.zeros((1, LENGTH))
        found = judge(
            hand_over("x", [1.0], [0], advantages=zeros + 1, prox_logprobs=zeros, new_logprobs=new),
            settings=RunSettings.create(clip_low=0.2, clip_high=0.2),
        )
        assert found.rows.get("clip_share") == pytest.approx([1 / 3])


class TestTheRunState:
    def leaking(self) -> PackedBatch:
        batch = hand_over("x", [1.0, 0.0], [0, 0])
        batch.loss_mask[0] = True
        return batch

    def test_a_share_that_stays_high_alerts_once(self):
        first = judge(self.leaking())
        second = judge(self.leaking(), key=KEY._replace(step=2), state=first.state)
        assert [alert.title for alert in first.alerts if "mask_leak" in alert.title]
        assert not [alert.title for alert in second.alerts if "mask_leak" in alert.title]

    def test_the_curve_of_a_flag_goes_on_at_zero_once_it_was_raised(self):
        unhurt = hand_over("y", [1.0, 0.0], [0, 0])
        first = judge(self.leaking())
        second = judge(unhurt, key=KEY._replace(step=2), state=first.state)
        leaks = "rollout/flags/mask_leak_share"
        assert first.scalars[leaks] > 0 and second.scalars[leaks] == 0
        assert leaks not in judge(unhurt).scalars

    def test_is_carried_by_the_summary_and_read_back_after_a_restart(self):
        first = judge(self.leaking())
        assert first.summary is not None
        kept = [("rollout", read_details(first.summary))]
        resumed = RunState.resumed(read_run_state(kept), read_figures(kept), [], first.state.totals, {})
        second = judge(self.leaking(), key=KEY._replace(step=2), state=resumed)
        assert not [alert for alert in second.alerts if "mask_leak" in alert.title]
        assert second.scalars["rollout/total/samples"] == 4

    def test_a_judgement_changes_no_state_that_it_was_given(self):
        state = RunState()
        judge(self.leaking(), state=state)
        assert state == RunState()


class TestALatePart:
    def test_has_a_summary_and_neither_metrics_nor_alerts(self):
        batch = hand_over("x", [1.0, 0.0], [0, 0])
        batch.loss_mask[0] = True
        found = judge(batch, key=KEY._replace(late=1))
        assert (dict(found.scalars), list(found.alerts), found.state) == ({}, [], RunState())
        assert found.summary is not None and found.summary.metadata["late"] == 1
        assert found.rows.get("late").tolist() == [1, 1]


class TestAStepThatIsStored:
    def test_is_not_summarised_again(self):
        stored = StoredStep(True, {"x-0": StoredRow("x-0", "random", 0.5)})
        found = judge(hand_over("x", [1.0, 0.0], [0, 0]), stored=stored)
        assert found.summary is None and not found.scalars and not found.alerts


class TestWhatFails:
    def test_metrics_that_fail_leave_the_ledger(self, monkeypatch):
        def broken(*arguments, **named):
            raise ValueError("no metrics of this")

        monkeypatch.setattr("rollout_traces.steps.judge.scalars_of", broken)
        found = judge(hand_over("x", [1.0], [0]))
        assert found.summary is not None and read_ledger(found.summary).n_rows == 1
        assert found.scalars == {}


def test_the_summary_carries_a_histogram_of_the_loss_tokens():
    zeros = np.zeros((2, LENGTH))
    found = judge(
        hand_over("x", [1.0, 0.0], [0, 0], advantages=zeros + 1, logprobs=zeros - 1, prox_logprobs=zeros - 1)
    )
    assert found.summary is not None
    assert LOSS_HISTOGRAM in read_details(found.summary)


class TestTheChoice:
    def chosen(self, stored: StoredStep | None = None, counters: Counter[str] | None = None, **options):
        step = closed_step(KEY, [hand_over("x", [1.0, 0.0, 0.5, 0.25], [0, 0, 1, 1])], None)
        made = StepOptions(metric_keys=("full",), **{"max_rollout_traces_per_step": 2, **options})
        counters = Counter() if counters is None else counters
        return choose_rows(step, step.rows, made, stored or StoredStep(), {}, counters)

    def test_is_as_many_as_are_wanted(self):
        assert len(self.chosen()) == 2 and len(self.chosen(max_rollout_traces_per_step=9)) == 4
        assert self.chosen(max_rollout_traces_per_step=0) == []

    def test_of_a_summarised_step_is_what_was_stored(self):
        kept = {
            "x-2": StoredRow("x-2", "random", 0.5),
            "x-0": StoredRow("x-0", "best", None),
            "y-0": StoredRow("y-0", "best", None),
        }
        stored = StoredStep(chosen=kept, is_summarised=True)
        found = self.chosen(stored)
        assert [(item.row, item.selected_by) for item in found] == [(0, "best"), (2, "random")]

    def test_a_policy_that_fails_is_counted_and_the_first_rows_are_taken(self):
        def fails(ledger, cap, rng):
            raise ValueError("no")

        counters: Counter[str] = Counter()
        found = self.chosen(counters=counters, selection=fails)
        assert [item.row for item in found] == [0, 1] and counters["selection_errors"] == 1


def packed(*ledger_rows: Any) -> PackedBatch:
    ones = np.ones((len(ledger_rows), 2), int)
    batch = RolloutBatch(
        input_ids=ones,
        attention_mask=ones,
        loss_mask=ones,
        advantages=np.ones(len(ledger_rows)),
        ledger_rows=list(ledger_rows),
    )
    return capture([batch], step=1, split="rollout")


def ledger_with_stored(*ledger_rows: Any) -> Ledger:
    batch = packed(*ledger_rows)
    return CopiedRows(batch).ledger(build_ledger(batch))


def test_stored_numbers_hold_and_other_rows_are_computed():
    ledger = ledger_with_stored({"n_sampled": 7, "mean_logprob": -0.5}, None)
    assert ledger.get("n_sampled").tolist() == [7, 2]
    assert ledger.get("mean_logprob")[0] == -0.5 and np.isnan(ledger.get("mean_logprob")[1])


def test_what_other_rows_decide_is_unknown_where_it_was_not_stored():
    ledger = ledger_with_stored({"update_share": 0.25}, {"n_sampled": 2})
    assert ledger.get("update_share")[0] == 0.25 and np.isnan(ledger.get("update_share")[1])
    assert ledger.get("equal_to").tolist() == [NULL_INT, NULL_INT]


def test_a_row_s_place_is_the_copy_s_and_odd_values_are_left_out():
    ledger = ledger_with_stored(
        {"step": 9, "sample": 5, "uid": "x", "n_sampled": "many", "n_turns": float("nan")}
    )
    assert (ledger.get("step")[0], ledger.get("sample")[0], ledger.get("n_sampled")[0]) == (1, 0, 2)
    assert ledger.get("uid")[0] != "x" and ledger.get("n_turns")[0] == 1


class TestFlags:
    FOUND = (Flag("mask_leak", "error", "3 tokens"), Flag("tied_group", "info", "all 1"))

    def test_those_that_were_stored_stay_with_the_sentences_found_anew(self):
        batch = packed({"flags": ["tied_group", "truncated", "their_own"]})
        flags = CopiedRows(batch).flags({0: self.FOUND})[0]
        assert [(flag.name, flag.message) for flag in flags] == [
            ("tied_group", "all 1"),
            ("truncated", UNSEEN),
            ("their_own", UNSEEN),
        ]

    def test_a_row_that_is_not_copied_has_what_was_found(self):
        batch = packed({"n_sampled": 2}, None)
        found = {0: self.FOUND, 1: self.FOUND}
        assert CopiedRows(batch).flags(found) == found

    def test_those_that_the_copy_does_not_show_are_named_all_the_same(self):
        assert [flag.name for flag in CopiedRows(packed({"flags": ["loop"]}, None)).flags({})[0]] == ["loop"]
