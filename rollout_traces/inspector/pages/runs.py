"""Two runs: their curves over each other, and the settings in which they differ."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rollout_traces.inspector.asking import Names
from rollout_traces.inspector.pages.figures import (
    RunProgress,
    SeriesPoints,
    run_progress,
    scalars,
    split_series,
)
from rollout_traces.inspector.pages.settings_between import Setting, between_runs
from rollout_traces.inspector.view import SplitView


@dataclass(frozen=True)
class TwoRunsAnswer:
    """Two runs, `a` and `b`: their series, progress, and the settings in which they differ.

    Attributes:
        resumed_at: of each run: first step of every attempt but the first.
        evaluations: the evaluation splits that both have.
    """

    runs: dict[str, str]
    names: list[str]
    shown: list[str]
    series: dict[str, dict[str, SeriesPoints]]
    resumed_at: dict[str, list[int]]
    progress: dict[str, RunProgress]
    settings: list[Setting]
    evaluations: list[str]


def two_runs(view: SplitView, other: str, names: Names = ()) -> TwoRunsAnswer:
    """Two runs: the series named (the usual ones when none), how far each had come, and the settings in which they differ.

    Raises:
        StoreError: one of the runs is not in the project.
    """
    runs = {"a": view.store.run(view.run), "b": view.store.run(other)}
    views = {side: replace(view, run=run.id) for side, run in runs.items()}
    wanted = [name for one in views.values() for name in split_series(one, names).shown]
    shown = list(dict.fromkeys(wanted))
    a, b = (run.id for run in runs.values())
    shared = set(view.store.splits(a)) & set(view.store.splits(b))
    return TwoRunsAnswer(
        runs={side: run.name for side, run in runs.items()},
        names=sorted({name for one in views.values() for name in scalars(one)}),
        shown=shown,
        series={side: split_series(one, shown).series for side, one in views.items()},
        resumed_at={side: list(run.resumed_at) for side, run in runs.items()},
        progress={side: run_progress(one) for side, one in views.items()},
        settings=between_runs(view, a, b),
        evaluations=sorted(split for split in shared if split.startswith("eval")),
    )
