"""What a closed step leaves beside its traces."""

from __future__ import annotations

import json

import numpy as np
import orjson

import rollout_traces as rt
from rollout_traces.ledger.build import build_ledger
from rollout_traces.steps.discarded import DECODED, filtered_details
from rollout_traces.steps.sample_table import write_all_rows
from tests.builders import make_packed_batch, make_transcript


def step(reasons: list[str | None], **fields):
    n = len(reasons)
    batch = make_packed_batch(
        [[5] * (row + 2) for row in range(n)],
        [[0] + [1] * (row + 1) for row in range(n)],
        row_lists={"discard_reasons": reasons},
        row_floats={"rewards": np.arange(n, dtype=float)},
        **fields,
    )
    return batch, build_ledger(batch)


def decode(batch, rows):
    return {row: make_transcript([("user", f"question {row}"), ("assistant", "a")]) for row in rows}


class TestFiltered:
    def test_a_step_that_dropped_nothing_has_no_details(self):
        assert filtered_details(*step([None, None]), decode) == {}

    def test_every_dropped_rollout_has_a_record_and_the_longest_are_decoded(self):
        batch, ledger = step(["too_long"] * (DECODED + 10))
        found = filtered_details(batch, ledger, decode)["filtered"]
        assert len(found["rollouts"]) == DECODED + 10
        previews = [record["prompt_preview"] for record in found["rollouts"]]
        assert previews[:10] == [None] * 10 and previews[10] == "question 10"
        assert found["summary"]["longest"][0]["prompt_preview"] == f"question {DECODED + 9}"
        orjson.dumps(found)  # plain values

    def test_without_a_decoder_the_counts_are_there_all_the_same(self):
        found = filtered_details(*step(["canceled", None]), None)["filtered"]
        assert found["summary"]["by_reason"] == {"canceled": 1}
        assert found["rollouts"][0]["n_tokens"] == 2


class TestAllRows:
    def test_every_row_with_tokens_stands_in_the_file_of_its_step(self, tmp_path):
        batch, ledger = step([None, "too_long", None], has_tokens=np.asarray([True, True, False]))
        path = write_all_rows(tmp_path, batch, ledger, decode)
        assert path == tmp_path / "rollout" / "00000003.json"
        read = json.loads(path.read_text())
        rewards = [row[read["columns"].index("reward_total")] for row in read["data"]]
        assert rewards == [0.0, 1.0]
        assert "question 1" in read["data"][1][read["columns"].index("prompt")]


def test_both_come_out_of_a_logger(trackio_dir, tmp_path):
    from rollout_traces.trace.conversion import read_details
    from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer
    from tests.test_write_path import stored

    tokenizer = tiny_tokenizer()
    arrays = batch_arrays(tokenizer, BatchPlan(n_groups=2, group_size=4))
    arrays["discard_reasons"] = ["too_long", *[None] * 7]
    logger = rt.RolloutLogger(
        "p", "r", tokenizer, max_rollout_traces_per_step=2, worker="thread", all_rows_folder=tmp_path / "rows"
    )
    logger.log_rollouts(arrays, step=4)
    assert logger.finish()
    ((_, digest),) = stored(trackio_dir, "rollout/steps")
    (record,) = read_details(digest)["filtered"]["rollouts"]
    assert record["reason"] == "too_long" and "How many now?" in record["prompt_preview"]
    table = json.loads((tmp_path / "rows" / "rollout" / "00000004.json").read_text())
    assert len(table["data"]) == 8
