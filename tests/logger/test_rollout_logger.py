"""A logger from its first hand-over to its end: what is stored, what is refused, and what its calls answer."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

import rollout_traces as rt
from rollout_traces.logger import rollout_logger
from rollout_traces.logger.pipeline import LoggerPipeline
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer
from tests.worker.readback import ledger_uids, ledgers, rows, scalar_steps, trace_uids


def arrays(seed: int = 0, **more: object) -> dict:
    return {**batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=2, group_size=2, seed=seed)), **more}


@pytest.fixture
def logger(trackio_dir):
    made = rt.RolloutLogger("p", "run", tiny_tokenizer(), worker="thread", max_rollout_traces_per_step=3)
    yield made
    made.finish(60)


class TestHandingOver:
    def test_a_step_is_stored_with_as_many_traces_as_are_asked_for(self, logger, trackio_dir):
        handle = logger.log_rollouts(arrays(), step=1)
        assert handle.batch_id and logger.finish(60)
        assert len(ledger_uids(trackio_dir)) == 4 and len(trace_uids(trackio_dir)) == 3
        assert logger.worker == "thread" and logger.counters["batches_refused"] == 0

    def test_two_calls_of_a_step_are_one_step_with_groups_of_their_own(self, logger, trackio_dir):
        for seed in (1, 2):
            logger.log_rollouts([{**arrays(seed), "group_ids": None}], step=4)
        logger.close_step(4)
        assert logger.finish(60)
        ((step, ledger),) = ledgers(trackio_dir)
        assert step == 4 and ledger.n_rows == 8
        assert len(set(ledger.get("group").tolist())) == 2

    def test_an_evaluation_of_the_same_step_is_apart(self, logger, trackio_dir):
        logger.log_rollouts(arrays(1), step=1)
        logger.log_rollouts(arrays(2), step=1, split="eval-rollout")
        assert logger.finish(60)
        assert len(ledger_uids(trackio_dir)) == len(ledger_uids(trackio_dir, "eval-rollout/steps")) == 4

    @pytest.mark.parametrize(
        ("step", "split"),
        [("one", "rollout"), (1.5, "rollout"), (True, "rollout"), (1, "train"), (2**63, "rollout")],
    )
    def test_a_step_or_a_split_that_is_none_is_refused_and_counted(self, logger, step, split):
        assert logger.log_rollouts(arrays(), step=step, split=split).batch_id is None
        logger.close_step(step, split)
        assert (logger.counters["batches_refused"], logger.counters["closes_refused"]) == (1, 1)

    def test_what_is_no_batch_is_refused_and_what_follows_goes_on(self, logger, trackio_dir):
        assert logger.log_rollouts({"input_ids": "text"}, step=1).batch_id is None
        logger.log_rollouts(arrays(), step=1)
        assert logger.finish(60) and logger.counters["batches_refused"] == 1
        assert len(ledger_uids(trackio_dir)) == 4

    def test_a_step_waits_for_the_columns_that_are_to_be_joined(self, logger, trackio_dir):
        handle = logger.log_rollouts(arrays(advantages=None), step=1, await_join=["advantages"])
        handle.join(advantages=[0.25, 0.5, 0.75, 1.0])
        assert logger.finish(60)
        ((_, ledger),) = ledgers(trackio_dir)
        assert sorted(ledger.get("advantage").tolist()) == [0.25, 0.5, 0.75, 1.0]
        assert logger.counters["joins_missed"] == 0


class TestScalars:
    def test_are_stored_at_their_step_and_counted(self, logger, trackio_dir):
        logger.log_scalars({"loss": 0.5}, step=3)
        assert logger.finish(60)
        assert scalar_steps(trackio_dir, "loss") == {3: 1}
        assert logger.counters["scalars_handed_over"] == 1

    def test_what_is_no_mapping_or_has_no_step_is_refused(self, logger):
        logger.log_scalars([("loss", 0.5)], step=3)
        logger.log_scalars({"loss": 0.5}, step="three")
        assert logger.counters["scalars_refused"] == 2 and not logger.counters["scalars_handed_over"]


class TestClosing:
    def test_a_closed_step_is_stored_while_the_logger_goes_on(self, logger, trackio_dir):
        logger.log_rollouts(arrays(1), step=1)
        logger.close_step(1)
        logger.log_rollouts(arrays(2), step=2)
        assert logger.counters["closes_handed_over"] == 1
        assert logger.flush(60)
        assert [step for step, _ in ledgers(trackio_dir)] == [1, 2]

    def test_a_flush_without_a_close_leaves_the_step_open_and_safe(self, logger, trackio_dir):
        logger.log_rollouts(arrays(1), step=1)
        assert logger.flush(60, close=False) is True
        assert ledgers(trackio_dir) == []
        assert logger.flush(60) is True
        assert len(ledgers(trackio_dir)) == 1 and logger.counters["spooled"] == 0

    def test_what_waits_when_the_time_is_up_is_said(self, logger):
        logger._pipeline.start = lambda: None
        logger.log_rollouts(arrays(1), step=1)
        assert logger.flush(0.1) is False
        assert logger.counters["spooled"] >= 1
        del logger._pipeline.start


class TestTheEnd:
    def test_is_answered_the_same_again_and_nothing_more_is_taken(self, logger, trackio_dir):
        logger.log_rollouts(arrays(), step=1)
        assert logger.finish(60) is True and logger.finish(0.0) is True
        assert logger.flush(1.0) is True
        assert logger.log_rollouts(arrays(), step=2).batch_id is None
        logger.log_scalars({"loss": 1.0}, step=2)
        logger.close_step(2)
        counters = logger.counters
        assert [counters[f"{name}_refused"] for name in ("batches", "scalars", "closes")] == [1, 1, 1]

    def test_of_a_logger_that_was_handed_nothing_starts_no_worker(self, trackio_dir):
        made = rt.RolloutLogger("p", "idle")
        assert made.finish(5) is True
        assert made.counters["workers_failed"] == 0 and made._pipeline._started is False

    def test_a_forked_child_has_no_logger(self, logger):
        logger.log_rollouts(arrays(), step=1)
        child = os.fork()
        if child == 0:
            answers = (logger.flush(5), logger.flush(5, close=False), logger.finish(5))
            refused = logger.log_rollouts(arrays(), step=2).batch_id is None
            os._exit(0 if answers == (False, False, False) and refused else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert logger.finish(60)


class TestTheEndOfTheProcess:
    """A logger that nobody finished, as the interpreter ends."""

    class Open:
        def __init__(self, dies: bool, on_disk: bool) -> None:
            self._pipeline = SimpleNamespace(dies_with_process=dies, is_on_disk=on_disk)
            self.finished: list[float] = []

        def finish(self, timeout: float) -> None:
            self.finished.append(timeout)

    @pytest.fixture
    def at_exit(self, monkeypatch):
        """Makes one, and gives what is called at the end."""
        known = []
        monkeypatch.setattr(rollout_logger.atexit, "register", known.append)

        def of(logger):
            rollout_logger._finish_at_exit(logger)
            return known[-1]

        return of

    def test_what_only_this_process_can_store_is_stored_in_a_time_that_ends(self, at_exit):
        on_disk, in_memory = self.Open(True, True), self.Open(True, False)
        for each in (on_disk, in_memory):
            at_exit(each)()
        assert (on_disk.finished, in_memory.finished) == ([10], [60])

    def test_what_another_process_stores_is_left_to_it(self, at_exit):
        logger = self.Open(False, True)
        at_exit(logger)()
        assert logger.finished == []

    def test_a_logger_that_is_gone_is_not_missed(self, at_exit):
        finish = at_exit(self.Open(True, True))
        finish()


class TestAttempts:
    def test_begun_by_hand_or_by_a_step_that_goes_back_are_counted(self, logger, trackio_dir):
        logger.log_rollouts(arrays(1), step=5)
        assert logger.counters["attempts_begun"] == 0
        logger.begin_attempt()
        assert logger.counters["attempts_begun"] == 1
        logger.log_rollouts(arrays(2), step=6)
        logger.log_rollouts(arrays(3), step=2)
        assert logger.counters["attempts_begun"] == 2 and logger.finish(60)
        attempts = [ledger.get("attempt")[0] for _, ledger in ledgers(trackio_dir)]
        assert len(set(attempts)) == 3


class TestRedacting:
    def test_keeps_the_spool_off_the_disk_and_hides_what_the_hook_says(self, trackio_dir, caplog):
        made = rt.RolloutLogger(
            "p",
            "run",
            tiny_tokenizer(),
            max_rollout_traces_per_step=2,
            redact=lambda message: [message["content"]],
        )
        made.log_rollouts(arrays(), step=1)
        assert made.worker == "thread" and "spool is in memory only, 1024 MB at most" in caplog.text
        assert made.finish(60)
        assert not list((trackio_dir / "rollout-traces").rglob("*.spool"))
        contents = [
            m for (m,) in rows(trackio_dir, "select messages from traces where key = 'rollout/trajectories'")
        ]
        assert len(contents) == 2 and all("██" in text.decode() for text in contents)

    def test_what_was_not_stored_by_its_end_is_counted_as_dropped(self, trackio_dir):
        made = rt.RolloutLogger("p", "run", tiny_tokenizer(), redact=lambda message: [])
        made._pipeline.start = lambda: None
        made.log_rollouts(arrays(), step=1)
        made.log_scalars({"loss": 1.0}, step=1)
        assert made.finish(0.2) is False
        assert (made.counters["rollouts_dropped"], made.counters["records_dropped"]) == (4, 1)


class TestThePipeline:
    def test_settings_that_another_logger_of_the_run_has_hold_for_both(self, trackio_dir, caplog):
        import trackio

        run = trackio.init(project="p", name="shared", embed=False)
        first = rt.RolloutLogger("p", worker="thread", max_rollout_traces_per_step=2)
        second = rt.RolloutLogger("p", worker="thread", max_rollout_traces_per_step=2)
        assert "with other settings" not in caplog.text
        third = rt.RolloutLogger("p", worker="thread", max_rollout_traces_per_step=7)
        assert "another logger writes to run shared with other settings (options)" in caplog.text
        assert all(isinstance(each._pipeline, LoggerPipeline) for each in (first, second, third))
        for each in (first, second, third):
            each.finish(30)
        run.finish()

    def test_a_selection_that_is_a_function_stays_in_this_process(self, trackio_dir):
        made = rt.RolloutLogger("p", "run", selection=lambda ledger, cap, rng: {})
        assert made.worker == "thread"
        made.finish(10)

    def test_the_worker_is_told_where_to_and_no_secret_of_it(self, logger):
        pipeline = logger._pipeline
        told = pipeline.folder.manifest()
        assert (told.project, told.run_name, told.run_id) == ("p", "run", logger.run.id)
        assert told.has_tokenizer and told.remote is None and told.private is None
        assert not [key for key in told.config if key.startswith("_")]
        url = "http://127.0.0.1:9/?write_token=hidden"
        steps = replace(pipeline._plan.steps, server_url=url, private=True, selection=lambda *_: {})
        pipeline._plan = replace(pipeline._plan, steps=steps)
        told = pipeline._manifest(has_tokenizer=True)
        assert (told.server_url, told.private) == ("http://127.0.0.1:9/", None)
        assert told.options["selection"] == "portfolio" and b"hidden" not in told.as_json()
        pipeline._plan = replace(pipeline._plan, steps=replace(steps, space_id="me/space"), tokenizer=None)
        told = pipeline._manifest(has_tokenizer=True)
        assert (told.space_id, told.private, told.has_tokenizer) == ("me/space", True, False)

    def test_the_worker_gets_its_secrets_through_its_environment(self, logger):
        pipeline = logger._pipeline
        assert pipeline._secrets() == {}
        steps = replace(pipeline._plan.steps, alert_webhook="https://example.org/hook")
        pipeline._plan = replace(pipeline._plan, steps=steps)
        assert list(pipeline._secrets().values()) == ["https://example.org/hook"]
        pipeline.run._write_token = "hidden"
        assert pipeline._secrets()["TRACKIO_WRITE_TOKEN"] == "hidden" and len(pipeline._secrets()) == 2
        del pipeline.run._write_token

    def test_a_worker_in_this_process_dies_with_it(self, logger):
        assert logger._pipeline.dies_with_process and logger._pipeline.kind == "thread"

    def test_a_run_that_is_whole_tells_of_no_damage(self, logger, trackio_dir, caplog):
        logger.log_rollouts(arrays(), step=1)
        assert logger.flush(60)
        assert logger._pipeline.account_of_damage() is None and "not everything is stored" not in caplog.text
