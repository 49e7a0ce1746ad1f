"""A step that an earlier worker closed is not closed twice, step summary or not."""

from __future__ import annotations

import time

import pytest

from rollout_traces.capture.host_copy import capture
from rollout_traces.sink.trackio_sink import TrackioSink
from rollout_traces.steps.processor import StepOptions, StepProcessor
from tests.generator import BatchPlan, rollout_batch, tiny_tokenizer
from tests.worker.readback import rows


@pytest.mark.parametrize("ledger", [True, False])
def test_what_is_processed_again_counts_once(trackio_dir, ledger):
    host = capture(
        [rollout_batch(tiny_tokenizer(), BatchPlan(n_groups=1, group_size=2))], step=1, split="rollout"
    )
    sink = TrackioSink.open(project="p", name="run")
    for again in (False, True):
        sink.sending_again = again
        processor = StepProcessor(sink, None, StepOptions(max_traces=0, ledger=ledger))
        processor.process([host])
        processor.close_steps()
        deadline = time.monotonic() + 30
        while not sink.stored.has_totals(1, "rollout") and time.monotonic() < deadline:
            time.sleep(0.05)
        sink.stored.refresh()
    sink.finish()
    found = rows(
        trackio_dir,
        """select json_extract(metrics, '$."rollout/total/samples"') as n from metrics where n is not null""",
    )
    assert found == [(2,)]
