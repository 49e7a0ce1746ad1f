"""The run that comes with the package, in a place that goes when the command ends."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
