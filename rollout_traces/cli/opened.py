"""What was opened or written, so that `show` offers it again: a small file of this user's."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from rollout_traces.model.private_files import make_folder

MOST = 50
"""Places that are remembered, the newest ones."""


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
        """What opens it again, as a shell takes it."""
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
