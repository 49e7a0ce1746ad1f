"""What a hand-over from a GPU costs, beside a plain `.cpu()` of the same tensors: `python -m benchmarks.device`.

One command makes every figure that docs/logging.md gives of a GPU: the tests that need CUDA, the synchronisations of a
hand-over, the time on the calling thread for 256 rollouts of 16,384 tokens, and a training loop's step time with and
without logging. Where there is no CUDA device it says what it lacks and ends with exit status 1.

Synchronisations are counted in two ways, for neither sees all: PyTorch's sync debug mode sees those that an operation
makes (`.item()`, a copy to pageable memory), and not those that code asks for; `torch.cuda.synchronize` and the
`synchronize` of streams and events are wrapped and counted in every thread.

The training loop multiplies bf16 matrices for a while, as an update does, and synchronises once a step, as reading the
loss does. Loops of some steps with and without logging do the same work in turn, each first in every other pair. Within a
loop nothing is waited for, so that what a step leaves to be copied, written and stored weighs on the steps after it; between
two loops all of it is, so that none of it weighs on the loop without logging. The ratio is the median of the pairs' ratios.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

ROLLOUTS, TOKENS = 256, 16_384
LOOP = 5
"""Steps of a training loop."""
TOKEN_KEYS = {"input_ids": "int64", "loss_mask": "int64", "versions": "int64", "logprobs": "bfloat16"}
"""Tensors [B, T] of the hand-over, beside a bool attention mask: integers as trainers keep them, bf16 logprobs."""


def main() -> int:
    """Prints every figure.

    Returns:
        0, or 1 where there is no CUDA device.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20, help="hand-overs that are timed")
    parser.add_argument("--rollouts", type=int, default=ROLLOUTS)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        built = f"PyTorch {torch.__version__} is built for CUDA {torch.version.cuda or 'not at all'}"
        print(
            f"no figures: torch.cuda.is_available() is False; {built}. Needed: a CUDA device and such a build."
        )
        return 1
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    cuda_tests()
    with tempfile.TemporaryDirectory(prefix="rollout-traces-benchmark-") as folder:
        os.environ |= {"TRACKIO_DIR": folder, "TRACKIO_TELEMETRY": "0", "HF_HUB_OFFLINE": "1"}
        batch = batch_on_device(options.rollouts, options.tokens)
        logger = make_logger()
        for step in range(3):  # pins memory, compiles kernels, starts the worker
            logger.log_rollouts(batch, step=step)
            logger.flush(300)
        synchronisations(logger, batch)
        hand_over(logger, batch, options.steps)
        training_loop(logger, batch, options.steps)
        print(f"everything stored: {logger.finish(600)}; counters {dict(logger.counters)}")
    return 0


