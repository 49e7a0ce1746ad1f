from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rollout_traces.flags.detect import (
    Runs,
    TracedRow,
    combine,
    curves,
    describe_off,
    flag_metrics,
    flag_population,
    flag_row,
)
from rollout_traces.flags.registry import as_arrays
from rollout_traces.model.text import quoted
from rollout_traces.model.transcript import Flag
from tests.flags.planted import FAULTS, ROW
from tests.flags.steps import find_flags, population_of


class TestCombine:
    def test_row_detectors_replace_what_the_population_said_and_the_worst_comes_first(self, step, decoder):
        transcript = decoder.decode_batch(step.batch(), [0])[0]
        at = transcript.turns[2].body_start
        combined = combine(
            [
                Flag("truncated", "warn", "cut", start=at, stop=at + 1),
                Flag("mask_leak", "error", "from masks"),
            ],
            [Flag("retokenized", "info", "other ids"), Flag("mask_leak", "error", "from turns", turn=3)],
            transcript,
        )
        assert [(flag.name, flag.message) for flag in combined] == [
            ("mask_leak", "from turns"),
            ("truncated", "cut"),
            ("retokenized", "other ids"),
        ]
        assert combined[1].turn == 2

    def test_flags_of_the_whole_row_have_no_turn(self, step, decoder):
        transcript = decoder.decode_batch(step.batch(), [0])[0]
        assert combine([Flag("tied_group", "warn", "tied")], [], transcript)[0].turn is None

    def test_the_worst_tokens_of_a_mismatch_are_shown_with_their_text(self, step, decoder, tokenizer):
        row = step.rows[5]
        row.tracks["prox_logprobs"][row.sampled] -= 0.5
        found = find_flags(step.batch(), decoder, tokenizer, rows=[5])
        flag = found.named("logprob_mismatch", 5)[0]
        text = list(found.transcripts[5].token_texts())[flag.start]
        assert f"{flag.start} {quoted(text)}" in flag.message
        assert flag.turn is not None


class TestWhatIsLookedFor:
    def test_flags_on_request_are_found_when_named_or_when_a_threshold_is_set(self, step, decoder, tokenizer):
        next(fault for fault in FAULTS if fault.flag == "retokenized").plant(step)
        batch = step.batch()
        row = TracedRow(decoder.decode_batch(batch, [ROW])[0], batch, ROW, tokenizer=tokenizer)
        assert "retokenized" not in {flag.name for flag in flag_row(row)}
        assert "retokenized" in {flag.name for flag in flag_row(row, only=["retokenized"])}
        asked = replace(row, parameters={"retokenized.context": 6})
        assert "retokenized" in {flag.name for flag in flag_row(asked)}
        assert {flag.name for flag in flag_row(row, only=["mask_leak"])} == set()

    def test_flags_about_training_are_silent_on_evaluation(self, step):
        for row in step.rows:
            row.values["rewards"] = 1.0
            row.tracks["loss_mask"][:] = 0
        batch = step.batch()
        training = {f.name for flags in flag_population(population_of(batch)).values() for f in flags}
        assert {"tied_group", "row_masked"} <= training
        evaluation = replace(batch, split="eval-rollout")
        silent = {f.name for flags in flag_population(population_of(evaluation)).values() for f in flags}
        assert not silent & {"tied_group", "row_masked", "untrained_sampled", "dominates_update"}

    def test_rows_whose_tokens_were_left_behind_raise_no_token_flag(self, step):
        batch = step.batch()
        n = len(batch.input_ids)
        behind = replace(
            batch,
            offsets=batch.offsets * 0,
            has_tokens=batch.has_tokens & False,
            input_ids=batch.input_ids[:0],
            loss_mask=batch.loss_mask[:0],
            response_mask=batch.response_mask[:0],
            tracks={name: track[:0] for name, track in batch.tracks.items()},
        )
        assert n and not flag_population(population_of(behind, {"stale.limit": 0}))

    def test_the_ledger_column_holds_each_name_once(self):
        twice = [Flag("a", "info", "1"), Flag("b", "info", "2"), Flag("a", "info", "3")]
        assert as_arrays({1: twice}, 2).tolist() == [(), ("a", "b")]


