"""The frame: which projects, runs, splits and steps there are, what is new; each project in figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.figures import SeriesPoints, split_series
from rollout_traces.inspector.workspace import FromRuns, ProjectView, SplitView, Workspace
from rollout_traces.model.text import WHOLE_SECONDS
from rollout_traces.store import RunInfo, Store
from rollout_traces.store.places import trackio_dir


@dataclass(frozen=True)
class SplitSteps:
    """A split of a run with its steps."""

    name: str
    steps: list[int]
    n_traced: int
    n_rows: int


@dataclass(frozen=True)
class ListedRun:
    """A run as the frame of the pages lists it.

    Attributes:
        id: Trackio's id of it.
        name: by which it is asked for: its id where several runs share its name.
        note: what every page of it has to say: that it was imported, and what that leaves unknown.
        without: pages that have nothing of it to show.
    """

    id: str
    name: str
    label: str
    started: str
    n_traces: int
    n_rollouts: int
    splits: list[SplitSteps]
    note: str
    without: list[str]


@dataclass(frozen=True)
class CatalogAnswer:
    """The projects, and of the one named its runs with splits and steps, newest run first.

    Attributes:
        version: grows whenever there are new rows; None while the project is indexed for the first time.
        indexing: traces indexed and in all, while it is.
    """

    projects: list[dict[str, str]]
    project: str | None = None
    runs: list[ListedRun] = field(default_factory=list)
    version: int | None = None
    indexing: tuple[int, int] | None = None


@dataclass(frozen=True)
class AskedToOpen:
    """The last state that pages were asked to show, and how many there were."""

    asked: int
    state: dict[str, str]


@dataclass(frozen=True)
class PulseAnswer:
    """The answer whether anything was added since a version; the new catalog when it was."""

    changed: bool
    catalog: CatalogAnswer | None
    open: AskedToOpen


def catalog(workspace: Workspace, project: str = "") -> CatalogAnswer:
    """The projects, and of the one named its runs with splits and steps, newest run first."""
    projects = [{"name": name} for name in workspace.projects()]
    if not project:
        return CatalogAnswer(projects, version=0)
    indexing = workspace.indexing(project)
    if indexing is not None:
        return CatalogAnswer(projects, project, indexing=indexing)
    version = workspace.refresh(project)
    runs = workspace.remembered(("runs",), project, lambda: _runs(workspace.store(project)))
    return CatalogAnswer(projects, project, runs, version)


def pulse(view: ProjectView, version: int = 0) -> PulseAnswer:
    """Tells whether anything was added since a version; the new catalog when it was."""
    changed = view.workspace.refresh(view.project) != version
    asked, state = view.workspace.asked_to_open
    found = catalog(view.workspace, view.project) if changed else None
    return PulseAnswer(changed, found, AskedToOpen(asked, state))


def _runs(store: Store) -> list[ListedRun]:
    found = store.runs()
    shared = Counter(run.name for run in found)
    return [
        ListedRun(
            id=run.id,
            name=run.name if shared[run.name] == 1 else run.id,
            label=run.name if shared[run.name] == 1 else f"{run.name} ({run.started[:WHOLE_SECONDS]})",
            started=run.started,
            n_traces=run.n_traces,
            n_rollouts=run.n_rollouts,
            splits=[split_steps(store, run.id, split) for split in run.splits],
            note=_note(store, run),
            without=_without(store, run.id),
        )
        for run in reversed(found)
    ]


def _without(store: Store, run_id: str) -> list[str]:
    has_episodes = store.count(run_id, where="episode is not null", rows="all")
    return [*([] if has_episodes else ["episodes"]), *([] if store.live.knows(run_id) else ["live"])]


def _note(store: Store, run: RunInfo) -> str:
    imported = store.config(run.id).get("imported")
    if isinstance(imported, Mapping):
        lacks = [str(text) for text in imported.get("lacks") or ()]
        if "re-encoded" in str(imported.get("ids")):
            return "Imported: ids of rollouts that came as text were re-encoded and may differ from those trained on."
        return f"Imported: unobserved are {', '.join(lacks)}." if lacks else "Imported."
    if run.n_traces and not run.n_rollouts:
        unreadable = store.count(run.id, where="unreadable = 1")
        odd = f" {unreadable:,} of them cannot be read whole (unreadable = 1)." if unreadable else ""
        return f"Kept rollouts only: how many there were is unknown.{odd}"
    return ""


def split_steps(store: Store, run_id: str, split: str) -> SplitSteps:
    """A split as the frame lists it."""
    steps = store.steps(run_id, split)
    return SplitSteps(
        split,
        [info.step for info in steps],
        n_traced=sum(info.n_traces for info in steps),
        n_rows=sum(info.n_rollouts or info.n_traces for info in steps),
    )


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
class ProjectsAnswer(FromRuns):
    """The projects that are shown.

    Attributes:
        where: the folder, server or Space that they are of.
    """

    where: str
    projects: list[str]


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
    where = workspace.server_url or workspace.space or str(workspace.folder or trackio_dir())
    return ProjectsAnswer(where, workspace.projects())


def _newest(view: ProjectView, run: RunInfo) -> dict[str, Any]:
    split = "rollout" if "rollout" in run.splits else next(iter(run.splits), "rollout")
    metric = f"{split}/reward/mean"
    series = split_series(SplitView(view.workspace, view.project, run.id, split), (metric,)).series
    times = {"started": run.started, "last_step": run.last_step, "resumed_at": run.resumed_at}
    return {"last_run": run.name, **times, "reward": series.get(metric), "split": split}


def _last_trace(view: ProjectView) -> str | None:
    page = view.store.query(order_by="-timestamp", limit=1)
    value = page.rows[0]["timestamp"] if page.rows else None
    return str(value) if value else None
