"""The settings in which two runs differ, as the pages show them."""

from __future__ import annotations

from typing import Any

from rollout_traces.inspector.workspace import Request, Workspace

LONGEST = 200
"""Characters of a value that are shown."""
OWN = ("_", "imported")
"""What begins the settings that Trackio writes of itself, and no one chose."""


def between_runs(workspace: Workspace, project: str, a: str, b: str) -> list[dict[str, Any]]:
    """Setting, its value in A and in B, where they differ; None where a run has none.

    Args:
        workspace: where to read.
        project: the project of both.
        a: one run.
        b: the other.
    """
    from rollout_traces.analysis.runs import config_differences

    store = workspace.store(project)
    return [
        {"key": each.key, "a": _shown(each.a), "b": _shown(each.b)}
        for each in config_differences(store.config(a), store.config(b))
        if not each.key.startswith(OWN)
    ]


def since_run_before(workspace: Workspace, request: Request) -> dict[str, Any] | None:
    """The run that was started before this one, and the settings that changed since; None for the first run."""
    store = workspace.store(request.project)
    runs = sorted(store.runs(), key=lambda run: run.started)
    here = next((at for at, run in enumerate(runs) if run.id == store.run(request.run).id), 0)
    if here == 0:
        return None
    before = runs[here - 1]
    return {"run": before.name, "changes": between_runs(workspace, request.project, before.id, runs[here].id)}


def _shown(value: Any) -> str | None:
    return None if value is None else str(value)[:LONGEST]
