"""Options that several commands share, and what they open: a store, with a bar for what takes a while; what was opened is remembered for `show`."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from inspect import Parameter, cleandoc, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import orjson
import typer

from rollout_traces.errors import ConfigError, StoreError
from rollout_traces.model.private_files import make_folder, replace_file
from rollout_traces.model.text import step_range

if TYPE_CHECKING:
    from rollout_traces.store import Store
    from rollout_traces.store.asking import Which as Rows


Project = Annotated[str | None, typer.Option("--project", "-p", rich_help_panel="Where")]
InWhere = Annotated[str | None, typer.Option(rich_help_panel="Where")]
OneRun = Annotated[str | None, typer.Argument(help="A run; the only one there is by default.")]
OneSplit = Annotated[str, typer.Option(help="rollout or eval-rollout.")]
Split = Annotated[str | None, typer.Option(rich_help_panel="Which")]
StepRange = Annotated[str | None, typer.Option("--steps", rich_help_panel="Which")]
Where = Annotated[str, typer.Option("--where", "-w", rich_help_panel="Which")]
Sort = Annotated[
    str | None,
    typer.Option(
        "--sort",
        "-s",
        help="Sort keys, such as -reward,step; newest step first by default.",
        rich_help_panel="Which",
    ),
]
SHOWN = 20
"""Rows of a table that are shown where it is not said how many."""
Limit = Annotated[int, typer.Option("--limit", "-n")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


ARGS = "\n\nArgs:\n"
_ENTRY = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)


@dataclass(frozen=True)
class From:
    """The source that a command reads from.

    Args:
        project: Trackio project, or where an export lies: a folder, s3://…, hf://datasets/…; not needed where there is
            only one.
        server_url: Read from this Trackio server, http://host:port.
        space: Read from this Hugging Face Space, user/name.
    """

    project: Project = None
    server_url: InWhere = None
    space: InWhere = None

    def open(self) -> Store:
        """The store, with a bar while it is indexed.

        Raises:
            StoreError: no such project, or none was named where there are several.
        """
        from rollout_traces.store import open_store

        name = self.project or _only_project(self.server_url, self.space)
        store = open_store(name, server_url=self.server_url, space=self.space, refresh=False)
        with progress_bar("indexing") as report:
            store.refresh(report)
        return store


@dataclass(frozen=True)
class Which:
    """The rollouts that are meant.

    Args:
        run: A run: its name or id, or the beginning of either; all by default.
        split: rollout or eval-rollout; all by default.
        steps: One step, or a range: 12, 10:20, 10:, :20.
        where: Filter, such as "reward < 0.5 and flags has 'truncated'".
        text: Words and "quoted phrases" the conversation holds.
        all_rows: Every rollout, traced or not.
    """

    run: Annotated[str | None, typer.Argument()] = None
    split: Split = None
    steps: StepRange = None
    where: Where = ""
    text: Annotated[str | None, typer.Option("--text", "-t", rich_help_panel="Which")] = None
    all_rows: Annotated[bool, typer.Option("--all", rich_help_panel="Which")] = False

    @property
    def rows(self) -> Rows:
        """The word for what is meant: traces, or all rollouts."""
        return "all" if self.all_rows else "traces"

    @property
    def between(self) -> tuple[int | None, int | None]:
        """First and last step, both included."""
        return step_range(self.steps)

    def asked(self) -> dict[str, Any]:
        """The same as arguments of the store's questions."""
        return {
            "run": self.run,
            "split": self.split,
            "steps": self.between,
            "where": self.where,
            "text": self.text,
            "rows": self.rows,
        }


def word_alone(which: Which, word: str | None) -> tuple[Which, str | None]:
    """Of a command that takes `[RUN] WORD`: what stands alone is the word."""
    return (which, word) if word is not None else (replace(which, run=None), which.run)


def check_split(store: Store, which: Which) -> None:
    """Says so where no run has the split that was asked for.

    Raises:
        ConfigError: it does not exist.
    """
    splits = sorted({split for info in store.runs() for split in info.splits})
    if which.split is not None and which.split not in splits:
        raise ConfigError(f"no split {which.split!r}; there is {', '.join(splits) or 'none yet'}.")


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """A command as typer reads it.

    What may be given in any place is an argument, what is given by name an option. `Args:`, the end of its docstring,
    is their help. A parameter of the type `From` or `Which` is options of its own, one a field.

    Args:
        command: takes them as keywords.
    """
    written = signature(command, eval_str=True).parameters.values()
    shared = {item.name: item.annotation for item in written if item.annotation in (From, Which)}
    parameters: list[Parameter] = []
    for parameter in _described(command):
        kind = shared.get(parameter.name)
        parameters += [parameter] if kind is None else _described(kind)

    @wraps(command)
    def run(**given: Any) -> None:
        for name, kind in shared.items():
            given[name] = kind(**{f.name: given.pop(f.name) for f in fields(kind)})
        command(**given)

    # each paragraph and example in one line, which the terminal breaks
    run.__doc__ = re.sub(r"(?<!\n)\n(?!\n|Example:)", " ", cleandoc(command.__doc__ or "").partition(ARGS)[0])
    run.__signature__ = signature(command).replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _described(function: Callable[..., Any]) -> Iterator[Parameter]:
    """The parameters of a function or class with their help; a switch has its own name alone, and no contrary."""
    entries = _ENTRY.findall(cleandoc(function.__doc__ or "").partition(ARGS)[2])
    helps = {name: " ".join(text.split()) for name, text in entries}
    # not get_type_hints: in Python 3.10 it hides the options whose default is None
    for parameter in signature(function, eval_str=True).parameters.values():
        kind = parameter.annotation
        if parameter.name in helps:
            if get_origin(kind) is Annotated:
                kind, given = get_args(kind)
            else:
                given = typer.Option() if parameter.kind is Parameter.KEYWORD_ONLY else typer.Argument()
            info = copy(given)
            info.help = helps[parameter.name]
            if kind is bool and parameter.default is False and info.default is ...:  # no name is given
                info.default = f"--{parameter.name.replace('_', '-')}"
            kind = Annotated[kind, info]
        yield parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=kind)


