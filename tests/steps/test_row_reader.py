"""Spans of time as a hand-over brings them: good ones stay, others are counted."""

from __future__ import annotations

from collections import Counter

import numpy as np

import rollout_traces as rt
from rollout_traces.capture.host_copy import capture
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.spans import read_packed
from rollout_traces.steps.redact import HIDDEN, Redaction
from rollout_traces.steps.row_reader import RowReader
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer

GOOD = {"kind": "generate", "start": 10.0, "end": 12.5, "turn": 0, "engine": "e0", "version": 3}


def handed_over(*timings, **more):
    ones = np.ones((len(timings), 2), int)
    return capture(
        [RolloutBatch(input_ids=ones, attention_mask=ones, loss_mask=ones, timings=list(timings), **more)],
        step=1,
        split="rollout",
    )


class TestSpans:
    def test_bad_ones_are_left_out_and_counted_and_mappings_stay(self):
        counters: Counter[str] = Counter()
        batch = handed_over([GOOD, {"kind": "generate", "start": 12}], {"generate": 2.0}, [7], None)
        labelled = RowReader(None, counters).label(batch)
        assert labelled.row_lists["timings"] == [[GOOD], {"generate": 2.0}, [], None]
        assert counters["spans_refused"] == 2
        assert any("2 of 3 could not be understood" in note for note in labelled.notes)

    def test_a_rollout_of_100000_stages_keeps_its_longest(self):
        counters: Counter[str] = Counter()
        many = [
            {"kind": "tool", "start": float(at), "end": at + (2.0 if at % 10 == 0 else 0.1)}
            for at in range(100_000)
        ]
        labelled = RowReader(None, counters).label(handed_over(many))
        (found,) = labelled.row_lists["timings"]
        assert len(found) == 10_000 and all(span["end"] - span["start"] == 2.0 for span in found)
        assert counters["spans_left_out"] == 90_000
        assert any("90,000 of 100,000, the shortest" in note for note in labelled.notes)

    def test_names_are_redacted(self):
        counters: Counter[str] = Counter()
        asked = []

        def names_secret(message):
            asked.append(message)
            return ["hunter2"] if "hunter2" in str(message) else []

        many = [{**GOOD, "name": "login hunter2"}] * 500
        batch = handed_over(many, many, {"call hunter2": 1.0})
        first, _, sums = (
            RowReader(None, counters, Redaction(names_secret, counters)).label(batch).row_lists["timings"]
        )
        assert {span["name"] for span in first} == {f"login {HIDDEN * 7}"} and list(sums) == [
            f"call {HIDDEN * 7}"
        ]
        assert len(asked) < 10, "the hook sees each name once"

    def test_they_are_stored_of_every_rollout_and_with_the_trace(self, trackio_dir):
        plan = batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=2, group_size=2, seed=1))
        timings = [[GOOD, "no span"], [{**GOOD, "start": 11.0}], [GOOD], {"generate": 1.0}]
        logger = rt.RolloutLogger(project="spans", name="a", tokenizer=tiny_tokenizer(), max_rollout_traces_per_step=1, worker="thread")  # fmt: skip
        logger.log_rollouts({**plan, "timings": timings}, step=1)
        assert logger.flush(30) and logger.counters["spans_refused"] == 1
        logger.finish()
        store = rt.open_store(project="spans")
        rows = store.rollouts(columns=["sample", "timings", "timing/generate"]).to_pylist()
        assert [row["timing/generate"] for row in rows] == [2.5, 1.5, 2.5, 1.0]
        assert [read_packed(row["timings"]) for row in rows[:3]] == [
            [GOOD],
            [{**GOOD, "start": 11.0}],
            [GOOD],
        ]
        assert rows[3]["timings"] is None
        assert "timings" not in store.ledger().columns
