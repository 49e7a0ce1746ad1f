from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "torch",
    "transformers",
    "trackio",
    "gradio",
    "pandas",
    "duckdb",
    "pyarrow",
    "httpx",
    "rich",
    "typer",
)
TABLE = {"duckdb", "pyarrow"}
"""What the table of rollouts is read with."""


def loaded_by(code: str) -> set[str]:
    """Which heavy packages a piece of code loads in a fresh interpreter."""
    script = f"{code}\nimport sys\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


class TestTheReadSideStartsLight:
    def test_the_store_loads_nothing_heavy(self) -> None:
        assert loaded_by("import rollout_traces.store") == set()

    def test_a_query_loads_what_reads_the_table_alone(self, tmp_path, shared_folder) -> None:
        code = (
            "from pathlib import Path\nfrom rollout_traces.store import open_store\n"
            f"s = open_store('reading', folder=Path({str(shared_folder)!r}), index_path=Path({str(tmp_path / 'i')!r}), refresh=False)\n"
            "s.query(where='reward > 0'); s.runs()"
        )
        assert loaded_by(code) <= TABLE | {"pandas"}

    def test_what_logs_never_loads_it(self) -> None:
        assert not loaded_by("import rollout_traces\nfrom rollout_traces import RolloutLogger") & TABLE

    @pytest.mark.parametrize("module", ["list", "get", "stats", "export"])
    def test_commands_load_the_command_line_alone(self, module: str) -> None:
        loaded = loaded_by(f"from rollout_traces.cli import build_app; build_app(['{module}'])")
        assert loaded <= {"typer", "rich"}
