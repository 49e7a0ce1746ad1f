"""The doctor names what waits, and the log of what processes it."""

from __future__ import annotations

import trackio.context_vars

import rollout_traces as rt
from rollout_traces.doctor import Examination, examine
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer


def findings():
    return {finding.subject: finding for finding in examine(Examination(project="p"))["Logging path"]}


class TestSpool:
    def test_without_one_nothing_waits(self, trackio_dir):
        assert findings()["waiting"].seen == "nothing waits on this node"
        assert str(trackio_dir) in findings()["spool"].seen

    def test_a_killed_trainers_is_left_behind_and_recover_is_advised(self, trackio_dir):
        logger = rt.RolloutLogger("p", "run", tiny_tokenizer())
        logger._pipeline.start = lambda: None
        logger.log_rollouts(batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=1, group_size=2)), step=1)
        assert findings()["p/run"].status == "ok"
        logger._pipeline._writer.close()
        found = findings()["p/run"]
        assert (found.status, found.advice) == ("warn", "rollout-traces recover")
        assert "1 records wait" in found.seen and "worker.log" in found.seen
        logger.run.finish()
        trackio.context_vars.current_run.set(None)
