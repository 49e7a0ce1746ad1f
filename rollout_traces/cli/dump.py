"""A dump of another tool in a place that goes when the command ends, so that it can be looked at without an import."""

from __future__ import annotations

import io
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import typer

from rollout_traces.cli.example import own_folders
from rollout_traces.cli.opened import remember
from rollout_traces.errors import ConfigError
from rollout_traces.model.text import one_line
from rollout_traces.settings.names import file_stem

SMALL = 8_000_000
"""Bytes of a dump that is opened without a word; a larger one takes a while, and says so."""


@contextmanager
def dump_home(path: Path) -> Iterator[str]:
    """A project of a dump's rollouts; this process stays in its folders.

    To be entered before Trackio is imported, which reads its folder once.

    Args:
        path: a file or folder of any format that `import` reads.

    Yields:
        The project's name, or the path itself where it is an export that is read in place.

    Raises:
        ConfigError: it is not there, or holds no rollouts.
    """
    from rollout_traces.cli.opening import progress_bar
    from rollout_traces.sources.importing import import_rollouts
    from rollout_traces.sources.problems import Problems
    from rollout_traces.sources.scan import scan

    problems = Problems()
    found = scan([path], problems)
    if not found:
        raise ConfigError(str(problems.kept[-1]))
    if {file.format.name for run in found for file in run.files} == {"partitioned-export"}:
        yield str(path)
        return
    remember(str(path.resolve()), "")
    size = sum(run.size for run in found)
    if size > SMALL:
        typer.echo(
            f"{size / 1e6:.0f} MB are read first; rollout-traces import {shlex.quote(str(path))} -p NAME keeps them.",
            err=True,
        )
    with own_folders():
        name = file_stem(path.resolve().stem) or "dump"
        # what Trackio says of its runs would name a project that nobody else can open
        with redirect_stdout(io.StringIO()), progress_bar("reading") as report:
            done = import_rollouts(path, name, progress=report)
        for problem in done.problems.kept:
            typer.secho(one_line(str(problem), 400), err=True, fg="yellow")
        if not done.rows:
            raise ConfigError(f"{path}: no rollout in it could be read.")
        yield name
