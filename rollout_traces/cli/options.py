"""Options that several commands share."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from rollout_traces.store import Store
    from rollout_traces.store.asking import Which as Rows

Project = Annotated[
    str | None,
    typer.Option(
        "--project",
        "-p",
        help="Trackio project, or where an export lies: a folder, s3://…, hf://datasets/…; not needed where there is only one.",
        rich_help_panel="Where",
    ),
]
ServerUrl = Annotated[
    str | None,
    typer.Option(help="Read from this Trackio server, http://host:port.", rich_help_panel="Where"),
]
Space = Annotated[
    str | None, typer.Option(help="Read from this Hugging Face Space, user/name.", rich_help_panel="Where")
]
Run = Annotated[
    str | None,
    typer.Argument(help="A run: its name or id, or the beginning of either; all by default."),
]
OneRun = Annotated[str | None, typer.Argument(help="A run; the only one there is by default.")]
OneSplit = Annotated[str, typer.Option(help="rollout or eval-rollout.")]
Split = Annotated[
    str | None, typer.Option(help="rollout or eval-rollout; all by default.", rich_help_panel="Which")
]
StepRange = Annotated[
    str | None,
    typer.Option("--steps", help="One step, or a range: 12, 10:20, 10:, :20.", rich_help_panel="Which"),
]
Where = Annotated[
    str,
    typer.Option(
        "--where",
        "-w",
        help="Filter, such as \"reward < 0.5 and flags has 'truncated'\".",
        rich_help_panel="Which",
    ),
]
Text = Annotated[
    str | None,
    typer.Option(
        "--text", "-t", help='Words and "quoted phrases" the conversation holds.', rich_help_panel="Which"
    ),
]
Sort = Annotated[
    str | None,
    typer.Option(
        "--sort",
        "-s",
        help="Sort keys, such as -reward,step; newest step first by default.",
        rich_help_panel="Which",
    ),
]
AllRows = Annotated[
    bool,
    typer.Option("--all", help="Every rollout, traced or not.", rich_help_panel="Which"),
]
SHOWN = 20
"""Rows of a table that are shown where it is not said how many."""
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@dataclass(frozen=True)
class From:
    """The source that a command reads from, as `--project`, `--server-url` and `--space` say it."""

    project: Project = None
    server_url: ServerUrl = None
    space: Space = None

    def open(self) -> Store:
        """The store, with a bar while it is indexed.

        Raises:
            StoreError: no such project, or none was named where there are several.
        """
        from rollout_traces.cli.opening import open_for

        return open_for(self.project, self.server_url, self.space)


@dataclass(frozen=True)
class Which:
    """The rollouts that are meant, as the run, and `--split` to `--all`, say it."""

    run: Run = None
    split: Split = None
    steps: StepRange = None
    where: Where = ""
    text: Text = None
    all_rows: AllRows = False

    @property
    def rows(self) -> Rows:
        """The word for what is meant: traces, or all rollouts."""
        return "all" if self.all_rows else "traces"

    @property
    def between(self) -> tuple[int | None, int | None]:
        """First and last step, both included."""
        return parse_steps(self.steps)

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
        typer.BadParameter: it does not exist.
    """
    splits = sorted({split for info in store.runs() for split in info.splits})
    if which.split is not None and which.split not in splits:
        raise typer.BadParameter(f"no split {which.split!r}; there is {', '.join(splits) or 'none yet'}.")


_SHARED: Mapping[type, tuple[str, ...]] = {
    each: tuple(f.name for f in fields(each)) for each in (From, Which)
}


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters of the types `From` and `Which` are options of its own, one a field.

    Args:
        command: takes them as keywords.
    """
    # not get_type_hints: in Python 3.10 it hides the options whose default is None
    written = signature(command, eval_str=True).parameters.values()
    shared = {item.name: item.annotation for item in written if item.annotation in _SHARED}
    parameters: list[Parameter] = []
    for parameter in written:
        kind = shared.get(parameter.name)
        if kind is None:
            parameters.append(parameter)
            continue
        types = get_type_hints(kind, include_extras=True)
        parameters += [
            Parameter(f.name, Parameter.KEYWORD_ONLY, default=f.default, annotation=types[f.name])
            for f in fields(kind)
        ]

    @wraps(command)
    def run(**given: Any) -> None:
        for name, kind in shared.items():
            given[name] = kind(**{field: given.pop(field) for field in _SHARED[kind]})
        command(**given)

    keywords = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__signature__ = signature(command).replace(parameters=keywords)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in keywords}
    return run


def login() -> str:
    """The name that this user has on this machine; `unknown` where it has none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def run_name(store: Store, run: str | None) -> str:
    """The name of the run that is meant: the one that is named, or the only one there is.

    Raises:
        StoreError: no such run.
        typer.BadParameter: none was named where there are several.
    """
    if run is not None:
        return store.run(run).name
    names = [info.name for info in store.runs()]
    if len(names) != 1:
        raise typer.BadParameter(f"which run? {', '.join(names) or 'There is none yet'}.")
    return names[0]


def parse_pair(text: str, option: str, expected: str) -> tuple[int, int]:
    """`12:30` as two numbers.

    Raises:
        typer.BadParameter: it is something else.
    """
    first, _, second = text.partition(":")
    try:
        return int(first), int(second)
    except ValueError:
        raise typer.BadParameter(f"{option} {text!r}: expected {expected}.") from None


def parse_steps(text: str | None) -> tuple[int | None, int | None]:
    """`12`, `10:20`, `10:` or `:20` as first and last step, both included.

    Args:
        text: the option's value.

    Raises:
        typer.BadParameter: it is none of these.
    """
    if text is None:
        return None, None
    first, colon, last = text.partition(":")
    try:
        low = int(first) if first else None
        return low, (int(last) if last else None) if colon else low
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no step or range; expected 12, 10:20, 10: or :20.") from None
