"""The series and the diagnoses of a run and split, kept until the project has new rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_traces.inspector.turns import GivingWay
from rollout_traces.inspector.workspace import Request, Workspace

if TYPE_CHECKING:
    from rollout_traces.analysis.diagnoses import RunReport
    from rollout_traces.analysis.series import RunSeries


def run_series(workspace: Workspace, request: Request) -> RunSeries:
    """The run of a request as series over its steps; gives way to answers that go first."""
    from rollout_traces.analysis.series import RunSeries

    store = workspace.store(request.project)
    name = store.run(request.run).name
    return workspace.remembered(
        ("run series", name, request.split),
        request.project,
        lambda: RunSeries(GivingWay(store.table(), workspace.turns), name, request.split),
    )


def run_diagnosed(workspace: Workspace, request: Request) -> RunReport:
    """What is wrong with the run of a request, since when and for whom."""
    from rollout_traces.analysis.diagnoses import diagnose_series

    series = run_series(workspace, request)
    key = ("run report", series.run, request.split)
    return workspace.remembered(key, request.project, lambda: diagnose_series(series))