def cuda_tests() -> None:
    """Runs the tests that need CUDA and prints pytest's last line."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "tests/capture"], capture_output=True, text=True
    )
    print(f"CUDA tests: {done.stdout.strip().splitlines()[-1]}")


def batch_on_device(B: int, T: int) -> dict[str, Any]:
    """A batch of random tokens in groups of eight, every tensor on the device; half of each row is sampled."""
    import torch

    made = torch.Generator(device="cuda").manual_seed(0)
    sampled = torch.arange(T, device="cuda").expand(B, T) >= T // 2
    batch = {
        "input_ids": torch.randint(0, 1000, (B, T), device="cuda", generator=made),
        "loss_mask": sampled.long(),
        "versions": torch.where(sampled, 1207, -1),
        "logprobs": -torch.rand(B, T, device="cuda", generator=made).bfloat16(),
        "attention_mask": torch.ones(B, T, dtype=torch.bool, device="cuda"),
        "rewards": torch.rand(B, device="cuda", generator=made),
        "group_ids": torch.arange(B, device="cuda") // 8,
    }
    assert all(str(batch[key].dtype).endswith(dtype) for key, dtype in TOKEN_KEYS.items())
    return batch


def make_logger() -> Any:
    """A logger whose budget takes the whole batch."""
    import rollout_traces as rt
    from tests.generator import tiny_tokenizer

    return rt.RolloutLogger(
        "benchmark", "device", tiny_tokenizer(), max_rollout_traces_per_step=32, max_spool_bytes=64 << 30
    )


def synchronisations(logger: Any, batch: dict[str, Any]) -> None:
    """Prints how often one hand-over made a thread wait for the device: the calling thread, and any other."""
    import torch

    with warnings.catch_warnings(record=True) as said, counted_synchronisations() as asked_for:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        logger.log_rollouts(batch, step=1000)
        torch.cuda.set_sync_debug_mode("default")
        logger.flush(300)
    implied = [str(each.message) for each in said if "synchroniz" in str(each.message)]
    print(
        f"synchronisations of a hand-over on the default stream: {len(implied)} implied by operations, "
        f"{asked_for.total()} asked for {dict(asked_for) or ''}"
    )


@contextmanager
def counted_synchronisations() -> Iterator[Counter[str]]:
    """Counts every call of this process that waits for the device by name: of the device, a stream, an event."""
    import torch

    counts: Counter[str] = Counter()

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            counts[f"{name} in {threading.current_thread().name}"] += 1
            return call(*args, **kwargs)

        return wrapped

    with ExitStack() as patched:
        for owner, name in ((torch.cuda, "cuda"), (torch.cuda.Stream, "Stream"), (torch.cuda.Event, "Event")):
            wrapper = counted(f"{name}.synchronize", owner.synchronize)
            patched.enter_context(mock.patch.object(owner, "synchronize", wrapper))
        yield counts


def hand_over(logger: Any, batch: dict[str, Any], n_steps: int) -> None:
    """Prints the calling thread's time of `log_rollouts` beside `.cpu()` of the same tensors, alternating."""
    n_bytes = sum(value.nbytes for value in batch.values())
    shape = "x".join(map(str, batch["input_ids"].shape))
    print(f"hand-over: {shape} tokens, {n_bytes / 1e6:,.0f} MB on the device, {n_steps} steps, milliseconds")
    ours, plain = [], []
    for step in range(n_steps):
        ours.append(milliseconds(lambda step=step: logger.log_rollouts(batch, step=2000 + step)))
        logger.flush(300)
        plain.append(milliseconds(lambda: {key: value.cpu() for key, value in batch.items()}))
    print(f"  log_rollouts  {described(ours)}")
    print(f"  .cpu()        {described(plain)}")
    print(f"  ratio         {statistics.median(plain) / statistics.median(ours):.1f} times less")


def training_loop(logger: Any, batch: dict[str, Any], n_steps: int) -> None:
    """Prints the step time of a loop with and without logging, in pairs."""
    import torch

    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def update() -> None:
        product = matrix
        for _ in range(100):
            product = torch.nn.functional.normalize(product @ matrix)
        float(product.sum())

    def loop(log: Callable[[int], object], first: int) -> float:
        def steps() -> None:
            for step in range(first, first + LOOP):
                log(step)
                update()
            torch.cuda.synchronize()

        return milliseconds(steps) / LOOP

    update()
    without, with_it = [], []
    kinds = [
        (without, lambda step: None),
        (with_it, lambda step: logger.log_rollouts(batch, step=step)),
    ]
    for pair in range(max(4, n_steps // LOOP)):
        for times, log in kinds if pair % 2 else reversed(kinds):
            times.append(loop(log, 3000 + pair * LOOP))
            logger.flush(300)
    ratios = [ours / plain for ours, plain in zip(with_it, without, strict=True)]
    print(f"training loop: {len(ratios)} pairs of {LOOP} steps, milliseconds a step")
    print(f"  without logging  {described(without)}")
    print(f"  with logging     {described(with_it)}")
    print(
        f"  ratio            median of pairs {statistics.median(ratios):.4f}, "
        f"least {min(ratios):.4f}, most {max(ratios):.4f}"
    )


def milliseconds(work: Callable[[], Any]) -> float:
    """Wall time of the calling thread, everything before it on the device waited for first."""
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


def described(times: list[float]) -> str:
    """Median and extremes."""
    return f"median {statistics.median(times):8.2f}   least {min(times):8.2f}   most {max(times):8.2f}"


if __name__ == "__main__":
    raise SystemExit(main())
