"""The command line: one module a command, with a function of its name, whose docstring is its help; only the one that is called is loaded."""

from __future__ import annotations

import importlib
import keyword
import os
import pkgutil
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from rollout_traces.cli.options import expanded
from rollout_traces.errors import RolloutTracesError
from rollout_traces.model.names import VERSION
from rollout_traces.model.text import words

HELPERS = frozenset({"options", "printing"})
"""Modules here that are no command."""
LEAN = frozenset(words("delete events explain flips get label lanes last list live prompts stats"))
"""The commands that never need pandas."""
PANELS = {
    "Read": words("show list get stats export share live lanes prompts label mcp"),
    "Explain": words("explain events flips"),
    "Data": words("run import check deploy"),
    "Care": words("doctor last recover delete"),
}
"""The commands as `--help` groups them."""


def commands() -> tuple[str, ...]:
    """The commands' names, which are their modules' names; `import_` has its own because `import` can be none."""
    found = (m.name.rstrip("_") for m in pkgutil.iter_modules(__path__) if m.name not in HELPERS)
    return tuple(sorted(found))


def build_app(names: Sequence[str] | None = None) -> typer.Typer:
    """The command line application.

    Args:
        names: load these commands only; all by default.
    """
    app = typer.Typer(
        name="rollout-traces",
        help="See what your policy wrote: rollouts of RL training as conversations, token for token.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_group)
    panels = {name: panel for panel, listed in PANELS.items() for name in listed}
    order = [*panels]
    for name in sorted(names if names is not None else commands(), key=order.index):
        module = importlib.import_module(
            f"{__name__}.{name}_" if keyword.iskeyword(name) else f"{__name__}.{name}"
        )
        function = getattr(module, name, None) or getattr(module, f"{name}_")
        settings = getattr(module, "CONTEXT_SETTINGS", None)
        usage = getattr(module, "USAGE", "[OPTIONS]")
        panel = panels[name]
        app.command(name, context_settings=settings, options_metavar=usage, rich_help_panel=panel)(
            expanded(function)
        )
    return app


def main() -> None:
    """Runs the command of this process's arguments; what went wrong is one message and exit code 1.

    A reader that has read enough (`| head`) ends it, with exit code 0; `NO_COLOR` in the environment leaves colours out.
    """
    from rollout_traces.model.bounded_reading import leave_pandas_out

    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    if wanted in LEAN:
        leave_pandas_out()
    app = build_app([wanted] if wanted in commands() else None)
    colour = False if os.environ.get("NO_COLOR") else None
    try:
        app(color=colour)
    except SystemExit as end:
        if not _reader_left(end):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except RolloutTracesError as error:
        typer.secho(str(error), err=True, fg="red", color=colour)
        raise SystemExit(1) from error


def _reader_left(end: BaseException) -> bool:
    """Tells whether what ended this process began with a pipe that its reader closed."""
    cause: BaseException | None = end
    while cause is not None and not isinstance(cause, BrokenPipeError):
        cause = cause.__context__
    return cause is not None


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"rollout-traces {VERSION}")
        raise typer.Exit


def _group(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass
