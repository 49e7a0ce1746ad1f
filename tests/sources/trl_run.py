"""The Trackio project that a real GRPO training wrote by itself, written again as it was logged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.sources.reading import SAMPLES

PROJECT = "trl"


def sample() -> dict[str, Any]:
    """What TRL logged (`rows`: step and values), and what the trainer had in its hands (`seen`)."""
    return json.loads((SAMPLES / "trl-trackio/run.json").read_text())


def log_run(
    rows: Sequence[Any] | None = None,
    *,
    name: str = "r1",
    config: Mapping[str, Any] | None = None,
    project: str = PROJECT,
) -> None:
    """Logs the sample, or other rows of it, as TRL logs them."""
    import trackio

    logged = sample()
    run = trackio.init(
        project=project,
        name=name,
        config=dict(logged["config"] if config is None else config),
        embed=False,
        auto_log_gpu=False,
    )
    for step, values in logged["rows"] if rows is None else rows:
        run.log(
            {
                key: trackio.Table(data=value["_value"]) if isinstance(value, dict) else value
                for key, value in values.items()
            },
            step=step,
        )
    trackio.finish()
