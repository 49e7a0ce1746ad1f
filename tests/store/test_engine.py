from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rollout_traces.errors import StoreError
from rollout_traces.store.engine import Engine, check_select


class TestNothingIsReached:
    @pytest.mark.parametrize(
        "statement",
        [
            "SELECT * FROM read_csv('{file}')",
            "SELECT * FROM read_text('{file}')",
            "SELECT * FROM '{file}'",
            "SELECT * FROM glob('/*')",
        ],
    )
    def test_no_file_is_read(self, tmp_path: Path, statement: str) -> None:
        file = tmp_path / "secret.csv"
        file.write_text("a,b\n1,2\n")
        with pytest.raises(StoreError, match=r"disabled|does not exist"):
            Engine().run(statement.format(file=file))

    def test_objects_of_python_are_no_tables(self) -> None:
        local = pa.table({"a": [1]})
        with pytest.raises(StoreError, match="does not exist"):
            Engine().run("SELECT * FROM local")
        assert local.num_rows == 1

    @pytest.mark.parametrize(
        "statement",
        [
            "COPY (SELECT 1) TO 'x'",
            "ATTACH 'x.db'",
            "SET threads = 1",
            "SELECT 1; SELECT 2",
            "",
            "PRAGMA version",
        ],
    )
    def test_anything_but_one_select_is_refused(self, statement: str) -> None:
        with pytest.raises(StoreError, match=r"expected one SELECT|PRAGMA|sql:"):
            check_select(statement)

    def test_what_never_ends_is_stopped(self) -> None:
        endless = "SELECT count(*) FROM range(1000000000) a, range(1000000000) b WHERE a.range + b.range = -1"
        with pytest.raises(StoreError, match=r"took longer than 0.2 seconds"):
            Engine().run(endless, timeout=0.2)


class TestOrder:
    @pytest.mark.parametrize("most", ["", " LIMIT 200000"])
    def test_rows_come_as_they_lie_whatever_the_threads(self, most: str) -> None:
        engine = Engine(threads=4)
        numbers = pa.chunked_array([pa.array(np.arange(n, n + 100_000)) for n in range(0, 800_000, 100_000)])
        rows = pa.table({"position": numbers, "text": pa.array([str(n % 7) for n in range(800_000)])})
        found = engine.run(
            f"SELECT position, text FROM rollouts WHERE position % 3 = 0{most}", (), {"rollouts": rows}
        )
        seen = found["position"].to_numpy()
        assert (np.diff(seen) == 3).all() and len(seen) == (200_000 if most else 266_667)


LET_GO = """
import time
from rollout_traces.store.engine import Engine

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

cursor = Engine(threads=2).cursor()
before = resident()
cursor.execute("CREATE TABLE t AS SELECT i, CAST(hash(i) AS VARCHAR) AS v FROM range(3000000) r(i)")
held = resident() - before
cursor.execute("DROP TABLE t")
end = time.monotonic() + 30
while resident() - before > held / 8 and time.monotonic() < end:
    time.sleep(0.2)
print(held, resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_a_table_took_goes_back_to_the_system_though_nothing_more_is_asked() -> None:
    done = subprocess.run([sys.executable, "-c", LET_GO], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    held, left = map(int, done.stdout.split())
    assert held > 50 << 20 and left < held / 8, (held, left)
