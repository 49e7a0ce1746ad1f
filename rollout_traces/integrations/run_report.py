"""The report of `rollout-traces run` when the script ends: what was hooked, what was logged, or why nothing.

A trainer may run in another process of the node than the script (verl's does). Every process that hooks one writes
a small JSON file into a folder that `rollout-traces run` made; the script's own process reads them all when it ends.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rollout_traces.model.private_files import replace_file
from rollout_traces.model.units import MS

FOLDER = "ROLLOUT_TRACES_RUN_REPORT"
"""The environment variable that names the folder."""
PROCESS = "ROLLOUT_TRACES_RUN_PROCESS"
"""The environment variable with the process id of the script."""
LIVE_PLACE = "ROLLOUT_TRACES_LIVE_PLACE"
"""The environment variable that names the file of `followed.announce`."""
ADAPTED = {
    "slime": "slime",
    "openrlhf": "OpenRLHF",
    "prime_rl": "prime-rl",
    "verifiers": "verifiers",
    "nemo_rl": "NeMo-RL",
    "skyrl": "SkyRL",
    "skyrl_train": "SkyRL",
    "tinker_cookbook": "tinker-cookbook",
    "rllm": "rLLM",
    "open_instruct": "open-instruct",
    "art": "ART",
}
"""Modules of trainers that `rollout-traces run` does not hook -> their names."""
HOOKED = ("areal", "trl", "verl")


@dataclass
class HookReport:
    """One integration's report from one process.

    Attributes:
        integration: its name.
        trainers: trainers that it was attached to.
        switched_off: trainers that it left alone because no rollouts were asked for.
        steps: training steps whose rollouts were handed over.
        rollouts: rollouts that were handed over, evaluation included.
        hook_seconds: seconds of the training thread spent in hooks, the logger's start and end included.
        timed_steps: steps between two closes, which have no start and no end in them.
        timed_seconds: seconds of those steps.
        timed_hook_seconds: of these, seconds spent in hooks.
        problem: why rollouts could not be logged; empty where they could.
    """

    integration: str
    trainers: int = 0
    switched_off: int = 0
    steps: int = 0
    rollouts: int = 0
    hook_seconds: float = 0.0
    timed_steps: int = 0
    timed_seconds: float = 0.0
    timed_hook_seconds: float = 0.0
    problem: str = ""


_reports: dict[str, HookReport] = {}
"""This process's, by integration."""


def report_of(integration: str) -> HookReport:
    """This process's report of an integration, which the caller updates before `write`."""
    return _reports.setdefault(integration, HookReport(integration))


def write() -> None:
    """Writes this process's reports where `rollout-traces run` reads them; nothing outside of it."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    said = json.dumps([asdict(report) for report in _reports.values()])
    replace_file(Path(folder) / f"{os.getpid()}.json", said.encode())


def environment(options: Mapping[str, Any]) -> dict[str, str]:
    """The variables for a script that this process is about to become, whose hooks are given the options."""
    from rollout_traces.settings.logger_options import as_environment  # no hooked script needs it

    folder = tempfile.mkdtemp(prefix="rollout-traces-run-")
    own = {FOLDER: folder, PROCESS: str(os.getpid()), LIVE_PLACE: str(Path(folder) / "live.place")}
    return as_environment(options) | own


def say_at_exit() -> None:
    """In the script's own process: prints the report to stderr when Python ends."""
    if os.environ.get(PROCESS) == str(os.getpid()) and os.environ.get(FOLDER):
        atexit.register(_say)


def _say() -> None:
    folder = Path(os.environ[FOLDER])
    write()
    reports: list[HookReport] = []
    for path in sorted(folder.glob("*.json")):
        reports += [HookReport(**item) for item in json.loads(path.read_text())]
    shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(f"rollout-traces: {line}" for line in lines(reports, imported())), file=sys.stderr)


def imported() -> tuple[str, ...]:
    """Top-level modules of trainers that this process has imported."""
    return tuple(name for name in (*HOOKED, *ADAPTED) if name in sys.modules)


def lines(reports: list[HookReport], modules: tuple[str, ...]) -> list[str]:
    """Writes the report of a run, a line for each integration.

    Args:
        reports: one an integration and process.
        modules: trainers' modules that the script imported.
    """
    said = []
    for name in dict.fromkeys(report.integration for report in reports):
        mine = [report for report in reports if report.integration == name]
        steps, rollouts = sum(r.steps for r in mine), sum(r.rollouts for r in mine)
        problem = next((r.problem for r in mine if r.problem), "")
        if rollouts:
            said.append(
                f"{name}: {rollouts:,} rollouts of {steps:,} training steps handed over{_cost(mine)}."
            )
        elif problem:
            said.append(f"{name}: no rollouts were logged: {problem}")
        elif any(r.trainers for r in mine):
            said.append(f"{name}: a trainer was hooked and handed no rollouts over.")
        elif any(r.switched_off for r in mine):
            said.append(
                f"{name}: no rollouts were logged: max_rollout_traces_per_step is 0. Set --max-traces 32, or "
                "stats_logger.trackio.max_rollout_traces_per_step in the config."
            )
    return said or [_why_none(modules)]


def _cost(reports: list[HookReport]) -> str:
    """Says how much of a step the hooks took of the training thread; empty where no step was timed."""
    n_steps = sum(report.timed_steps for report in reports)
    step = sum(report.timed_seconds for report in reports)
    hooks = sum(report.timed_hook_seconds for report in reports)
    if not n_steps or not step:
        return ""
    return (
        f"; the hooks took {hooks / n_steps * MS:.1f} ms of a step's {step / n_steps * MS:,.0f} ms "
        f"({hooks / step:.1%})"
    )


def _why_none(modules: tuple[str, ...]) -> str:
    hooked = [name for name in modules if name in HOOKED]
    if hooked:
        return (
            f"no rollouts were logged: {' and '.join(hooked)} was imported, but no trainer that is hooked was built "
            "(AReaL's PPOTrainer; TRL's GRPOTrainer, RLOOTrainer and AsyncGRPOTrainer, Unsloth's of them; verl's trainers "
            "and Agent Lightning's)."
        )
    adapted = [ADAPTED[name] for name in modules if name in ADAPTED]
    if adapted:
        return (
            f"no rollouts were logged: {' and '.join(adapted)} has an adapter and no hook. docs/trainers.md has the "
            "lines to add."
        )
    known = [name for name in HOOKED if importlib.util.find_spec(name) is not None]
    there = f"installed here: {', '.join(known)}" if known else "none of them is installed here"
    return f"no rollouts were logged: the script imported none of AReaL, TRL and verl ({there})."
