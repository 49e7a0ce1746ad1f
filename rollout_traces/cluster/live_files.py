"""Live files between nodes: what a file has more since the last look, and the copy that rank 0 keeps of it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rollout_traces.model import private_files
from rollout_traces.model.live_lines import MAX_BYTES, SUFFIX, LivePlace

EVERY = 1.0
"""Seconds between two looks at a node's live files."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,150}" + re.escape(SUFFIX))


class Piece(NamedTuple):
    """Bytes of a file, from `at` on; those from 0 on take the place of all that were sent before."""

    name: str
    at: int
    data: bytes


class LiveTail:
    """The lines that were added to a folder's live files since the last look.

    Args:
        folder: a node's own; it need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[str, tuple[int, int]] = {}

    def pieces(self) -> Iterator[Piece]:
        """The new bytes of each file; call `sent` with how much the other side then has."""
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                inode, at = os.fstat(file.fileno()).st_ino, 0
                if self._seen.get(path.name, (0, 0))[0] == inode:
                    at = self._seen[path.name][1]
                self._seen[path.name] = (inode, at)
                file.seek(at)
                if data := file.read(MAX_BYTES):
                    yield Piece(path.name, at, data)

    def sent(self, piece: Piece, size: int) -> None:
        """Notes that the other side has `size` bytes of the file; where that is not all of them, all are sent again."""
        inode, _ = self._seen[piece.name]
        self._seen[piece.name] = (inode, size if size == piece.at + len(piece.data) else 0)


class LiveCopies:
    """The copies of other nodes' live files, among this node's own.

    Args:
        place: where they go.
    """

    def __init__(self, place: LivePlace) -> None:
        self._place = place

    def take(self, piece: Piece) -> int:
        """Writes a piece.

        Returns:
            The bytes that are there now; others than the sender expects where some before it are missing.

        Raises:
            ValueError: that is no live file's name, or too much.
            StoreError: the folder is another user's.
            OSError: the disk refused.
        """
        if not _NAME.fullmatch(piece.name) or piece.at < 0 or piece.at + len(piece.data) > 2 * MAX_BYTES:
            raise ValueError(f"live file {piece.name!r:.80}: no name or size of one")
        private_files.take_folder(self._place.folder, self._place.top)
        path = self._place.folder / piece.name
        if piece.at == 0:
            private_files.replace_file(path, piece.data)
            return len(piece.data)
        fd = private_files.open_file(path, os.O_WRONLY | os.O_APPEND)
        with os.fdopen(fd, "ab", buffering=0) as file:
            size = os.fstat(fd).st_size
            if size == piece.at:
                size += file.write(piece.data)
            return size
