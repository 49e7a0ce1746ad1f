"""Several runs: their curves over each other, and the settings in which two or more differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rollout_traces.analysis.runs import ConfigDifference, config_differences
from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.figures import (
    RunProgress,
    SeriesPoints,
    run_progress,
    scalars,
    split_series,
)
from rollout_traces.inspector.workspace import Names, ProjectView, SplitView

MOST_RUNS = 24
"""Runs over each other: as many as lines can be told apart."""


@dataclass(frozen=True)
class DrawnRun:
    """A run among others.

    Attributes:
        run: its name.
        resumed_at: the first step of every attempt but the first.
        progress: how far it had come at each step.
    """

    run: str
    series: dict[str, SeriesPoints]
    resumed_at: list[int]
    progress: RunProgress


@dataclass(frozen=True)
class SettingOfRuns:
    """A setting in which runs differ: its value in each of them, None where a run has none."""

    key: str
    values: list[str | None]


@dataclass(frozen=True)
class RunsTogether:
    """Several runs, in the order in which they were asked for, and the settings in which they differ.

    Attributes:
        names: all series that one of them logged.
        shown: those that are drawn.
        evaluations: the evaluation splits that the first two share.
    """

    runs: list[DrawnRun]
    names: list[str]
    shown: list[str]
    settings: list[SettingOfRuns]
    evaluations: list[str]


def several_runs(view: SplitView, others: Names, names: Names = ()) -> RunsTogether:
    """A run and others: the series named (the usual ones when none), how far each had come, settings that differ.

    Raises:
        StoreError: one of the runs is not in the project, or there are none or more than `MOST_RUNS`.
    """
    if not 1 <= len(others) < MOST_RUNS:
        raise StoreError(f"others: {len(others)} named, expected 1 to {MOST_RUNS - 1} runs.")
    runs = [view.store.run(name) for name in (view.run, *others)]
    views = [replace(view, run=run.id) for run in runs]
    shown = list(dict.fromkeys(name for one in views for name in split_series(one, names).shown))
    shared = set(view.store.splits(runs[0].id)) & set(view.store.splits(runs[1].id))
    return RunsTogether(
        [
            DrawnRun(run.name, split_series(one, shown).series, list(run.resumed_at), run_progress(one))
            for run, one in zip(runs, views, strict=True)
        ],
        names=sorted({name for one in views for name in scalars(one)}),
        shown=shown,
        settings=_settings(view, [run.id for run in runs]),
        evaluations=sorted(split for split in shared if split.startswith("eval")),
    )


def _settings(view: SplitView, runs: Sequence[str]) -> list[SettingOfRuns]:
    first, *others = runs
    changed = [{each.key: each for each in between_runs(view, first, other)} for other in others]
    of_first = {key: each.a for one in changed for key, each in one.items()}
    return [
        SettingOfRuns(key, [own, *(one[key].b if key in one else own for one in changed)])
        for key, own in sorted(of_first.items())
    ]


LONGEST = 200
"""Characters of a value that are shown."""


@dataclass(frozen=True)
class SettingsSince:
    """The settings that changed since the run before."""

    run: str
    changes: list[ConfigDifference]


def between_runs(view: ProjectView, a: str, b: str) -> list[ConfigDifference]:
    """The settings in which runs A and B differ, as they are shown."""
    found = config_differences(view.store.config(a), view.store.config(b))
    return [replace(each, a=_shown(each.a), b=_shown(each.b)) for each in found]


def since_run_before(view: SplitView) -> SettingsSince | None:
    """The run that was started before this one, and the settings that changed since; None for the first run."""
    runs = sorted(view.store.runs(), key=lambda run: run.started)
    here = next((at for at, run in enumerate(runs) if run.id == view.info.id), 0)
    if here == 0:
        return None
    before = runs[here - 1]
    return SettingsSince(before.name, between_runs(view, before.id, runs[here].id))


def _shown(value: Any) -> str | None:
    return None if value is None else str(value)[:LONGEST]
