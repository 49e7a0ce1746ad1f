"""The frame: which projects, runs, splits and steps there are, and what is new."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from rollout_traces.inspector.view import ProjectView
from rollout_traces.inspector.workspace import Workspace
from rollout_traces.store import RunInfo, Store


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
    """Whether anything was added since a version; the new catalog when it was."""

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
    """Whether anything was added since a version; the new catalog when it was."""
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
            label=run.name if shared[run.name] == 1 else f"{run.name} ({run.started[:19]})",
            started=run.started,
            n_traces=run.n_traces,
            n_rollouts=run.n_rollouts,
            splits=[_split(store, run.id, split) for split in run.splits],
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


def _split(store: Store, run_id: str, split: str) -> SplitSteps:
    steps = store.steps(run_id, split)
    return SplitSteps(
        split,
        [info.step for info in steps],
        n_traced=sum(info.n_traces for info in steps),
        n_rows=sum(info.n_rollouts or info.n_traces for info in steps),
    )
