"""`rollout-traces run`: a training script with the hooks installed, its code untouched."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from rollout_traces.errors import ConfigError

CONTEXT_SETTINGS = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
}
"""Settings by which what stands behind the script is the script's."""
USAGE = "[OPTIONS] SCRIPT|-m MODULE [ARGS]..."
STARTUP = Path(__file__).resolve().parent.parent / "integrations" / "startup"


def run(
    context: typer.Context,
    *,
    module: Annotated[str | None, typer.Option("-m")] = None,
    max_traces: int | None = None,
    project: Annotated[str | None, typer.Option("--project", "-p")] = None,
    name: str | None = None,
    selection: str | None = None,
    check_only: bool = False,
) -> None:
    """Run a training script with rollouts logged for whichever trainer it imports.

    Everything after the script is the script's own; so are its exit code and its tracebacks. AReaL, TRL,
    Unsloth, verl and Agent Lightning are known. At the end it says on stderr what was hooked and how many
    rollouts were handed over, or why none were.

    Example: rollout-traces run --max-traces 32 train.py --config grpo.yaml

    Args:
        module: Run a module, as `python -m` does.
        max_traces: Rollouts kept per step and split; else what the trainer's config says.
        project: Trackio project, where the trainer opens none.
        name: Run name, where the trainer opens none.
        selection: How the cap is spent: portfolio, fixed_prompts, first, random, extremes or all.
        check_only: Look at the first rollouts as `check` does, and end the script.
    """
    from rollout_traces.integrations import run_report

    script = ["-m", module] if module else []
    if not script and not context.args:
        raise ConfigError("expected a script, or -m and a module: rollout-traces run train.py")
    if not module and not context.args[0].startswith("-") and not Path(context.args[0]).exists():
        raise ConfigError(f"{context.args[0]}: no such script. A module is named with -m.")
    given = {
        "max_rollout_traces_per_step": max_traces,
        "project": project,
        "name": name,
        "selection": selection,
        "check_only": check_only or None,
    }
    environment = {**os.environ, **run_report.environment(given)}
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([str(STARTUP), *([path] if path else [])])
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *script, *context.args], environment)