def nothing_waits(project: str | None) -> str:
    """The sentence that all is stored, of a project where one is named, which may be misspelt."""
    from rollout_traces.store.places import local_projects, trackio_dir

    if project is None:
        return "Nothing waits on this node: everything handed over is stored."
    unknown = "" if project in local_projects() else f", and no project of that name is in {trackio_dir()}"
    return f"Nothing of project {project!r} waits on this node{unknown}."


def login() -> str:
    """The name that this user has on this machine; `unknown` where it has none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def check_step(store: Store, run: str, split: str, step: int | None) -> None:
    """Says so where no rollout was logged at the step.

    Raises:
        ConfigError: it is none of the run's steps.
    """
    steps = [info.step for info in store.steps(run, split)] if step is not None else []
    if steps and step not in steps:
        raise ConfigError(
            f"--step {step}: {run} has no rollouts there; steps of {split}: {steps[0]} to {steps[-1]}."
        )


def say_nothing_kept(store: Store, does: str) -> None:
    """Says on stderr why there is nothing, where no rollout of the project was kept with its text.

    Args:
        does: what `--all` does with all of them.
    """
    runs = store.runs()
    if not any(run.n_traces for run in runs):
        n = sum(run.n_rollouts for run in runs)
        typer.echo(
            "No rollout was kept with its text: max_rollout_traces_per_step says how many are, and is 0 by default. "
            f"--all {does} all {n:,}.",
            err=True,
        )


def run_name(store: Store, run: str | None) -> str:
    """The name of the run that is meant: the one that is named, or the only one there is.

    Raises:
        StoreError: no such run.
        ConfigError: none was named where there are several.
    """
    if run is not None:
        return store.run(run).name
    names = [info.name for info in store.runs()]
    if len(names) != 1:
        raise ConfigError(f"which run? {', '.join(names) or 'There is none yet'}.")
    return names[0]


def parse_pair(text: str, option: str, expected: str) -> tuple[int, int]:
    """`12:30` as two numbers.

    Raises:
        ConfigError: it is something else.
    """
    first, _, second = text.partition(":")
    try:
        return int(first), int(second)
    except ValueError:
        raise ConfigError(f"{option} {text!r}: expected {expected}.") from None


MOST = 50
"""Places that are remembered, the newest ones."""

NO_PROJECTS = "no projects in {}. Log something first, or set TRACKIO_DIR."


def _only_project(server_url: str | None, space: str | None) -> str:
    from rollout_traces.store.places import local_projects, trackio_dir

    if server_url is None and space is None:
        found, where = local_projects(), str(trackio_dir())
    else:
        from rollout_traces.store.http_source import remote_projects

        found, where = remote_projects(server_url=server_url, space=space), server_url or space or ""
    if len(found) == 1:
        return found[0]
    if not found:
        raise StoreError(NO_PROJECTS.format(where))
    raise StoreError(f"which project? --project with one of: {', '.join(found)}.")


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error that appears with the first report; silent where that is no terminal.

    Args:
        what: what is being done, one or two words.

    Yields:
        A function to call with how much is done and how much there is.
    """
    from rich.console import Console
    from rich.progress import Progress

    is_silent = not sys.stderr.isatty()
    with Progress(console=Console(stderr=True), transient=True, disable=is_silent) as progress:
        task = progress.add_task(what, total=None, visible=False)
        yield lambda done, total: progress.update(task, completed=done, total=total, visible=True)


@dataclass(frozen=True)
class Place:
    """Something that `show` can open.

    Attributes:
        name: a project's name, a path or an address.
        option: what stands before it in the command; empty for a dump.
        last: when it was opened or written last, in seconds since 1970.
    """

    name: str
    option: str
    last: float = field(default=0.0, compare=False)

    @property
    def command(self) -> str:
        """The command that opens it again, as a shell takes it."""
        return shlex.join(filter(None, ("rollout-traces", "show", self.option, self.name)))


def remember(name: str, option: str = "--project") -> None:
    """Notes a place; where that cannot be written it is not noted."""
    place = Place(name, option, time.time())
    places = [place, *(each for each in remembered() if each != place)][:MOST]
    path = _file()
    with contextlib.suppress(OSError):
        make_folder(path.parent)
        replace_file(path, orjson.dumps(places))


def remembered() -> list[Place]:
    """The places, the newest first; none where the file is not there or damaged."""
    try:
        found = orjson.loads(_file().read_bytes())
        return [Place(str(each["name"]), str(each["option"]), float(each["last"])) for each in found]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _file() -> Path:
    data = Path(os.environ.get("XDG_DATA_HOME", "~/.local/share")).expanduser()
    return data / "rollout-traces" / "opened.json"
