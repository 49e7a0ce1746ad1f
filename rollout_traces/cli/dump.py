"""Projects that `show` opens and that go when the command ends: a dump of another tool without an import, and the example."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import typer

from rollout_traces.cli.opening import remember
from rollout_traces.errors import ConfigError
from rollout_traces.model.text import one_line
from rollout_traces.settings.run_settings import file_stem

SMALL = 8_000_000
"""Bytes of a dump that is opened without a word; a larger one takes a while, and says so."""
FOLDER = Path(__file__).resolve().parents[1] / "example_run"
"""An export of a run that `examples/tiny_grpo.py --trouble` trained; `make example` writes it anew."""
PROJECT = "tiny-grpo"
FIRST_PAGE = {"tab": "run"}


@contextmanager
def own_folders() -> Iterator[Path]:
    """A place that goes again, in which this process has folders of its own for Trackio, index and labels."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="rollout-traces-") as home:
        for name, folder in (
            ("TRACKIO_DIR", "trackio"),
            ("XDG_CACHE_HOME", "cache"),
            ("XDG_DATA_HOME", "data"),
        ):
            Path(home, folder).mkdir()
            os.environ[name] = str(Path(home, folder))
        try:
            yield Path(home)
        finally:
            os.environ.clear()
            os.environ.update(before)


@contextmanager
def example_home() -> Iterator[str]:
    """A copy of the run, with folders of its own for Trackio, index and labels; this process stays in it.

    To be entered before Trackio is imported, which reads its folder once.

    Yields:
        The project's name.
    """
    with own_folders() as home:
        shutil.copytree(FOLDER, home / PROJECT)
        before = Path.cwd()
        os.chdir(home)
        try:
            yield PROJECT
        finally:
            os.chdir(before)


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
