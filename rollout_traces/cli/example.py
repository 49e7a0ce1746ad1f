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


def own_folders(home: Path) -> None:
    """Gives this process folders of its own for Trackio, index and labels."""
    for name, folder in (("TRACKIO_DIR", "trackio"), ("XDG_CACHE_HOME", "cache"), ("XDG_DATA_HOME", "data")):
        (home / folder).mkdir()
        os.environ[name] = str(home / folder)


@contextmanager
def example_home() -> Iterator[str]:
    """A copy of the run, with folders of its own for Trackio, index and labels; this process stays in it.

    To be entered before Trackio is imported, which reads its folder once.

    Yields:
        The project's name.
    """
    with tempfile.TemporaryDirectory(prefix="rollout-traces-") as home:
        shutil.copytree(FOLDER, Path(home, PROJECT))
        own_folders(Path(home))
        before = Path.cwd()
        os.chdir(home)
        try:
            yield PROJECT
        finally:
            os.chdir(before)
