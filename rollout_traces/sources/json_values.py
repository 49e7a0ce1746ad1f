"""The objects of a JSON text that is no JSON Lines: an array of them, or several that span lines, one after the other.

Only one object is in memory at a time, whatever the file's size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO

_MARK = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*("|\\?\Z)|[{}\[\]]', re.DOTALL)
_LOOKS_CUT = re.compile(rb'\{\s*("(?:[^"\\]|\\.)*"\s*:.*[,{\[])?\s*', re.DOTALL)
CHUNK = 1 << 20


class TooLong(Exception):
    """An object is longer than it may be."""


def is_no_lines(head: bytes) -> bool:
    """Whether a text begins with an array, or with an object whose first line is not all of it."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    first, line_break, _ = text.partition(b"\n")
    return text.startswith(b"[") or bool(line_break and _LOOKS_CUT.fullmatch(first.strip()))


def objects(file: IO[bytes], most: int) -> Iterator[tuple[int, bytes]]:
    """The outermost objects, or those of the outermost array.

    Args:
        file: a JSON text.
        most: bytes of one object above which reading ends.

    Yields:
        The byte that it begins at, and its text; the last one may be cut off.

    Raises:
        TooLong: an object has more than `most` bytes.
    """
    buffer, at, offset = b"", 0, 0
    depth, base, start = 0, None, None
    while chunk := file.read(max(CHUNK, len(buffer))):
        buffer += chunk
        for match in _MARK.finditer(buffer, at):
            mark = match[0]
            if mark[:1] == b'"':
                if match[1] != b'"':  # the text goes on behind what was read
                    at = match.start()
                    break
            elif mark in b"{[":
                if base is None:
                    base = int(mark == b"[")
                if mark == b"{" and depth == base:
                    start = match.start()
                depth += 1
            else:
                depth -= 1
                if depth == base and start is not None:
                    yield offset + start, buffer[start : match.end()]
                    start = None
            at = match.end()
        else:
            at = len(buffer)
        done = at if start is None else start
        if len(buffer) - done > most:
            raise TooLong(f"an object of more than {most:,} bytes")
        buffer, at, offset = buffer[done:], at - done, offset + done
        start = None if start is None else 0
    if start is not None:
        yield offset, buffer
