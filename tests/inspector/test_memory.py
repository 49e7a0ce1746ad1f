"""Large blocks go back to the system when they are let go."""

from __future__ import annotations

import subprocess
import sys

import pytest

LET_GO = """
import numpy as np
import pyarrow as pa
from rollout_traces.inspector.memory import give_back, give_back_large_blocks

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

give_back_large_blocks()
assert pa.default_memory_pool().backend_name == "system"
large = np.ones(3 << 20)
del large
before = resident()
columns, rows = [], []
for at in range(64):
    columns += [np.ones(1 << 18), pa.nulls(1 << 18, pa.int64())]
    rows.append(bytes(100_000))
held = resident() - before
del columns
give_back()
print(held, resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_columns_that_are_let_go_leave_no_memory_taken() -> None:
    done = subprocess.run([sys.executable, "-c", LET_GO], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    held, left = map(int, done.stdout.split())
    assert held > 64 * (1 << 21) and left < held / 8, (held, left)
