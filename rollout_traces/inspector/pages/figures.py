"""What several pages show: ranges, series over the steps, how rows were chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from rollout_traces.inspector.workspace import Request, Workspace
from rollout_traces.settings.run_settings import CONFIG_KEY

MOST_POINTS = 800
"""Points of a line sent to the page; longer ones are thinned."""

USUAL = (
    "reward/mean",
    "reward/std",
    "success/mean",
    "tokens/completion/mean",
    "stop/length_share",
    "group/tie_share",
    "staleness/mean",
    "mismatch/k3",
    "tools/errors_per_call",
    "entropy/mean",
    "nll_estimate",
    "update/top3_share",
)
LOSSES = (
    "train/loss",
    "loss",
    "train/actor/loss",
    "actor/pg_loss",
    "train/grad_norm",
    "grad_norm",
    "actor/grad_norm",
)
EVALUATION = ("eval-rollout/reward/mean", "eval-rollout/success/mean")
MOST_USUAL = 7
MOST_COMPONENTS = 4
TIMINGS = ("time/", "timeperf/")
"""Scalars of these prefixes are seconds spent."""
MOST_TIMINGS = 24
Series = Mapping[str, tuple[list[int], list[float]]]


@cache
def flag_severities() -> dict[str, str]:
    """Flag name -> error, warn or info."""
    from rollout_traces.flags import REGISTRY

    return {name: spec.severity for name, spec in REGISTRY.items()}


def chosen_by(counts: Mapping[str, int]) -> str | None:
    """How the kept rollouts were chosen, in words: `16 best, 8 random, 2 alarm: stalest`; None where all were."""
    if set(counts) <= {"all"}:
        return None
    return ", ".join(f"{count:,} {in_words(reason)}" for reason, count in counts.items())


def in_words(reason: str) -> str:
    """A reason of the selection as a person reads it: `discarded:zero_advantage`, `discarded: zero advantage`."""
    return reason.replace("_", " ").replace(":", ": ")


def chosen_over_steps(workspace: Workspace, request: Request) -> str | None:
    """How the kept rollouts of all steps of a split were chosen, in words; None where no trace says it."""

    def count() -> str | None:
        store = workspace.store(request.project)
        found = store.facets("selected_by", run=request.run, split=request.split)
        return chosen_by({str(reason): count for reason, count in found if reason is not None})

    return workspace.remembered(("chosen", request.run, request.split), request.project, count)


def scalars(workspace: Workspace, request: Request) -> Series:
    """A run's logged numbers, one value a step (the last one), steps ascending."""

    def read() -> Series:
        raw = workspace.store(request.project).metrics(request.run)
        return {name: _one_a_step(steps, values) for name, (steps, values) in raw.items()}

    return workspace.remembered(("scalars", request.run), request.project, read)


def split_series(workspace: Workspace, request: Request, wanted: Sequence[str]) -> dict[str, Any]:
    """Names of all series of a run, and the wanted ones (the usual ones when none) as points.

    A run that was resumed says at which steps, and which steps of a series only an older attempt has.

    Args:
        workspace: where to read.
        request: names run and split.
        wanted: names of series; unknown ones are left out.
    """
    known = scalars(workspace, request)
    names = sorted(known, key=lambda name: (not name.startswith(f"{request.split}/"), name))
    shown = [name for name in wanted if name in known] or _usual(names, request.split)
    timings = [name for name in names if name.startswith(TIMINGS)][:MOST_TIMINGS]
    superseded = _superseded(workspace, request, shown)
    return {
        "names": names,
        "shown": shown,
        "series": {name: _points(*known[name]) | superseded.get(name, {}) for name in shown},
        "resumed_at": resumed_at(workspace, request),
        "timings": {name: _points(*known[name]) for name in timings},
    }


def resumed_at(workspace: Workspace, request: Request) -> list[int]:
    """The steps at which a run was resumed: the first step of every attempt but the first."""
    return list(workspace.store(request.project).run(request.run).resumed_at)


