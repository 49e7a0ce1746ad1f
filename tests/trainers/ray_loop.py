"""The Ray example of docs/trainers.md, with real actors. Run by `make test-trainers` in verl's environment."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ["TRACKIO_DIR"] = tempfile.mkdtemp()
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import ray

import rollout_traces as rt
from tests.trainers.docs_example import batch, check, example

ROOT = str(Path(__file__).resolve().parents[2])


@ray.remote
class Sampler:
    """An actor that samples a group."""

    def __init__(self, number: int) -> None:
        self.number = number

    def sample(self, step: int) -> dict:
        return batch(step, group=self.number)


def main() -> None:
    """Runs the example and looks at what is stored."""
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        logging_level="ERROR",
        runtime_env={"env_vars": {"PYTHONPATH": ROOT}},
    )
    try:
        actors = [Sampler.remote(number) for number in range(2)]
        logger = rt.RolloutLogger("ray-example", "r1", max_rollout_traces_per_step=8)
        exec(example("ray.get"), {"ray": ray, "actors": actors, "n_steps": 3, "logger": logger})
        assert logger.finish()
    finally:
        ray.shutdown()
    check("ray-example", [0, 1, 2], 8)


if __name__ == "__main__":
    main()
