"""A few hundred batches that no trainer should hand over; `make faults` hands over ten thousand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.table import FaultRow


@pytest.mark.slow
@pytest.mark.timeout(7200)
class TestFuzz:
    def test_no_exception_every_valid_row_stored_every_invalid_one_counted(self, row):
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
        last = done.stdout.strip().splitlines()[-1]
        n = {what: int(count) for count, _, what in (part.partition(" ") for part in last.split(", "))}
        row(
            FaultRow(
                "batches that make no sense",
                f"{n['batches']} calls",
                n["rows accepted"],
                n["rows stored"],
                n["rows accepted"] - n["rows stored"],
                n["rows doubled"],
                None,
                f"{n['calls refused']} calls and {n['elements refused']} elements refused",
            )
        )
