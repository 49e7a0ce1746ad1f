"""A process beside the trainer and a thread inside it keep the same promises."""

from __future__ import annotations

import logging
import os
import threading
import time

import numpy as np
import pytest

import rollout_traces as rt
from rollout_traces.spool.run_folder import run_folders
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer
from tests.worker.readback import ledger_uids, ledgers, rows, scalar_steps, trace_uids

SMALL = BatchPlan(n_groups=2, group_size=3)


def make_batch(plan: BatchPlan = SMALL, **changes):
    return {**batch_arrays(tiny_tokenizer(), plan), **changes}


@pytest.fixture(params=["process", "thread"])
def make_logger(request, trackio_dir):
    made = []

    def make(**options):
        settings = {
            "project": "p",
            "name": "run",
            "tokenizer": tiny_tokenizer(),
            "max_rollout_traces_per_step": 4,
            "worker": request.param,
        }
        logger = rt.RolloutLogger(**{**settings, **options})
        made.append(logger)
        return logger

    yield make
    for logger in made:
        logger.finish(timeout=180)


class TestStoring:
    def test_everything_handed_over_is_stored_once_when_flush_says_so(self, make_logger, trackio_dir):
        logger = make_logger()
        handles = [logger.log_rollouts(make_batch(), step=step) for step in range(3)]
        for step in range(3):
            logger.log_scalars({"train/loss": step / 8}, step=step)
        assert logger.flush(180)
        expected = {f"{handle.batch_id}-{row}": 1 for handle in handles for row in range(6)}
        assert ledger_uids(trackio_dir) == expected
        traced = trace_uids(trackio_dir)
        assert len(traced) == 12 and set(traced.values()) == {1} and set(traced) <= set(expected)
        assert scalar_steps(trackio_dir, "train/loss") == {0: 1, 1: 1, 2: 1}

    def test_a_digest_does_not_miss_what_it_has(self, make_logger, trackio_dir):
        logger = make_logger()
        logger.log_rollouts(make_batch(), step=1)
        assert logger.flush(180)
        [(off,)] = rows(
            trackio_dir,
            "select json_extract(metadata, '$.metrics_off') from traces where key = 'rollout/steps'",
        )
        assert "tool_use" not in (off or "")

    def test_the_counters_say_what_became_of_it(self, make_logger):
        logger = make_logger()
        logger.log_rollouts(make_batch(), step=1)
        logger.log_scalars({"a": 1.0}, step=1)
        assert logger.finish(180)
        counters = logger.counters
        assert counters["rollouts_handed_over"] == counters["rollouts_stored"] == 6
        assert counters["traces_stored"] == 4
        assert counters["step_summaries_stored"] == 1
        assert counters["scalars_stored"] == 1
        assert counters["spooled"] == 0

    def test_a_flush_that_closes_nothing_waits_for_the_disk_alone(self, make_logger, trackio_dir):
        logger = make_logger()
        logger.log_rollouts(make_batch(), step=1)
        assert logger.flush(180, close=False)
        assert logger.counters["steps_closed"] == 0 and logger.counters["spooled"] == 1
        logger.log_rollouts(make_batch(), step=1)
        assert logger.finish(180)
        assert [ledger.n_rows for _, ledger in ledgers(trackio_dir)] == [12]

    def test_of_all_calls_of_a_step_every_row_is_kept_where_all_were_asked_for(
        self, make_logger, trackio_dir
    ):
        logger = make_logger(selection="all", max_rollout_traces_per_step=1)
        for _ in range(3):
            logger.log_rollouts(make_batch(), step=1)
        assert logger.finish(180)
        assert len(trace_uids(trackio_dir)) == 18 and logger.counters["traces_stored"] == 18

    def test_a_flush_in_the_middle_of_a_step_makes_a_second_digest_of_the_rest(
        self, make_logger, trackio_dir
    ):
        logger = make_logger()
        logger.log_rollouts(make_batch(), step=1)
        assert logger.flush(180)
        logger.log_rollouts(make_batch(), step=1)
        assert logger.finish(180)
        assert [ledger.n_rows for _, ledger in ledgers(trackio_dir)] == [6, 6]
        assert len(trace_uids(trackio_dir)) == 4

    def test_finishing_leaves_no_spool_behind(self, make_logger, trackio_dir):
        logger = make_logger()
        logger.log_rollouts(make_batch(), step=1)
        assert logger.finish(180)
        deadline = time.monotonic() + 20
        while run_folders(trackio_dir / "rollout-traces" / "spool") and time.monotonic() < deadline:
            time.sleep(0.1)
        assert run_folders(trackio_dir / "rollout-traces" / "spool") == []

    def test_a_logger_that_was_never_used_finishes_at_once(self, make_logger):
        assert make_logger().finish(5)

    def test_nothing_waits_long_for_a_finish_that_has_no_time(self, make_logger):
        logger = make_logger()
        logger.log_rollouts(make_batch(), step=1)
        started = time.monotonic()
        logger.finish(timeout=0)
        assert time.monotonic() - started < 20

    def test_after_finish_a_hand_over_is_a_counted_refusal(self, make_logger):
        logger = make_logger()
        logger.finish(10)
        assert logger.log_rollouts(make_batch(), step=1).batch_id is None
        assert logger.counters["batches_refused"] == 1


