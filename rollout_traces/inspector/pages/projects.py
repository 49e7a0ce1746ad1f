"""The first page where no project was named: what there is."""

from __future__ import annotations

from typing import Any

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.base import Page
from rollout_traces.inspector.pages.figures import split_series
from rollout_traces.inspector.pages.incidents import incident_bar
from rollout_traces.inspector.workspace import Request, Workspace
from rollout_traces.store import RunInfo


def project(workspace: Workspace, request: Request) -> dict[str, Any]:
    """One project in figures; `error` in place of them when it cannot be read."""
    name = request.project
    try:
        workspace.refresh(name)
        runs = workspace.store(name).runs()
    except StoreError as error:
        return {"name": name, "error": str(error)}
    newest = runs[-1] if runs else None
    return {
        "name": name,
        "error": None,
        "n_runs": len(runs),
        "n_traces": sum(run.n_traces for run in runs),
        "n_rollouts": sum(run.n_rollouts for run in runs),
        "last_run": newest.name if newest else None,
        "started": newest.started if newest else None,
        "last_step": newest.last_step if newest else None,
        "resumed_at": list(newest.resumed_at) if newest else [],
        "last_trace": _last_trace(workspace, name),
        "reward": _reward(workspace, name, newest) if newest else None,
        "split": _split(newest) if newest else None,
    }


def _last_trace(workspace: Workspace, name: str) -> str | None:
    """When the newest trace of a project was stored, ISO 8601."""
    page = workspace.store(name).query(order_by="-timestamp", limit=1)
    value = page.rows[0]["timestamp"] if page.rows else None
    return str(value) if value else None


def _split(run: RunInfo) -> str:
    return "rollout" if "rollout" in run.splits else next(iter(run.splits), "rollout")


def _reward(workspace: Workspace, name: str, run: RunInfo) -> dict[str, Any] | None:
    """The mean reward of a run's training split over its steps, thinned; None where it was not logged."""
    split = _split(run)
    asked = Request({"project": name, "run": run.id, "split": split})
    metric = f"{split}/reward/mean"
    return split_series(workspace, asked, (metric,))["series"].get(metric)


def places(workspace: Workspace, request: Request) -> dict[str, Any]:
    """Where the projects were looked for."""
    from rollout_traces.store.places import trackio_dir

    where = workspace.server_url or workspace.space or str(workspace.folder or trackio_dir())
    return {"where": where, "projects": workspace.projects()}


PAGE = Page(name="projects", title="Projects", key="p", functions=(project, places, incident_bar))
