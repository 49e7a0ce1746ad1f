"""The first page where no project was named: what there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.figures import SeriesPoints, split_series
from rollout_traces.inspector.view import ProjectView, SplitView
from rollout_traces.inspector.workspace import Workspace
from rollout_traces.model.text import NOTICE
from rollout_traces.store import RunInfo


@dataclass(frozen=True)
class ProjectAnswer:
    """One project in figures; `error` in place of them where it cannot be read.

    Attributes:
        resumed_at: of the newest run: first step of every attempt but the first.
        last_trace: when the newest trace was stored, ISO 8601.
        reward: the mean reward of the newest run's training split over its steps.
        split: the training split of the newest run, else its first one.
    """

    name: str
    error: str | None = None
    n_runs: int | None = None
    n_traces: int | None = None
    n_rollouts: int | None = None
    last_run: str | None = None
    started: str | None = None
    last_step: int | None = None
    resumed_at: tuple[int, ...] = ()
    last_trace: str | None = None
    reward: SeriesPoints | None = None
    split: str | None = None


@dataclass(frozen=True)
class ProjectsAnswer:
    """The projects that are shown.

    Attributes:
        where: the folder, server or Space that they are of.
        notice: what its values are.
    """

    where: str
    projects: list[str]
    notice: str = NOTICE


def project(view: ProjectView) -> ProjectAnswer:
    """One project in figures."""
    name = view.project
    try:
        view.workspace.refresh(name)
        runs = view.store.runs()
    except StoreError as error:
        return ProjectAnswer(name, str(error))
    newest = runs[-1] if runs else None
    return ProjectAnswer(
        name,
        n_runs=len(runs),
        n_traces=sum(run.n_traces for run in runs),
        n_rollouts=sum(run.n_rollouts for run in runs),
        last_trace=_last_trace(view),
        **({} if newest is None else _newest(view, newest)),
    )


def places(workspace: Workspace) -> ProjectsAnswer:
    """The projects that are shown, and where they were looked for."""
    from rollout_traces.store.places import trackio_dir

    where = workspace.server_url or workspace.space or str(workspace.folder or trackio_dir())
    return ProjectsAnswer(where, workspace.projects())


def _newest(view: ProjectView, run: RunInfo) -> dict[str, Any]:
    split = "rollout" if "rollout" in run.splits else next(iter(run.splits), "rollout")
    metric = f"{split}/reward/mean"
    series = split_series(SplitView(view.workspace, view.project, run.id, split), (metric,)).series
    return {
        "last_run": run.name, "started": run.started, "last_step": run.last_step,
        "resumed_at": run.resumed_at, "reward": series.get(metric), "split": split,
    }  # fmt: skip


def _last_trace(view: ProjectView) -> str | None:
    page = view.store.query(order_by="-timestamp", limit=1)
    value = page.rows[0]["timestamp"] if page.rows else None
    return str(value) if value else None
