"""What a step's metrics look like in Trackio's database."""

from __future__ import annotations

import sqlite3

import numpy as np
import orjson
import pytest

import rollout_traces as rt
from rollout_traces.doctor import CHECKS, Examination
from tests.generator import BatchPlan, batch_arrays, rollout_batch, tiny_tokenizer


@pytest.fixture
def logged(trackio_dir) -> tuple[dict, str]:
    """The metrics of a step of two hand-overs, and what its step summary says."""
    tokenizer = tiny_tokenizer()
    logger = rt.RolloutLogger(
        "p",
        "r",
        tokenizer,
        max_rollout_traces_per_step=12,
        worker="thread",
        selection="random",
        config={"rollout_traces": {"reward_range": [0, 1], "samples_per_prompt": 8}},
    )
    for seed in range(2):
        logger.log_rollouts(rollout_batch(tokenizer, BatchPlan(n_groups=2, seed=seed)), step=10)
    assert logger.finish()
    values: dict = {}
    with sqlite3.connect(trackio_dir / "p.db") as db:
        for (row,) in db.execute("SELECT metrics FROM metrics WHERE step = 10"):
            values |= orjson.loads(row)
        ((messages,),) = db.execute("SELECT messages FROM traces WHERE key = 'rollout/steps'")
    return values, orjson.loads(messages)[-1]["content"]


def test_metrics_histograms_tools_and_totals_stand_at_the_step_and_the_digest_says_what_is_off(logged):
    values, digest = logged
    assert values["rollout/count/samples"] == 32 and values["rollout/total/samples"] == 32
    assert values["rollout/total/discarded"] == 0
    assert sum(values["rollout/reward/histogram"]["values"]) == 32
    assert sum(values["rollout/tokens/completion/histogram"]["values"]) == 32
    assert values["rollout/tools/calls_mean_of_random"] > 0
    assert 0 < values["rollout/update/top3_share"] < 1
    assert values["rollout/update/ess_rows"] > 16  # over both hand-overs
    assert "reference (ref_logprobs)" in digest


def test_doctor_says_which_metrics_are_off(logged):
    findings = list(CHECKS["Metrics"](Examination(project="p")))
    assert [finding.subject for finding in findings] == ["r, rollout"]
    assert findings[0].status == "note" and "reference (ref_logprobs)" in findings[0].seen


def test_doctor_without_a_project_or_with_an_unknown_one_says_so(trackio_dir):
    for project in (None, "never-logged"):
        (finding,) = CHECKS["Metrics"](Examination(project=project))
        assert finding.status == "note"


def test_a_digest_names_the_usual_cause_of_an_identity_that_does_not_hold(trackio_dir):
    arrays = batch_arrays(tiny_tokenizer())
    arrays["versions"] = np.where(arrays["versions"] >= 0, arrays["train_version"], -1)
    arrays["prox_logprobs"] = arrays["prox_logprobs"] + np.float32(
        0.3
    )  # the engine logged at a higher temperature
    logger = rt.RolloutLogger("p", "r", worker="thread", metric_keys=["default", "group/pass@*"])
    logger.log_rollouts(arrays, step=1)
    assert logger.finish()
    with sqlite3.connect(trackio_dir / "p.db") as db:
        ((messages,),) = db.execute("SELECT messages FROM traces WHERE key = 'rollout/steps'")
        keys = {key for (row,) in db.execute("SELECT metrics FROM metrics") for key in orjson.loads(row)}
    assert {"rollout/group/pass@1", "rollout/group/pass@8", "rollout/turns/mean"} <= keys
    assert "another temperature or top-p" in orjson.loads(messages)[-1]["content"]