class TestTheRun:
    def test_two_loggers_share_the_current_run(self, make_logger, trackio_dir):
        import trackio

        run = trackio.init(project="p", name="trainers", config={"lr": 0.5}, embed=False)
        first, second = make_logger(), make_logger()
        first.log_rollouts(make_batch(), step=1)
        second.log_rollouts(make_batch(), step=1, split="eval-rollout")
        assert first.finish(180) and second.finish(180)
        run.log({"loss": 1.0}, step=1)
        run.finish()
        assert rows(trackio_dir, "select distinct run_id, run_name from traces") == [(run.id, "trainers")]
        assert rows(trackio_dir, "select distinct run_id from metrics") == [(run.id,)]
        [(config,)] = rows(trackio_dir, "select config from configs")
        assert b'"lr":0.5' in (config if isinstance(config, bytes) else config.encode())

    def test_the_trainers_own_steps_are_not_disturbed(self, make_logger, trackio_dir):
        import trackio

        run = trackio.init(project="p", name="trainers", embed=False)
        logger = make_logger()
        logger.log_rollouts(make_batch(), step=70)
        logger.finish(180)
        run.log({"mine": 1.0})
        run.finish()
        if logger.worker == "process":
            assert scalar_steps(trackio_dir, "mine") == {0: 1}

    def test_a_run_of_another_project_is_said(self, make_logger, caplog):
        import trackio

        run = trackio.init(project="another", name="trainers", embed=False)
        logger = make_logger()
        assert logger.run is run
        assert "of 'p', but this process writes to run trainers of 'another'" in caplog.text
        logger.finish(180)
        run.finish()

    def test_a_second_logger_does_not_change_the_firsts_settings(self, make_logger, trackio_dir, caplog):
        first = make_logger()
        second = make_logger(ledger=False, max_rollout_traces_per_step=1)
        assert "other settings (options): its settings hold for both" in caplog.text
        first.log_rollouts(make_batch(), step=1)
        second.log_rollouts(make_batch(), step=2)
        assert second.finish(180) and first.finish(180)
        if first.worker == "process":
            assert len(ledger_uids(trackio_dir)) == 12


class TestFinishing:
    def test_with_the_same_settings_gets_no_warning(self, make_logger, caplog):
        make_logger(name="run", tokenizer=tiny_tokenizer())
        make_logger(name="run", tokenizer=tiny_tokenizer())
        assert "other settings" not in caplog.text

    def test_of_another_name_has_its_own_run_beside_the_first(self, make_logger, trackio_dir):
        first, second = make_logger(name="first"), make_logger(name="second")
        for step, logger in enumerate((first, second, first)):
            logger.log_scalars({"a": float(step)}, step=step)
        assert first.finish(180) and second.finish(180)
        assert [logger.run.name for logger in (first, second)] == ["first", "second"]
        assert scalar_steps(trackio_dir, "a") == {0: 1, 1: 1, 2: 1}

    def test_at_the_same_time_from_many_threads_is_finishing_once(self, make_logger):
        logger = make_logger()
        logger.log_rollouts(make_batch(), step=1)
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(logger.finish(180))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert answers == [True] * 6 and not logger.counters["finish_errors"]

    def test_without_a_time_is_contained(self, make_logger):
        logger = make_logger()
        logger.log_rollouts(make_batch(), step=1)
        assert logger.finish(None) is False
        assert logger.counters["flush_errors"] == 1

    def test_says_what_a_spool_in_memory_loses(self, make_logger):
        logger = make_logger(redact=lambda message: [])
        for step in range(40):
            logger.log_rollouts(make_batch(), step=step)
        assert not logger.finish(0.01)
        counters = logger.counters
        assert counters["rollouts_dropped"] + counters["rollouts_stored"] >= 40 * 6
        assert counters["rollouts_dropped"] and not counters["spooled"]
        logger._pipeline._worker.stop(60)  # what it is in the middle of belongs to this test's folder


