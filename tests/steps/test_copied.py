"""A row that is copied with its ledger keeps what was stored of it; rows beside it are computed as ever."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollout_traces.capture.host_copy import capture
from rollout_traces.flags.flag import Flag
from rollout_traces.ledger.build import build_ledger
from rollout_traces.ledger.columns import NULL_INT, Ledger
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.steps.copied import UNSEEN, CopiedRows


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
