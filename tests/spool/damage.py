"""Damages a record where it lies on disk, be it a file of its own or a part of one."""

from __future__ import annotations

from pathlib import Path

from rollout_traces.spool.folder import SpoolReader


def place_of(folder: Path, name: str) -> tuple[Path, int]:
    """The file that a record's bytes are in, and where they begin."""
    data = SpoolReader(folder).read_bytes(name)
    found = [
        (path, at)
        for path in folder.iterdir()
        if path.is_file() and (at := path.read_bytes().find(data)) >= 0
    ]
    [place] = found
    return place


def flip_byte(folder: Path, name: str, at: int) -> None:
    """Changes one bit of a record.

    Args:
        folder: its spool.
        name: its name.
        at: which byte, from its beginning; before that, bytes of what says how long it is.
    """
    path, start = place_of(folder, name)
    with path.open("r+b") as file:
        file.seek(start + at)
        byte = file.read(1)
        file.seek(start + at)
        file.write(bytes([byte[0] ^ 1]))
