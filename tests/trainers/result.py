"""What a trainer's script found, as one line of JSON, for the table of docs/trainers.md."""

from __future__ import annotations

import json
import os
from importlib.metadata import version

RESULTS = "ROLLOUT_TRACES_TRAINER_RESULTS"
"""The environment variable that names the file; without it a result is printed alone."""


def report(name: str, integration: str, distribution: str, *, rows: int, equal: int) -> None:
    """Prints how many rows were compared and equal, and what the hooks took of the training thread.

    Args:
        name: the line of the table.
        integration: whose hooks were timed, in this process.
        distribution: the trainer's package.
        rows: rows that were compared with the trainer's own.
        equal: of these, rows that were equal.
    """
    from rollout_traces.integrations.run_report import (
        report_of,  # the runner of the scripts has no environment
    )

    timed = report_of(integration)
    n_steps = max(timed.timed_steps, 1)
    report_row(
        name,
        distribution,
        rows=rows,
        equal=equal,
        hook_ms=timed.timed_hook_seconds / n_steps * 1e3,
        step_ms=timed.timed_seconds / n_steps * 1e3,
        n_steps=timed.timed_steps,
    )


def report_row(
    name: str, distribution: str, *, rows: int, equal: int, hook_ms: float, step_ms: float, n_steps: int
) -> None:
    """Prints a line of the table.

    Args:
        name: the line of the table.
        distribution: the trainer's package.
        rows: rows that were compared with the trainer's own.
        equal: of these, rows that were equal.
        hook_ms: milliseconds of the training thread a step that logging took.
        step_ms: milliseconds of a step.
        n_steps: steps that were timed.
    """
    found = {
        "name": name,
        "version": version(distribution),
        "rows": rows,
        "equal": equal,
        "hook_ms": round(hook_ms, 1),
        "step_ms": round(step_ms),
    }
    print(
        f"{name} {found['version']}: {equal} of {rows} rows equal; the hooks took {found['hook_ms']} ms of a step's "
        f"{found['step_ms']} ms ({n_steps} steps)"
    )
    if os.environ.get(RESULTS):
        with open(os.environ[RESULTS], "a", encoding="utf-8") as file:  # noqa: PTH123
            file.write(json.dumps(found) + "\n")
