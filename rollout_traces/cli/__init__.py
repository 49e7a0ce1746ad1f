"""The command line: one module a command, each with `register(app)`; only the one that is called is loaded."""

from __future__ import annotations

import importlib
import keyword
import pkgutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

HELPERS = frozenset({"conversation", "opening", "options", "progress", "tables"})
"""Modules here that are no command."""


def commands() -> tuple[str, ...]:
    """The commands' names, which are their modules' names; `import_` has its own because `import` can be none."""
    found = (m.name.rstrip("_") for m in pkgutil.iter_modules(__path__) if m.name not in HELPERS)
    return tuple(sorted(found))


def build_app(names: Sequence[str] | None = None) -> typer.Typer:
    """The command line application.

    Args:
        names: load these commands only; all by default.
    """
    import typer

    app = typer.Typer(
        name="rollout-traces",
        help="See what your policy wrote: rollouts of RL training as conversations, token for token.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_group)
    for name in names if names is not None else commands():
        module = f"{name}_" if keyword.iskeyword(name) else name
        importlib.import_module(f"{__name__}.{module}").register(app)
    return app


def main() -> None:
    """Runs the command of this process's arguments; what went wrong is one message and exit code 1."""
    from rollout_traces.errors import RolloutTracesError

    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    app = build_app([wanted] if wanted in commands() else None)
    try:
        app()
    except RolloutTracesError as error:
        import typer

        typer.secho(str(error), err=True, fg="red")
        raise SystemExit(1) from error


def _group() -> None:
    pass
