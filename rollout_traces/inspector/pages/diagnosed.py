"""The report of a run and split, kept until the project has new rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_traces.inspector.turns import GivingWay
from rollout_traces.inspector.workspace import Request, Workspace

if TYPE_CHECKING:
    from rollout_traces.analysis import Event, RunReport
    from rollout_traces.analysis.scope import RunScope


def run_scope(workspace: Workspace, request: Request) -> RunScope:
    """The rollouts of a request's run and split; gives way to answers that go first."""
    from rollout_traces.analysis.scope import RunScope

    store = workspace.store(request.project)
    relations = GivingWay(store.table(), workspace.turns)
    return RunScope(relations, store.run(request.run).name, request.split)


def run_diagnosed(workspace: Workspace, request: Request) -> RunReport:
    """What moved in the run of a request, since when and for whom."""
    from rollout_traces.analysis import diagnose

    scope = run_scope(workspace, request)
    key = ("run report", scope.run, request.split)
    return workspace.remembered(
        key, request.project, lambda: diagnose(scope.relations, scope.run, scope.split)
    )


def run_events(workspace: Workspace, request: Request) -> list[Event]:
    """The timeline of the run of a request."""
    from rollout_traces.analysis import events

    report = run_diagnosed(workspace, request)
    if not report.n_rows:
        return []
    scope = run_scope(workspace, request)
    key = ("run events", scope.run, request.split)
    return workspace.remembered(
        key, request.project, lambda: events(scope.relations, scope.run, scope.split, report=report)
    )
