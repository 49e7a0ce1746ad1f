"""Small disks, servers, and the figures of the fault suite, printed as one table when it ends."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

import pytest

from tests.worker.server import Server

FIGURES: list[tuple[str, str]] = []


@pytest.fixture
def say() -> Callable[[str, str], None]:
    """Adds a line to the table: what was done, and what came of it."""
    return lambda what, came: FIGURES.append((what, came))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not FIGURES:
        return
    width = max(len(what) for what, _ in FIGURES)
    terminalreporter.section("figures of the fault suite")
    for what, came in FIGURES:
        terminalreporter.write_line(f"{what:<{width}}  {came}")


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
