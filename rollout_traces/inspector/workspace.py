"""The workspace of the pages: the projects at hand, each opened once and kept fresh; the views that functions take; and
calls of a page's function: what it takes, read off its signature, and what it answers, as JSON.

The first parameter of a function is the workspace or a view. A parameter that is a dataclass, a view too, stands for
its fields.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, get_type_hints

import orjson

from rollout_traces.errors import ConfigError, StoreError
from rollout_traces.inspector.few_at_once import FewAtOnce, give_back
from rollout_traces.model.text import BRIEF, NOTICE, words
from rollout_traces.model.units import MINUTE
from rollout_traces.settings.run_settings import RunSettings
from rollout_traces.store import RowPage, RunInfo, StepGroups, StepInfo, Store, open_store
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
LARGE = words("run_report health flip_list explain breakdown report incident_bar grid events")
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

    @property
    def info(self) -> RunInfo:
        """The run.

        Raises:
            StoreError: there is none of that name.
        """
        return self.store.run(self.run)

    @property
    def config(self) -> dict[str, Any]:
        """The run's configuration as it was logged."""
        return self.store.config(self.run)

    @property
    def settings(self) -> RunSettings:
        """The settings that the run declares; the defaults where they cannot be understood."""

        def read() -> RunSettings:
            with suppress(ConfigError):
                return RunSettings.from_config(self.config)
            return RunSettings()

        return self.remembered(("settings", self.run), read)

    def steps(self) -> list[StepInfo]:
        """The steps of the split that have traces or a ledger, in order."""
        return self.store.steps(self.run, self.split)

    def groups(self, step: int) -> StepGroups:
        """The groups of a step: their traces, and the rewards of all their rollouts from the ledger."""
        return self.store.groups(self.run, self.split, step)

    def query(self, **asked: Any) -> RowPage:
        """The split's rollouts that satisfy a filter, as `Store.query` gives them."""
        return self.store.query(self.run, self.split, **asked)


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
    names = [field.name for field in fields(cls) if field.init]  # type: ignore[arg-type]
    given = {name: getattr(found, name) for name in names if name not in more and hasattr(found, name)}
    return cls(**given, **more)


Function = Callable[..., Any]
Names = tuple[str, ...]
"""Several names in one argument: a page sends a list, a program one text with commas."""
MOST_NAMES = 200
"""Names in one argument: charts, columns."""
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


@dataclass(frozen=True, kw_only=True)
class FromRuns:
    """An answer whose values runs and rollouts wrote; `notice` says so."""

    notice: str = NOTICE


@dataclass(frozen=True, kw_only=True)
class InParts:
    """An answer whose lists programs get some at a time; `next` is the `after` of those behind, None at the end."""

    next: int | None = None


@cache
def parameters(function: Function) -> tuple[Parameter, ...]:
    """Lists what may be sent to a function, by name, with resolved types."""
    return tuple(each for written in _written(function) for each in _expanded(written))


def answer_of(function: Function, workspace: Workspace, given: Mapping[str, Any]) -> Any:
    """Calls a function.

    Args:
        function: of a page, or of the API.
        workspace: what it reads.
        given: values by the names of `parameters`.
    """
    arguments = {}
    for written in _written(function):
        taken = {each.name: given[each.name] for each in _expanded(written) if each.name in given}
        if is_dataclass(kind := written.annotation):
            place = {"workspace": workspace} if "workspace" in kind.__dataclass_fields__ else {}
            arguments[written.name] = cast("type", kind)(**place, **taken)
        else:
            arguments |= {written.name: workspace} if written.annotation is Workspace else taken
    return function(**arguments)


def read_request(function: Function, sent: Any) -> dict[str, Any]:
    """Reads what a page sent, as a function takes it: absent texts are empty, names that it does not know are passed over.

    Raises:
        StoreError: a value cannot be understood, or a number that is needed is missing.
    """
    values = sent if isinstance(sent, Mapping) else {}
    return {each.name: _read(each, values.get(each.name)) for each in parameters(function)}


def as_json(answer: Any) -> bytes:
    """An answer as JSON; numbers that are not finite become null."""
    return orjson.dumps(answer, default=str, option=_OPTIONS)


def check_part(after: int, limit: int, most: int) -> None:
    """Refuses a part of a list that is none.

    Raises:
        StoreError: it begins before the first entry, or holds none or too many.
    """
    if after < 0 or not 1 <= limit <= most:
        raise StoreError(f"after: 0 or more; limit: 1 to {most}. Seen {after} and {limit}.")


def seen(value: object) -> str:
    """Quotes the beginning of what was sent, for a refusal."""
    return repr(str(value)[:BRIEF])


def as_plain(answer: Any) -> Any:
    """An answer as plain values, those that its JSON holds."""
    return orjson.loads(as_json(answer))


@cache
def _written(function: Function) -> tuple[Parameter, ...]:
    return tuple(signature(function, eval_str=True).parameters.values())


def _expanded(written: Parameter) -> Iterator[Parameter]:
    if written.annotation is Workspace:
        return
    if not is_dataclass(written.annotation):
        yield written
        return
    hints = get_type_hints(written.annotation)
    for field in fields(written.annotation):
        if field.name != "workspace":
            default = Parameter.empty if field.default is MISSING else field.default
            yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name])


def _read(parameter: Parameter, value: Any) -> Any:
    name, kind = parameter.name, parameter.annotation
    if kind == Names:
        return (
            tuple(str(each)[:LONGEST_TEXT] for each in value[:MOST_NAMES]) if isinstance(value, list) else ()
        )
    if kind is bool:
        return value in (True, 1, "1")
    if value is None or (value == "" and kind not in (str, str | None)):
        if kind is int and parameter.default is Parameter.empty:
            raise StoreError(f"{name}: none named. Pick one on the page.")
        return "" if parameter.default is Parameter.empty and kind is str else parameter.default
    if kind in (str, str | None):
        if not isinstance(value, str):
            raise StoreError(f"{name}: seen {type(value).__name__}, expected a text.")
        if len(value) > LONGEST_TEXT:
            raise StoreError(f"{name}: {len(value):,} characters; at most {LONGEST_TEXT:,} are looked at.")
        return value
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"{name}: seen {seen(value)}, expected a whole number.") from error
