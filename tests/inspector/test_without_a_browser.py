"""On a machine without a browser, its tests are skipped in one line that says how to get one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def test_one_line_says_how_many_tests_are_skipped_and_what_to_install(tmp_path):
    files = ("test_shell.py", "test_page_group.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        + [f"tests/inspector/{name}" for name in files],
        cwd=REPOSITORY,
        env={**os.environ, "PATH": str(tmp_path), "PLAYWRIGHT_BROWSERS_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert len(skipped) == 1, done.stdout + done.stderr
    n = int(skipped[0].split("[")[1].split("]")[0])
    assert n > 1 and "apt-get install chromium-headless-shell" in skipped[0]
    assert done.stdout.splitlines()[-1].startswith(f"{n} skipped")