def _superseded(workspace: Workspace, request: Request, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By name, the steps of a series that only an older attempt has; series without such steps are left out."""

    def read() -> dict[str, frozenset[int]]:
        return workspace.store(request.project).superseded_metrics(request.run)

    lost = workspace.remembered(("superseded", request.run), request.project, read)
    return {name: {"superseded": sorted(lost[name])} for name in names if name in lost}


def run_progress(workspace: Workspace, request: Request) -> dict[str, list[Any]]:
    """Rollouts seen and tokens sampled by each step of the split, from all its rollouts: the axes beside steps."""

    def read() -> dict[str, list[Any]]:
        from rollout_traces.analysis.runs import progress

        store = workspace.store(request.project)
        found = progress(store.table(), store.run(request.run).name, request.split)
        stride = max(1, math.ceil(len(found.steps) / MOST_POINTS))
        kept = sorted({*range(0, len(found.steps), stride), len(found.steps) - 1}) if len(found.steps) else []
        return {
            "steps": found.steps[kept].tolist(),
            "rollouts": found.rollouts[kept].tolist(),
            "tokens": [each if math.isfinite(each) else None for each in found.tokens[kept].tolist()],
        }

    return workspace.remembered(("progress", request.run, request.split), request.project, read)


def axis_range(workspace: Workspace, request: Request, name: str) -> tuple[float, float]:
    """The range of `reward` or `component/<name>`: declared by the run, else observed in it.

    Returns:
        Lowest and highest; 0 to 1 when nothing is known.
    """
    declared = _declared(workspace, request).get(name)
    if declared is not None:
        return declared
    metric = name.replace("component/", "reward/", 1)
    known = scalars(workspace, request)
    ends = [
        pick(values)
        for split in ("rollout", "eval-rollout")
        for end, pick in (("min", min), ("max", max))
        if (values := _finite(known.get(f"{split}/{metric}/{end}", ((), ()))[1]))
    ]
    if not ends:
        return (0.0, 1.0)
    low, high = min(ends), max(ends)
    return (low, high) if low < high else (min(low, 0.0), max(high, 1.0))


def _declared(workspace: Workspace, request: Request) -> dict[str, tuple[float, float]]:
    def read() -> dict[str, tuple[float, float]]:
        settings = workspace.store(request.project).config(request.run).get(CONFIG_KEY) or {}
        named = {"reward": settings.get("reward_range"), **(settings.get("metric_ranges") or {})}
        ranges = {}
        for name, value in named.items():
            if isinstance(value, Mapping) and "min" in value and "max" in value:
                ranges[name] = (float(value["min"]), float(value["max"]))
        return ranges

    return workspace.remembered(("ranges", request.run), request.project, read)


def _usual(names: Sequence[str], split: str) -> list[str]:
    """Reward, its components, evaluation, loss and gradient, then what else is usual; else the first there are."""
    known = set(names)
    own = [f"{split}/{name}" for name in USUAL if f"{split}/{name}" in known]
    parts = [name for name in names if _is_component(name, split)][:MOST_COMPONENTS]
    beside = [name for name in (*EVALUATION, *LOSSES) if name in known and name not in own]
    wanted = [*own[:1], *parts, *beside, *own[1:MOST_USUAL]]
    return wanted or list(names[:MOST_USUAL])


def _is_component(name: str, split: str) -> bool:
    """`rollout/reward/<component>/mean`."""
    parts = name.removeprefix(f"{split}/").split("/")
    return name.startswith(f"{split}/reward/") and len(parts) == 3 and parts[2] == "mean"


def _one_a_step(steps: Sequence[int], values: Sequence[float]) -> tuple[list[int], list[float]]:
    last = dict(zip(steps, values, strict=True))
    ordered = sorted(last)
    return ordered, [last[step] for step in ordered]


def _points(steps: Sequence[int], values: Sequence[float]) -> dict[str, list[Any]]:
    stride = max(1, math.ceil(len(steps) / MOST_POINTS))
    kept = sorted({*range(0, len(steps), stride), len(steps) - 1}) if steps else []
    plain = [values[at] if math.isfinite(values[at]) else None for at in kept]
    return {"steps": [steps[at] for at in kept], "values": plain}


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]