class TestResuming:
    def test_a_run_goes_on_where_it_was_left(self, make_logger, trackio_dir):
        import trackio.context_vars

        for step in (1, 2):
            trackio.context_vars.current_run.set(None)
            logger = make_logger()
            logger.log_rollouts(make_batch(discard_reasons=["too_long", *[None] * 5]), step=step)
            assert logger.finish(180)
        assert rows(trackio_dir, "select count(distinct run_id) from traces") == [(1,)]
        found = rows(
            trackio_dir,
            """select json_extract(metrics, '$."rollout/total/samples"'),
            json_extract(metrics, '$."rollout/total/discarded_too_long"') from metrics
            where step = 2 and json_extract(metrics, '$."rollout/total/samples"') is not null""",
        )
        assert found == [(12, 2)]


class TestJoins:
    def test_columns_that_come_later_reach_the_ledger(self, make_logger, trackio_dir):
        batch = make_batch()
        advantages = batch.pop("advantages")
        logger = make_logger()
        logger.log_rollouts(batch, step=1).join(advantages=advantages)
        assert logger.finish(180)
        [(_, ledger)] = ledgers(trackio_dir)
        np.testing.assert_allclose(ledger.get("advantage"), advantages, rtol=1e-3, atol=1e-6)

    def test_rows_are_matched_by_sample_ids_whatever_their_order(self, make_logger, trackio_dir):
        batch = make_batch(sample_ids=list("abcdef"))
        advantages = np.asarray(batch.pop("advantages"))
        order = np.array([5, 3, 1, 0, 2, 4])
        logger = make_logger()
        handle = logger.log_rollouts(batch, step=1)
        handle.join(sample_ids=[list("abcdef")[i] for i in order], advantages=advantages[order])
        assert logger.finish(180)
        [(_, ledger)] = ledgers(trackio_dir)
        np.testing.assert_allclose(ledger.get("advantage"), advantages, rtol=1e-3, atol=1e-6)

    def test_traces_wait_for_what_they_were_told_to_await(self, make_logger, trackio_dir):
        batch = make_batch()
        advantages = batch.pop("advantages")
        logger = make_logger()
        handle = logger.log_rollouts(batch, step=1, await_join=("advantages",))
        handle.join(advantages=advantages)
        assert logger.finish(180)
        assert logger.counters["traces_stored"] == 4
        found = rows(
            trackio_dir,
            "select json_extract(metadata, '$.advantage') from traces where key = 'rollout/trajectories'",
        )
        assert len(found) == 4 and all(value is not None for (value,) in found)

    def test_that_nothing_awaits_are_in_the_steps_metrics_when_they_come_before_its_close(
        self, make_logger, trackio_dir
    ):
        batch = make_batch()
        batch.pop("prox_logprobs", None)
        logger = make_logger()
        for step, joined in ((1, False), (2, True)):
            handle = logger.log_rollouts(batch, step=step)
            if joined:
                handle.join(prox_logprobs=np.asarray(batch["logprobs"]) - 0.5)
            logger.close_step(step)
        assert logger.finish(180)
        assert scalar_steps(trackio_dir, "rollout/mismatch/k3") == {2: 1}

    def test_that_no_key_stands_for_are_said_and_not_awaited(self, make_logger, trackio_dir):
        logger = make_logger()
        logger.log_rollouts(make_batch(), step=1, await_join=("advantage", "losses"))
        logger.log_scalars([1, 2], step=1)
        assert logger.counters["keys_misspelt"] == 1 and logger.counters["scalars_refused"] == 1
        assert logger.flush(180) and logger.counters["joins_missed"] == 1

    def test_one_that_comes_after_its_step_is_counted_as_too_late(self, make_logger, trackio_dir):
        logger = make_logger()
        handle = logger.log_rollouts(make_batch(), step=1)
        assert logger.flush(180)
        handle.join(losses=np.ones(6))
        assert logger.flush(180)
        assert logger.counters["joins_too_late"] == 1

    def test_what_only_the_text_told_stays(self, make_logger, trackio_dir):
        batch = make_batch()
        logger = make_logger(selection="all")
        for step in (1, 2):
            handle = logger.log_rollouts(batch, step=step)
            if step == 2:
                time.sleep(1.5)
                handle.join(new_logprobs=np.asarray(batch["logprobs"]))
        assert logger.finish(180)
        [(_, plain), (_, joined)] = ledgers(trackio_dir)
        for name in ("n_turns", "n_thinking", "n_tool_calls", "n_tool_errors"):
            assert joined.get(name).tolist() == plain.get(name).tolist(), name

    def test_what_never_comes_is_awaited_until_the_next_step_only(self, make_logger, trackio_dir):
        logger = make_logger()
        logger.log_rollouts(make_batch(), step=1, await_join=("new_logprobs",))
        logger.log_rollouts(make_batch(), step=2)
        assert logger.finish(180)
        assert len(trace_uids(trackio_dir)) == 8
        assert logger.counters["joins_missed"] == 1

    def test_a_shape_that_does_not_fit_is_a_counted_refusal(self, make_logger):
        logger = make_logger()
        handle = logger.log_rollouts(make_batch(), step=1)
        handle.join(new_logprobs=np.zeros((2, 2)))
        handle.join(advantage_typo=np.zeros(6))
        assert logger.finish(180)
        assert logger.counters["joins_refused"] == 2


