"""Small disks, servers, and the figures of the fault suite, printed as one table when it ends."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

import pytest

from tests.faults.table import FaultRow, lines
from tests.worker.server import Server

ROWS: list[FaultRow] = []


@pytest.fixture
def row() -> Callable[[FaultRow], None]:
    """Adds a row to the table."""
    return ROWS.append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if ROWS:
        terminalreporter.section("what became of what was handed over")
        for line in lines(ROWS):
            terminalreporter.write_line(line)


@pytest.fixture
def small_disk(trackio_dir, request):
    """Trackio's folder as a file system of a few megabytes, or as many as a test asks for."""
    size = getattr(request, "param", 6 << 20)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(trackio_dir)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield trackio_dir
    for _ in range(50):
        if subprocess.run(["umount", str(trackio_dir)], check=False, capture_output=True).returncode == 0:
            return
        time.sleep(0.2)
    subprocess.run(["umount", "-l", str(trackio_dir)], check=False)


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path / "server")
    yield server
    server.stop()
