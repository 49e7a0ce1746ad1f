"""What a step and a trace cost the worker's processor, beside what Trackio itself takes: `python -m benchmarks.worker`.

The worker is a separate process; what a worker takes that stores one step only is subtracted. Trackio's own part is
the processor time of `run.log` and of Trackio's sender for the very same scalars, histograms and traces.
"""

from __future__ import annotations

import argparse
import contextvars
import itertools
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil

from benchmarks.logging import CAP, SMALL, children_seconds, long_rows, make_logger, wide_batch

LONG = 5700
"""What `long_rows` is asked for, to give traces of about 5,000 tokens."""
TRACES = 32
"""Long traces a step."""


def main() -> None:
    """Prints a line for each shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", type=int, default=2000, help="steps of one rollout")
    parser.add_argument("--lone", type=int, default=20, help="steps of one rollout, half a second apart")
    parser.add_argument("--history", type=int, default=2000, help="such steps that were stored before")
    parser.add_argument("--long", type=int, default=10, help=f"steps of {TRACES} long traces")
    options = parser.parse_args()
    # an installed package is compiled once, not by each worker
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(prefix="rollout-traces-benchmark-") as folder:
        os.environ |= {"TRACKIO_DIR": folder, "TRACKIO_TELEMETRY": "0", "HF_HUB_OFFLINE": "1"}
        small(options.small)
        lone(options.lone, options.history)
        long(options.long)


def small(n_steps: int) -> None:
    """Steps of one rollout of 64 tokens, without a tokenizer: scalars, a histogram and a step summary each."""
    batch = {key: value[:1, :64] for key, value in wide_batch(8, 64).items() if key in SMALL}
    total = beyond_start_up("small", None, batch, n_steps) / n_steps
    described(
        "a step of one rollout", total, trackio_seconds("small", logged(None, batch, n_steps)) / n_steps
    )


def lone(n_steps: int, history: int) -> None:
    """Steps of one rollout that come one by one: the rounds that find nothing to do are part of what a step costs."""
    batch = {key: value[:1, :64] for key, value in wide_batch(8, 64).items() if key in SMALL}
    logger = make_logger(None, "worker-lone", announces_closes=True)
    next_step = itertools.count()

    def log_steps(n: int, apart: float) -> None:
        for step in itertools.islice(next_step, n):
            logger.log_rollouts(batch, step=step)
            logger.close_step(step)
            time.sleep(apart)

    for stored, what in ((1, "at the start of a run"), (history, f"after {history:,} steps")):
        log_steps(stored, 0)
        logger.flush(600)
        worker = psutil.Process(logger._pipeline._worker.pid)
        before = worker.cpu_times()
        log_steps(n_steps, 0.5)
        time.sleep(1)
        after = worker.cpu_times()
        used = after.user + after.system - before.user - before.system
        print(
            f"a lone step, one in half a second, {what}: {1e3 * used / n_steps:.1f} ms of the worker's processor"
        )
    logger.finish(600)


def long(n_steps: int) -> None:
    """Steps of long traces, all of them kept."""
    from tests.generator import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    rows = long_rows(tokenizer, TRACES, LONG)
    n_tokens = np.mean([len(row.input_ids) for row in rows])
    batch = [batch_of(row) for row in rows]
    n = n_steps * len(rows)
    total = beyond_start_up("long", tokenizer, batch, n_steps, selection="all") / n
    own = trackio_seconds("long", logged(tokenizer, batch, n_steps)) / n
    described(f"a trace of {n_tokens:.0f} tokens", total, own)


def batch_of(row: Any) -> dict[str, Any]:
    """A conversation as a batch of one, with logprobs and versions."""
    n = len(row.input_ids)
    logprobs = -np.random.default_rng(n).exponential(0.35, n).astype(np.float32)
    return {
        "input_ids": row.input_ids[None],
        "attention_mask": np.ones((1, n), bool),
        "loss_mask": row.sampled[None].astype(np.int64),
        "logprobs": logprobs[None],
        "versions": np.where(row.sampled, 7, -1)[None],
        "rewards": np.asarray([0.5], np.float32),
    }


def beyond_start_up(name: str, tokenizer: Any, batch: Any, n_steps: int, **options: Any) -> float:
    """Processor seconds of the worker for steps of one batch, less those of a worker for one such step."""
    once, more = (worker_seconds(f"{name}-{n}", tokenizer, batch, n, **options) for n in (1, n_steps + 1))
    print(
        f"{name}: a worker that stores one step takes {1e3 * once:.0f} ms of processor, start and end included"
    )
    return more - once


def worker_seconds(name: str, tokenizer: Any, batch: Any, n_steps: int, **options: Any) -> float:
    """Processor seconds of the worker of a logger, from its start to its end."""
    before = children_seconds()
    logger = make_logger(tokenizer, f"worker-{name}", **options)
    for step in range(n_steps):
        logger.log_rollouts(batch, step=step)
    done = logger.finish(600)
    if not done:
        print(f"  {name}: not all was stored in time")
    while psutil.Process().children():  # their processor time counts once they have ended
        time.sleep(0.05)
    return children_seconds() - before


@dataclass(eq=False)
class Recorder:
    """A sink that keeps what the worker would log."""

    stored: Any
    calls: list[tuple[dict[str, Any], int]] = field(default_factory=list)

    def log_traces(
        self,
        key: str,
        records: Sequence[Any],
        *,
        step: int,
        attempt: str = "",
        scalars: Mapping[str, Any] | None = None,
        histograms: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Keeps the values of one log call."""
        import trackio

        from rollout_traces.sink.trackio_sink import binned

        binned_values = {name: binned(values) for name, values in (histograms or {}).items()}
        shapes = {
            name: trackio.Histogram(np_histogram=shape)
            for name, shape in binned_values.items()
            if shape is not None
        }
        traces = [
            trackio.Trace(messages=list(record.messages), metadata=dict(record.metadata), spans=record.spans)
            for record in records
        ]
        self.calls.append(({**(scalars or {}), **shapes, key: traces}, step))

    def log_scalars(
        self, scalars: Mapping[str, Any], *, step: int, attempt: str = "", again: bool = False
    ) -> list[str]:
        """Keeps nothing: these steps have a summary, and their scalars go with it."""
        return []

    def alert(self, alert: Any, *, step: int) -> None:
        """Keeps nothing."""

    def disk_bytes(self) -> int:
        """Nothing is stored."""
        return 0


