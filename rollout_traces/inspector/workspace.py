"""The workspace of the pages: the projects at hand, each opened once and kept fresh, and the views that functions take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from rollout_traces.errors import ConfigError, StoreError
from rollout_traces.inspector.few_at_once import FewAtOnce, give_back
from rollout_traces.model.units import MINUTE
from rollout_traces.store import Store, open_store
from rollout_traces.store.asking import RememberedAnswers
from rollout_traces.store.places import is_address
from rollout_traces.store.time_limit import QUERY_SECONDS, waiting_for_another

T = TypeVar("T")
P = ParamSpec("P")
View = TypeVar("View", bound="SplitView")
FRESH_FOR = 1.0
"""Seconds within which a project is not looked at again for new rows."""
EXPORT_FRESH_FOR = 1.0 * MINUTE
"""The same of an export, of which every look lists all files."""
LARGE = ("run_report", "health", "flip_list", "explain", "breakdown", "report")
"""The functions, by name, that look at every row where nothing is remembered yet."""
LONGEST_WAIT = 1.0 * MINUTE
"""Seconds that a question waits for the first indexing of its project."""
LONGEST_TEXT = 10_000
"""Characters of one argument: a filter, a search, a name; and of a name and value of an address."""
MOST_OF_A_STATE = 40
"""Names of an address."""


class _FirstIndex:
    """The first indexing of a project, on a thread of its own."""

    def __init__(self, store: Store) -> None:
        self.progress = (0, 0)
        self.error: Exception | None = None
        self.done = threading.Event()
        self._store = store
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        try:
            self._store.refresh(self._report)
        except Exception as error:  # noqa: BLE001 - kept, and raised in the thread that asks
            self.error = error
        finally:
            give_back()
            self.done.set()

    def _report(self, done: int, total: int) -> None:
        self.progress = (done, total)


class Workspace:
    """The projects that the inspector shows.

    Args:
        server_url: a Trackio server to read from; this machine's projects when None.
        space: a Hugging Face Space that runs Trackio.
        folder: Trackio's folder; where Trackio itself looks by default.
        projects: show these alone, by name, or by the address of an export.
        query_seconds: seconds that one call of a page may take.
        may_label: whether whoever reads may also label and write notes.
    """

    def __init__(
        self,
        *,
        server_url: str | None = None,
        space: str | None = None,
        folder: Path | None = None,
        projects: tuple[str, ...] = (),
        query_seconds: float = QUERY_SECONDS,
        may_label: bool = True,
    ) -> None:
        if not query_seconds > 0:
            raise ConfigError(f"query_seconds: seen {query_seconds}. Expected seconds above 0.")
        self.query_seconds = query_seconds
        self.may_label = may_label
        self.asked_to_open: tuple[int, dict[str, str]] = (0, {})
        self.server_url = server_url
        self.space = space
        self.folder = folder
        self._named = projects
        self._stores: dict[str, Store] = {}
        self._looked: dict[str, float] = {}
        self._versions: dict[str, int] = {}
        self._shapes: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._survey = threading.Lock()
        self._answers = RememberedAnswers()
        self._first: dict[str, _FirstIndex] = {}
        self.steps_seen: dict[tuple[Any, ...], Any] = {}
        self.few_at_once = FewAtOnce(large=LARGE)

    def ask_to_open(self, state: Mapping[str, str]) -> None:
        """Asks the pages to show a state; those whose reader allows it do.

        Raises:
            StoreError: it is larger than any state.
        """
        if len(state) > MOST_OF_A_STATE or any(
            len(key) + len(value) > LONGEST_TEXT for key, value in state.items()
        ):
            raise StoreError("state: larger than any address. Expected names and values of one.")
        self.asked_to_open = (self.asked_to_open[0] + 1, dict(state))

    @property
    def is_local(self) -> bool:
        """True when the projects lie in Trackio's folder on this machine, so that its own dashboard can be served too."""
        return self.server_url is None and self.space is None and not any(map(is_address, self._named))

    @property
    def is_restricted(self) -> bool:
        """True when only the projects that were named are shown."""
        return bool(self._named)

    def projects(self) -> list[str]:
        """The projects' names: those that were named, else all there are."""
        if self._named:
            return list(self._named)
        if self.is_local:
            from rollout_traces.store.places import local_projects

            return local_projects(self.folder)
        from rollout_traces.store.http_source import remote_projects

        return remote_projects(server_url=self.server_url, space=self.space)

    def store(self, project: str) -> Store:
        """The store of a project, opened and indexed on first use.

        Raises:
            StoreError: there is no such project, or it is still being indexed.
        """
        if self.indexing(project, wait=LONGEST_WAIT) is not None:
            raise StoreError(f"project {project!r} is being indexed; ask again in a while.")
        return self.opened(project)

    def opened(self, project: str) -> Store:
        """The store of a project as it is, perhaps not indexed yet.

        Raises:
            StoreError: there is no such project.
        """
        with self._lock:
            if project in self._stores:
                return self._stores[project]
            if project not in self.projects():
                known = ", ".join(self.projects()) or "none"
                raise StoreError(f"no project {project!r} here. Projects: {known}.")
            store = open_store(
                project, server_url=self.server_url, space=self.space, folder=self.folder, refresh=False
            )
            store.keep_condensed()
            self._stores[project] = store
        return store

    def indexing(self, project: str, wait: float = 0.5) -> tuple[int, int] | None:
        """Brings a project's index up to date for the first time, in the background.

        Args:
            wait: seconds to wait for it at most.

        Returns:
            Traces indexed and traces in all while that takes longer; None once it is done.

        Raises:
            StoreError: the project cannot be read.
        """
        store = self.opened(project)
        with self._lock:
            first = self._first.get(project)
            if first is None:
                first = self._first[project] = _FirstIndex(store)
        if not first.done.is_set():
            with waiting_for_another():
                first.done.wait(wait)
        if not first.done.is_set():
            return first.progress
        if first.error is not None:
            with self._lock:
                self._first.pop(project, None)
            raise first.error
        return None

    def refresh(self, project: str) -> int:
        """Looks for new rows, at most once a second, of an export once a minute.

        Returns:
            A number that grows whenever there were any.
        """
        store = self.store(project)
        now = time.monotonic()
        fresh_for = EXPORT_FRESH_FOR if is_address(project) else FRESH_FOR
        if now - self._looked.get(project, -fresh_for) >= fresh_for:
            self._looked[project] = now
            store.refresh()
            runs = tuple((run.id, run.last_step, run.n_traces, run.n_rollouts) for run in store.runs())
            shape = (runs, store.labels.now().stamp)
            if self._shapes.get(project) != shape:
                self._shapes[project] = shape
                self._versions[project] = self._versions.get(project, 0) + 1
        return self._versions.get(project, 0)

    def version(self, project: str) -> int:
        """The number of the last refresh."""
        return self._versions.get(project, 0)

    def remembered(
        self, key: tuple[Any, ...], project: str, compute: Callable[[], T], *, alone: bool = False
    ) -> T:
        """An answer, computed again only when the project has new rows.

        Of several that ask the same at once, one computes it and the others wait for it.

        Args:
            key: what was asked.
            project: the project it is about.
            compute: gives the answer; with `alone` it asks for no other such answer.
            alone: arrays of all rows of a run are held for it: one such is computed at a time, whoever asks.
        """

        def compute_alone() -> T:
            with waiting_for_another():
                self._survey.acquire()
            try:
                return compute()
            finally:
                self._survey.release()

        question = (project, self.version(project), *key)
        return self._answers.answer(question, compute_alone if alone else compute)

    def close(self) -> None:
        """Closes every store."""
        for store in self._stores.values():
            store.close()
        self._stores.clear()


