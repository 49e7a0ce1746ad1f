"""What a hand-over from a GPU costs, beside a plain `.cpu()` of the same tensors: `python -m benchmarks.device`.

One command makes every figure that docs/logging.md gives of a GPU: the tests that need CUDA, the synchronisations of a
hand-over, the time on the calling thread for 256 rollouts of 16,384 tokens, and a training loop's step time with and
without logging. Where there is no CUDA device it says what it lacks and ends with exit status 1.

The training loop multiplies bf16 matrices for a while, as an update does, and synchronises once a step, as reading the
loss does. Loops with and without logging alternate step by step, so that clocks and temperature are the same for both.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

ROLLOUTS, TOKENS = 256, 16_384
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
    """Prints how often one hand-over made the calling thread wait for the device, as PyTorch counts it."""
    import torch

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        logger.log_rollouts(batch, step=1000)
        torch.cuda.set_sync_debug_mode("default")
    found = [str(each.message) for each in said if "synchroniz" in str(each.message)]
    print(f"synchronisations of a hand-over on the default stream: {len(found)}")
    logger.flush(300)


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
    """Prints the step time of a loop with and without logging, alternating step by step."""
    import torch

    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def update() -> None:
        product = matrix
        for _ in range(100):
            product = torch.nn.functional.normalize(product @ matrix)
        float(product.sum())

    def logged(step: int) -> None:
        logger.log_rollouts(batch, step=step)
        update()

    update()
    without, with_it = [], []
    for step in range(n_steps):
        without.append(milliseconds(update))
        with_it.append(milliseconds(lambda step=step: logged(3000 + step)))
    print(f"training loop: {n_steps} steps of each, milliseconds a step")
    print(f"  without logging  {described(without)}")
    print(f"  with logging     {described(with_it)}")
    print(f"  ratio            {statistics.median(with_it) / statistics.median(without):.4f}")


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
