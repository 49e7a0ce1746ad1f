"""Opens a store for a command, with a bar for what takes a while, and remembers what was opened for `show`."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from rollout_traces.errors import StoreError
from rollout_traces.model.private_files import make_folder

if TYPE_CHECKING:
    from rollout_traces.store import Store


MOST = 50
"""Places that are remembered, the newest ones."""


def open_for(project: str | None, server_url: str | None, space: str | None) -> Store:
    """A refreshed store.

    Args:
        project: the project; the only one there is when None.
        server_url: a Trackio server.

    Raises:
        StoreError: no such project, or none was named where there are several.
    """
    from rollout_traces.store import open_store

    name = project or _only_project(server_url, space)
    store = open_store(name, server_url=server_url, space=space, refresh=False)
    with progress_bar("indexing") as report:
        store.refresh(report)
    return store


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
        raise StoreError(f"no projects in {where}. Log something first, or set TRACKIO_DIR.")
    raise StoreError(f"which project? --project with one of: {', '.join(found)}.")


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error that appears with the first report; silent where that is no terminal.

    Args:
        what: what is being done, one or two words.

    Yields:
        A function to call with how much is done and how much there is.
    """
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None, visible=False)

        def report(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total, visible=True)

        yield report


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
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_bytes(orjson.dumps(places))
        unfinished.replace(path)


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