@dataclass(frozen=True)
class ProjectView:
    """A project.

    Attributes:
        workspace: where it is read.
        project: its name.
    """

    workspace: Workspace
    project: str

    @property
    def store(self) -> Store:
        """Its store.

        Raises:
            StoreError: there is no such project, or it is still being indexed.
        """
        return self.workspace.store(self.project)

    def remembered(self, key: tuple[Any, ...], compute: Callable[[], T], *, alone: bool = False) -> T:
        """An answer, computed again only when the project has new rows, as `Workspace.remembered`."""
        return self.workspace.remembered(key, self.project, compute, alone=alone)


@dataclass(frozen=True)
class SplitView(ProjectView):
    """A split of a run.

    Attributes:
        run: the run's name or id.
        split: `rollout`, `eval-rollout` or another that was logged.
    """

    run: str
    split: str = "rollout"


@dataclass(frozen=True)
class EvaluationView(SplitView):
    """A split of a run, the evaluation's where none is named."""

    split: str = "eval-rollout"


def remembered(function: Callable[Concatenate[View, P], T]) -> Callable[Concatenate[View, P], T]:
    """A function of a split whose answers are kept, each computed again only when the project has new rows."""

    @wraps(function)
    def asked(view: View, *given: P.args, **named: P.kwargs) -> T:
        key = (
            function.__module__,
            function.__qualname__,
            view.run,
            view.split,
            given,
            tuple(sorted(named.items())),
        )
        return view.remembered(key, lambda: function(view, *given, **named))

    return asked


def taken(cls: type[T], found: object, **more: Any) -> T:
    """An answer whose fields are those of an object of the same names, and what is given besides.

    Args:
        cls: a dataclass.
        found: has the fields that are not given and have no default.
        **more: fields by name.
    """
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    given = {name: getattr(found, name) for name in names if name not in more and hasattr(found, name)}
    return cls(**given, **more)
