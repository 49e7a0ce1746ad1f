"""A few hundred batches that no trainer should hand over; `make faults` hands over ten thousand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(7200)
class TestFuzz:
    def test_no_exception_every_valid_row_stored_every_invalid_one_counted(self, say):
        batches = os.environ.get("ROLLOUT_TRACES_FUZZ", "300")
        done = subprocess.run(
            [sys.executable, "-m", "tests.faults.fuzz", "--batches", batches],
            cwd=Path(__file__).resolve().parents[2],
            capture_output=True,
            text=True,
            check=False,
            timeout=7000,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        say("fuzz", done.stdout.strip().splitlines()[-1])