class TestBudget:
    def test_tokens_above_it_stay_behind_and_the_digest_says_so(self, make_logger, trackio_dir):
        plan = BatchPlan(n_groups=6, group_size=2)
        logger = make_logger(max_bytes_per_step=100_000)
        logger.log_rollouts(make_batch(plan), step=1)
        assert logger.finish(180)
        [(metadata,)] = rows(trackio_dir, "select metadata from traces where key = 'rollout/steps'")
        assert b"were left out" in (metadata if isinstance(metadata, bytes) else metadata.encode())
        [(_, ledger)] = ledgers(trackio_dir)
        assert ledger.n_rows == 12 and np.isfinite(ledger.get("reward")).all()
        assert 0 < logger.counters["rollouts_without_tokens"] < 12

    def test_a_spool_at_its_limit_takes_scalars_without_tokens(self, make_logger, trackio_dir, caplog):
        logger = make_logger(max_spool_bytes=100_000)
        for step in range(8):
            logger.log_rollouts(make_batch(), step=step)
            logger.log_scalars({"train/loss": 0.5}, step=step)
        assert logger.finish(180)
        assert len(ledger_uids(trackio_dir)) == 48
        assert set(scalar_steps(trackio_dir, "train/loss")) == set(range(8))
        assert logger.counters["rollouts_dropped"] == logger.counters["records_dropped"] == 0
        assert logger.counters["rollouts_without_tokens"] > 0
        assert "no room for the tokens" in caplog.text


class TestBadInput:
    def test_one_bad_element_of_a_list_does_not_take_its_siblings(self, make_logger, trackio_dir, caplog):
        good = [make_batch(BatchPlan(n_groups=1, group_size=2, seed=s), group_ids=None) for s in range(2)]
        logger = make_logger()
        logger.log_rollouts([good[0], {"input_ids": [[1]]}, None, good[1]], step=1)
        assert logger.finish(180)
        assert sum(ledger_uids(trackio_dir).values()) == 4
        assert logger.counters["batches_refused"] == 1
        assert "element 1: batch: required key 'attention_mask' is missing" in caplog.text

    def test_a_policy_of_the_callers_that_fails_is_stood_in_for(self, make_logger, trackio_dir):
        def broken(request):
            raise RuntimeError("no idea")

        logger = make_logger(selection=broken)
        assert logger.worker == "thread"
        logger.log_rollouts(make_batch(), step=1)
        assert logger.finish(180)
        assert len(trace_uids(trackio_dir)) == 4
        assert logger.counters["selection_errors"] == 1


class TestAStepThatFails:
    def test_keeps_its_ledger_and_its_traces(self, trackio_dir, monkeypatch):
        def broken(*arguments):
            raise ValueError("no histogram of this")

        monkeypatch.setattr("rollout_traces.steps.judge.step_histograms", broken)
        logger = rt.RolloutLogger(
            "p", "run", tiny_tokenizer(), max_rollout_traces_per_step=4, worker="thread"
        )
        logger.log_rollouts(make_batch(), step=1)
        assert logger.finish(180)
        assert set(ledger_uids(trackio_dir).values()) == {1}
        assert len(ledger_uids(trackio_dir)) == 6 and len(trace_uids(trackio_dir)) == 4
        assert logger.counters["histogram_errors"] == 1

    def test_whose_alerts_fail_is_stored_once(self, trackio_dir, monkeypatch):
        def broken(*arguments, **named):
            raise ValueError("no alert of this")

        monkeypatch.setattr("rollout_traces.steps.judge.figures_of", broken)
        logger = rt.RolloutLogger(
            "p", "run", tiny_tokenizer(), max_rollout_traces_per_step=4, worker="thread"
        )
        logger.log_rollouts(make_batch(), step=1)
        assert logger.finish(180)
        assert set(ledger_uids(trackio_dir).values()) == {1}
        assert logger.counters["alert_errors"] == 1 and logger.counters["step_summary_errors"] == 0


class TestFork:
    def test_a_forked_child_neither_logs_nor_ends_the_run(self, make_logger, trackio_dir):
        logger = make_logger()
        logger.log_rollouts(make_batch(), step=1)
        pid = os.fork()
        if pid == 0:
            logging.disable(logging.CRITICAL)
            handle = logger.log_rollouts(make_batch(), step=2)
            os._exit(0 if handle.batch_id is None else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert logger.finish(180)
        assert sum(ledger_uids(trackio_dir).values()) == 6