def logged(tokenizer: Any, batch: Any, n_steps: int) -> list[tuple[dict[str, Any], int]]:
    """The log calls of a worker for steps of one batch, as values and step."""
    from dataclasses import replace

    from rollout_traces import RolloutBatch, TranscriptDecoder
    from rollout_traces.capture.host_copy import capture
    from rollout_traces.model.packed_batch import StepKey
    from rollout_traces.sink.stored import Stored
    from rollout_traces.steps.processor import StepProcessor
    from rollout_traces.steps.run_state import StepOptions, StoredStep

    sink = Recorder(Stored(lambda sql: [], "p", "r"))
    decoder = None if tokenizer is None else TranscriptDecoder(tokenizer)
    options = StepOptions(
        max_rollout_traces_per_step=CAP, selection="portfolio" if tokenizer is None else "all"
    )
    processor = StepProcessor(sink, decoder, options)
    packed = capture(RolloutBatch.from_any(batch), step=0, split="rollout")
    for step in range(n_steps):
        key = StepKey("", step, "rollout")
        processor.add(key, replace(packed, step=step, batch_id=f"b{step}"))
        processor.close(key, StoredStep())
    return sink.calls


def trackio_seconds(name: str, calls: Sequence[tuple[dict[str, Any], int]]) -> float:
    """Processor seconds of this process for `run.log` of these values, to the end of `run.finish`."""
    import trackio

    run = contextvars.Context().run(lambda: trackio.init(project=f"floor-{name}", name="run", embed=False))
    before = time.process_time()
    for values, step in calls:
        run.log(values, step=step)
    run.finish()
    return time.process_time() - before


def described(what: str, total: float, own: float) -> None:
    """Prints milliseconds of the worker, and how many a second Trackio alone would allow."""
    print(
        f"{what}: {1e3 * total:.2f} ms of the worker's processor, of which Trackio itself {1e3 * own:.2f} ms "
        f"(at most {1 / own:.0f} a second), beyond it {1e3 * (total - own):.2f} ms"
    )


if __name__ == "__main__":
    main()