LEAK = Flag("mask_leak", "error", "leaked")
CUT = Flag("truncated", "warn", "cut")
TOOL = Flag("tool_error", "warn", "failed")


class TestFlagMetrics:
    def test_flags_without_text_are_shares_of_all_rows(self):
        shares = flag_metrics({0: [CUT, CUT], 3: [CUT, LEAK]}, 8, "rollout")
        assert shares["rollout/flags/truncated_share"] == 2 / 8
        assert shares["rollout/flags/mask_leak_share"] == 1 / 8
        assert shares["rollout/flags/repetition_share"] == 0
        assert not [key for key in shares if "random" in key]

    def test_flags_of_the_text_are_shares_of_the_random_rows(self):
        shares = flag_metrics({}, 512, "eval-rollout", random_flags={4: [TOOL, TOOL], 9: [], 11: [], 12: []})
        assert shares["eval-rollout/flags/tool_error_random_share"] == 1 / 4
        assert shares["eval-rollout/flags/random_share_n"] == 4
        assert "eval-rollout/flags/tool_error_share" not in shares

    def test_what_is_off_has_no_key(self):
        shares = flag_metrics({}, 8, "rollout", off={"truncated": ("stop_reasons",)})
        assert "rollout/flags/truncated_share" not in shares
        assert "rollout/flags/mask_leak_share" in shares

    def test_flags_about_training_have_no_key_on_evaluation(self):
        assert "eval-rollout/flags/tied_group_share" not in flag_metrics({}, 8, "eval-rollout")

    def test_a_flag_on_request_has_a_key_when_one_of_its_thresholds_is_set(self):
        key = "rollout/flags/retokenized_random_share"
        assert key not in flag_metrics({}, 8, "rollout", random_flags={0: []})
        assert key in flag_metrics(
            {}, 8, "rollout", random_flags={0: []}, parameters={"retokenized.context": 6}
        )

    def test_no_rows_give_no_key(self):
        assert flag_metrics({}, 0, "rollout", random_flags={}) == {}


class TestDescribeOff:
    def test_flags_are_named_with_what_they_lack(self):
        off = {"stale": ("stale.limit",), "retokenized": ("tokenizer",), "template_drift": ("tokenizer",)}
        expected = "stale (no stale.limit); retokenized, template_drift (no tokenizer)."
        assert describe_off(off) == expected
        assert describe_off({}) == ""


class TestCurves:
    def test_a_flags_curve_begins_at_the_first_step_that_raised_it(self):
        raised: set[str] = set()
        key = "rollout/flags/truncated_share"
        assert curves({key: 0.0, "rollout/reward/mean": 0.5}, raised) == {"rollout/reward/mean": 0.5}
        assert curves({key: 0.25}, raised) == {key: 0.25}
        assert curves({key: 0.0}, raised) == {key: 0.0}


def runs_by_hand(rows: list[list[bool]]) -> list[tuple[int, int, int]]:
    found = []
    for number, row in enumerate(rows):
        start = None
        for at, marked in enumerate([*row, False]):
            if marked and start is None:
                start = at
            elif not marked and start is not None:
                found.append((number, start, at))
                start = None
    return found


class TestRuns:
    @given(st.lists(st.lists(st.booleans(), max_size=12), max_size=8))
    def test_runs_are_maximal_and_stay_inside_their_row(self, rows):
        mask = np.asarray([marked for row in rows for marked in row], bool)
        offsets = np.cumsum([0, *map(len, rows)])
        runs = Runs.of(mask, offsets)
        found = [(int(row), *runs.local(index)) for index, row in enumerate(runs.rows)]
        assert found == runs_by_hand(rows)

    def test_first_and_last_of_a_row(self):
        runs = Runs.of(np.asarray([1, 0, 1, 1, 0, 1], bool), np.asarray([0, 3, 3, 6]))
        assert [part.tolist() for part in runs.first_of_rows()] == [[0, 2], [0, 2]]
        assert [part.tolist() for part in runs.last_of_rows()] == [[0, 2], [1, 3]]
        assert runs.lengths.tolist() == [1, 1, 1, 1]
