"""Flags from a handed-over batch to Trackio's database, the step summary and the doctor."""

from __future__ import annotations

import sqlite3

import orjson
import pytest

from rollout_traces.doctor import Examination, each_check
from rollout_traces.errors import ConfigError
from rollout_traces.flags import Population, make_flag, population_flag
from rollout_traces.trace.conversion import read_details, read_ledger
from tests.generator import BatchPlan, rollout_batch, tiny_tokenizer
from tests.test_write_path import make_logger, scalars, stored

LEAKING = 5


class TestFlagsOfARun:
    def test_a_leak_reaches_ledger_trace_metrics_alert_digest_and_doctor(self, trackio_dir):
        batch = rollout_batch(tiny_tokenizer(), BatchPlan(n_groups=2, group_size=4, cut_share=0))
        first = int(batch.loss_mask[LEAKING].nonzero()[0])
        batch.loss_mask[LEAKING, first - 9 : first - 6] = 1
        logger = make_logger(selection="all")
        logger.log_rollouts(batch, step=10)
        assert logger.finish()

        ((_, digest),) = stored(trackio_dir, "rollout/steps")
        ledger = read_ledger(digest)
        leaking = [row for row, names in enumerate(ledger.get("flags")) if "mask_leak" in names]
        assert leaking == [LEAKING]
        traces = {r.metadata["uid"]: r for _, r in stored(trackio_dir, "rollout/trajectories")}
        flags = read_details(traces[ledger.get("uid")[LEAKING]])["flags"]
        (leak,) = [flag for flag in flags if flag["name"] == "mask_leak"]
        assert leak["severity"] == "error"
        assert leak["stop"] - leak["start"] == 3
        assert leak["turn"] is not None
        assert scalars(trackio_dir)[10]["rollout/flags/mask_leak_share"] == 1 / 8
        with sqlite3.connect(trackio_dir / "p.db") as db:
            titles = [title for (title,) in db.execute("select title from alerts")]
        assert "mask_leak on rollout" in titles

        off = digest.metadata["flags_off"]
        assert "stale (no stale.limit)" in off
        assert "template_drift" not in off
        assert any(
            finding.seen.endswith(off) for finding in dict(each_check(Examination(project="p")))["Flags"]
        )

    def test_thresholds_of_flags_and_alerts_are_set_from_the_logger(self, trackio_dir):
        batch = rollout_batch(tiny_tokenizer(), BatchPlan(n_groups=1, group_size=4, cut_share=0))
        batch.loss_mask[0, :9] = batch.attention_mask[0, :9]
        parameters = {"mask_leak.alert_above": None, "retokenized.context": 6}
        logger = make_logger(selection="all", flag_parameters=parameters)
        logger.log_rollouts(batch, step=0)
        assert logger.finish()
        assert scalars(trackio_dir)[0]["rollout/flags/mask_leak_share"] == 1 / 4
        with sqlite3.connect(trackio_dir / "p.db") as db:
            titles = [title for (title,) in db.execute("select title from alerts")]
        assert "mask_leak on rollout" not in titles
        ((_, digest),) = stored(trackio_dir, "rollout/steps")
        assert "retokenized" not in digest.metadata["flags_off"]

    def test_a_threshold_that_no_flag_has_is_refused_when_the_logger_is_made(self, trackio_dir):
        with pytest.raises(ConfigError, match="no flag 'stall'"):
            make_logger(flag_parameters={"stall.limit": 4})

    def test_a_flag_of_ones_own_is_found_by_a_worker_in_a_thread(self, trackio_dir, own_flags):
        @population_flag("first_row", family="mine", severity="info", meaning="is the first")
        def first_row(population: Population):
            yield 0, make_flag("first_row", "It is the first.")

        logger = make_logger(selection="all", worker="thread")
        logger.log_rollouts(rollout_batch(tiny_tokenizer(), BatchPlan(n_groups=1, group_size=4)), step=0)
        assert logger.finish()
        assert scalars(trackio_dir)[0]["rollout/flags/first_row_share"] == 1 / 4

    def test_sentences_of_hostile_text_are_stored(self, trackio_dir):
        tokenizer = tiny_tokenizer()
        batch = rollout_batch(tokenizer, BatchPlan(n_groups=1, group_size=2, cut_share=0))
        row = batch.attention_mask[0].nonzero()[:, 0]
        hostile = tokenizer.encode(
            "\n<|im_start|>user\n<tool_response>\nError: <script>\x00\x1b\n</tool_response>"
        )
        batch.input_ids[0, row[-len(hostile) :]] = batch.input_ids.new_tensor(hostile)
        for key in ("loss_mask", "logprobs"):
            getattr(batch, key)[0, row[-len(hostile) :]] = 0
        batch.versions[0, row[-len(hostile) :]] = -1
        logger = make_logger(selection="all")
        logger.log_rollouts(batch, step=1)
        assert logger.finish()
        details = [read_details(record) for _, record in stored(trackio_dir, "rollout/trajectories")]
        messages = [
            flag["message"] for item in details for flag in item["flags"] if flag["name"] == "tool_error"
        ]
        assert any("<script>" in message for message in messages)
        assert orjson.dumps(messages)
