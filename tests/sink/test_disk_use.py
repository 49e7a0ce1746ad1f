from __future__ import annotations

import pytest

import rollout_traces as rt
from rollout_traces.sink.home import DiskUse
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer


@pytest.mark.parametrize("project", ["plain", "qwen2.5-grpo", "with spaces", "[odd]"])
def test_a_project_of_any_name_is_found_on_disk(trackio_dir, project):
    logger = rt.RolloutLogger(
        project, "run", tiny_tokenizer(), max_rollout_traces_per_step=2, worker="thread"
    )
    logger.log_rollouts(batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=1, group_size=2)), step=1)
    assert logger.finish(180)
    assert DiskUse(project).bytes() >= sum(path.stat().st_size for path in trackio_dir.glob("*.db")) > 0
