"""The diagnoses of a run and split, kept until the project has new rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_traces.inspector.turns import GivingWay
from rollout_traces.inspector.workspace import Request, Workspace

if TYPE_CHECKING:
    from rollout_traces.analysis.diagnoses import RunReport


def run_diagnosed(workspace: Workspace, request: Request) -> RunReport:
    """What is wrong with the run of a request, since when and for whom; gives way to answers that go first."""
    from rollout_traces.analysis import diagnose

    store = workspace.store(request.project)
    relations, name = GivingWay(store.table(), workspace.turns), store.run(request.run).name
    key = ("run report", name, request.split)
    return workspace.remembered(key, request.project, lambda: diagnose(relations, name, request.split))
