"""The frame: which projects, runs, splits and steps there are, and what is new."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout_traces.inspector.pages.base import Page
from rollout_traces.inspector.pages.incidents import incident_bar, mark_incident
from rollout_traces.inspector.workspace import Request, Workspace


def catalog(workspace: Workspace, request: Request) -> dict[str, Any]:
    """The projects, and of the one named its runs with splits and steps, newest run first.

    A run's `without` names the pages that have nothing of it to show.

    While the project is indexed for the first time, `indexing` says how far that is instead.
    """
    projects = [{"name": name} for name in workspace.projects()]
    if not request.project:
        return {"projects": projects, "project": None, "runs": [], "version": 0, "indexing": None}
    indexing = workspace.indexing(request.project)
    if indexing is not None:
        return {"projects": projects, "project": request.project, "runs": [], "indexing": list(indexing)}
    version = workspace.refresh(request.project)
    runs = workspace.remembered(("runs",), request.project, lambda: _runs(workspace, request.project))
    return {
        "projects": projects,
        "project": request.project,
        "runs": runs,
        "version": version,
        "indexing": None,
    }


def pulse(workspace: Workspace, request: Request) -> dict[str, Any]:
    """Whether anything was added since a version; the new catalog when it was."""
    version = workspace.refresh(request.project)
    changed = version != request.values.get("version")
    asked, state = workspace.asked_to_open
    return {
        "changed": changed,
        "catalog": catalog(workspace, request) if changed else None,
        "open": {"asked": asked, "state": state},
    }


def _runs(workspace: Workspace, project: str) -> list[dict[str, Any]]:
    store = workspace.store(project)
    found = store.runs()
    names = [run.name for run in found]
    return [
        {
            "name": run.name if names.count(run.name) == 1 else run.id,
            "label": run.name if names.count(run.name) == 1 else f"{run.name} ({run.started[:19]})",
            "started": run.started,
            "n_traces": run.n_traces,
            "n_rollouts": run.n_rollouts,
            "splits": [_split(store, run.id, split) for split in run.splits],
            "note": _note(store, run),
            "without": [] if store.count(run.id, where="episode is not null", rows="all") else ["episodes"],
        }
        for run in reversed(found)
    ]


def _note(store: Any, run: Any) -> str:
    """What every page of a run has to say of it: that it was imported and what that leaves unknown."""
    imported = store.config(run.id).get("imported")
    if isinstance(imported, Mapping):
        lacks = [str(text) for text in imported.get("lacks") or ()]
        if "re-encoded" in str(imported.get("ids")):
            return "Imported: ids of rollouts that came as text were re-encoded and may differ from those trained on."
        if lacks:
            return f"Imported: unobserved are {', '.join(lacks)}."
        return "Imported."
    if run.n_traces and not run.n_rollouts:
        unreadable = store.count(run.id, where="unreadable = 1")
        odd = f" {unreadable:,} of them cannot be read whole (unreadable = 1)." if unreadable else ""
        return f"Kept rollouts only: how many there were is unknown.{odd}"
    return ""


def _split(store: Any, run_id: str, split: str) -> dict[str, Any]:
    steps = store.steps(run_id, split)
    return {
        "name": split,
        "steps": [info.step for info in steps],
        "n_traced": sum(info.n_traces for info in steps),
        "n_rows": sum(info.n_rollouts or info.n_traces for info in steps),
    }


PAGE = Page(name="shell", title="", key="", functions=(catalog, pulse, incident_bar, mark_incident))
