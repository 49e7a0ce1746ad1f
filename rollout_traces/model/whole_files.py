"""Files and folders that a user asked for: they appear under their name when they are complete, and what cannot be written is one sentence."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollout_traces.errors import ConfigError, NotWritten


def empty_folder(folder: Path | str) -> Path:
    """A folder to write to, which need not be there yet.

    Raises:
        ConfigError: it is a file, or something is in it.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there and not empty. Name a new folder.")
    return folder


@contextmanager
def unfinished(out: Path | str, *, folder: bool = False) -> Iterator[Path]:
    """A name for a file in the making, which takes the place that was asked for when it is complete, else goes.

    What a link leads to is written.

    Args:
        out: what was asked for.
        folder: it is a folder, which is made; one that is there already stays, and takes what is in it.

    Raises:
        ConfigError: something else stands there: a folder, a pipe or a device; of a folder, anything.
        NotWritten: it cannot be written.
    """
    out = Path(out)
    if folder:
        empty_folder(out)
    elif out.exists() and not out.is_file():
        raise ConfigError(f"{out} is a folder, a pipe or a device. Name a file.")
    target = Path(os.path.realpath(out))
    where = target if target.is_dir() else target.parent
    with writing_to(out):
        where.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=where) as beside:
            made = Path(beside) / target.name
            if folder:
                made.mkdir()
            yield made
            if target.is_dir():
                for path in made.iterdir():
                    path.replace(target / path.name)
            else:
                made.replace(target)


@contextmanager
def writing_to(place: object) -> Iterator[None]:
    """Turns an error of the system into one sentence.

    Args:
        place: what the user named.

    Raises:
        NotWritten: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:  # of a library: what it could not read, or said before
            raise
        why = os.strerror(error.errno)
        raise NotWritten(f"{place}: cannot be written: {why}. Name a place that can, with room.") from error
