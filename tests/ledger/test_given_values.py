"""What the trainer says of a row beside its tokens, in the ledger."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollout_traces.capture.host_copy import capture
from rollout_traces.ledger.build import build_ledger
from rollout_traces.ledger.columns import Ledger, concatenate, pack, unpack
from rollout_traces.ledger.given_values import MAX_NAMES, SHORT
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.spans import read_packed, unpacked


def ledger_of(n: int = 3, **columns: Any) -> Ledger:
    ones = np.ones((n, 2), int)
    batch = RolloutBatch(input_ids=ones, attention_mask=ones, loss_mask=ones, **columns)
    return build_ledger(capture([batch], step=1, split="rollout"))


class TestTexts:
    def test_engines_answers_and_ground_truths_are_columns(self):
        """Seen once: engine_ids were shown nowhere."""
        ledger = ledger_of(
            engine_ids=["a", None, 2], parsed_answers=["4", 5, None], ground_truths=[4, "5", None]
        )
        assert ledger.get("engine").tolist() == ["a", None, "2"]
        assert ledger.get("answer").tolist() == ["4", "5", None]
        assert ledger.get("ground_truth").tolist() == ["4", "5", None]

    def test_long_texts_are_cut(self):
        cut = ledger_of(ground_truths=["x" * 1000] * 3).get("ground_truth")[0]
        assert len(cut) == SHORT and cut.endswith("…")

    def test_what_was_not_given_has_no_column(self):
        assert not {"engine", "answer", "ground_truth"} & set(ledger_of().columns)


class TestNamedValues:
    def test_timings_of_single_turns_take_no_column(self):
        ledger = ledger_of(timings=[{"turn/0": 2.0, "tool/0": 1.0, "generate": 3.0}, None, None])
        assert [name for name in ledger.columns if name.startswith("timing/")] == ["timing/generate"]

    def test_timings_are_seconds_and_unknown_where_a_row_has_none(self):
        ledger = ledger_of(timings=[{"generate": 2, "tool": 0.5}, None, {"generate": "soon"}])
        assert np.array_equal(ledger.get("timing/generate"), [2.0, np.nan, np.nan], equal_nan=True)
        assert ledger.get("timing/tool")[0] == 0.5

    def test_extras_are_numbers_where_all_of_them_are_and_texts_elsewhere(self):
        ledger = ledger_of(extras=[{"level": 3, "topic": "sets"}, {"level": True}, {"topic": 7}])
        assert np.array_equal(ledger.get("extra/level"), [3.0, 1.0, np.nan], equal_nan=True)
        assert ledger.get("extra/topic").tolist() == ["sets", None, "7"]

    def test_whole_numbers_that_no_float_holds_stay_as_they_are(self):
        far = 2**60 + 3
        ledger = unpack(pack(ledger_of(extras=[{"seed": far}, {"seed": 7}, {}])))
        assert [ledger.row(b).get("extra/seed") for b in range(3)] == [far, 7, None]
        both = concatenate([ledger, ledger_of(extras=[{"seed": 0.5}] * 3)])
        assert both.get("extra/seed")[[1, 3]].tolist() == [7.0, 0.5] and np.isnan(both.get("extra/seed")[2])

    def test_a_number_is_written_alike_among_texts_whatever_step_it_is_of(self):
        odd = [{"level": value} for value in (True, 1.0, 2.5, float("inf"), 10**15, "x")]
        numbers = ledger_of(5, extras=odd[:5])
        together = ledger_of(6, extras=odd).get("extra/level").tolist()
        assert together == ["1", "1", "2.5", "Infinity", "1000000000000000", "x"]
        beside = concatenate([numbers, ledger_of(1, extras=[{"level": "x"}])])
        assert beside.get("extra/level").tolist() == together

    def test_an_infinite_number_is_one_and_not_unknown(self):
        ledger = unpack(
            pack(
                ledger_of(rewards=[float("inf")] * 3, extras=[{"x": float("-inf")}, {}, {"x": float("nan")}])
            )
        )
        assert ledger.row(0)["reward"] == float("inf")
        assert [ledger.row(b)["extra/x"] for b in range(3)] == [float("-inf"), None, None]

    def test_there_are_only_so_many_names(self):
        ledger = ledger_of(extras=[{f"x{i}": i for i in range(100)}] * 3)
        assert sum(name.startswith("extra/") for name in ledger.columns) == MAX_NAMES

    def test_both_kinds_of_extras_survive_packing(self):
        ledger = ledger_of(extras=[{"level": 3, "topic": "sets"}, {}, None])
        again = unpack(pack(ledger))
        assert np.array_equal(again.get("extra/level"), ledger.get("extra/level"), equal_nan=True)
        assert again.get("extra/topic").tolist() == ["sets", None, None]
        assert again.row(0)["extra/level"] == 3.0 and again.row(1)["extra/level"] is None

    def test_numbers_of_one_part_and_texts_of_another_become_texts(self):
        numbers, texts = ledger_of(extras=[{"x": 1}] * 3), ledger_of(extras=[{"x": "one"}] * 3)
        joined = concatenate([numbers, texts, ledger_of()]).get("extra/x")
        assert joined.tolist() == ["1"] * 3 + ["one"] * 3 + [None] * 3


class TestEqualCompletions:
    def test_the_first_row_of_the_group_with_the_same_tokens(self):
        ids = np.asarray([[1, 5, 6], [1, 5, 6], [1, 5, 7], [1, 5, 6], [1, 5, 6]])
        sampled = np.tile([0, 1, 1], (5, 1))
        batch = RolloutBatch(
            input_ids=ids,
            attention_mask=np.ones((5, 3), int),
            loss_mask=sampled,
            group_ids=[0, 0, 0, 1, 1],
        )
        ledger = build_ledger(capture([batch], step=1, split="rollout"))
        assert ledger.get("equal_to").tolist() == [0, 0, 2, 0, 0]

    def test_a_row_without_sampled_tokens_is_equal_to_none(self):
        ledger = ledger_of(n=2, response_mask=[[1, 1], [0, 0]], group_ids=[0, 0])
        assert [ledger.row(row)["equal_to"] for row in range(2)] == [0, None]


class TestSpans:
    SPANS = (
        {"kind": "generate", "start": 1000.0, "end": 1002.0, "turn": 0},
        {"kind": "tool", "start": 1002.0, "end": 1002.5, "turn": 0, "name": "search"},
        {"kind": "score", "start": 1004.0, "end": 1005.0, "name": "judge"},
    )

    def test_their_sums_are_columns_and_they_themselves_one_text(self):
        ledger = ledger_of(timings=[list(self.SPANS), list(self.SPANS[:1]), None])
        assert ledger.get("timing/generate")[:2].tolist() == [2.0, 2.0]
        assert ledger.get("timing/tool")[0] == 0.5 and np.isnan(ledger.get("timing/tool")[1])
        assert ledger.get("timing/start")[0] == 1000.0
        assert ledger.get("timing/score/judge")[0] == 1.0
        assert [one["kind"] for one in read_packed(ledger.get("timings")[0])] == ["generate", "tool", "score"]
        assert ledger.get("timings")[2] is None

    def test_a_step_of_many_rollouts_holds_fewer_of_each(self, monkeypatch):
        monkeypatch.setattr("rollout_traces.model.spans.MOST_OF_A_STEP", 40)
        many = [{"kind": "tool", "start": float(at), "end": at + 1.0 + at % 3} for at in range(30)]
        ledger = ledger_of(timings=[many] * 3)
        read = unpacked(ledger.get("timings")[0])
        assert (read.start, read.n, read.n_held) == (0.0, 30, 16)
        assert ledger.get("timing/tool")[0] == sum(one["end"] - one["start"] for one in many)
