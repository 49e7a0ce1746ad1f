"""A real terminal of a chosen width, for what a command prints to a person."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STYLES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def printed(width: int, script: str, *arguments: str, **variables: str) -> list[str]:
    """The lines that a script prints on a terminal, colours left out.

    Args:
        width: columns of the terminal.
        script: Python.
        *arguments: of the script.
        **variables: of its environment.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
    }
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        env={**inherited, "TERM": "xterm", **variables},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    read = b""
    while piece := _piece(ours):
        read += piece
    os.close(ours)
    assert process.wait() == 0, read.decode()
    return STYLES.sub("", read.decode()).replace("\r\n", "\n").splitlines()


def _piece(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the other side is closed
        return b""
