"""On a machine without a browser, its tests are skipped in one line that says how to get one; in CI they fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


FILES = ("test_shell.py", "test_page_group.py")
INSTALL = "apt-get install chromium-headless-shell"


def run_without_browser(folder: Path, **environment: str) -> list[str]:
    """The lines pytest prints for two browser files where no browser can be found."""
    outside = {key: value for key, value in os.environ.items() if key != "CI"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider"]
        + [f"tests/inspector/{name}" for name in FILES],
        cwd=REPOSITORY,
        env={
            **outside,
            "PATH": str(folder),
            "PLAYWRIGHT_BROWSERS_PATH": str(folder),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout, done.stderr
    return done.stdout.splitlines()


def test_one_line_says_how_many_tests_are_skipped_and_what_to_install(tmp_path):
    lines = run_without_browser(tmp_path)
    [skipped] = [line for line in lines if line.startswith("SKIPPED")]
    n = int(skipped.split("[")[1].split("]")[0])
    assert n > 1 and INSTALL in skipped
    assert lines[-1].startswith(f"{n} skipped")


def test_in_ci_they_fail_and_none_is_skipped(tmp_path):
    lines = run_without_browser(tmp_path, CI="true")
    assert any(line.startswith("ERROR") and INSTALL in line for line in lines)
    assert "error" in lines[-1] and "skipped" not in lines[-1]
