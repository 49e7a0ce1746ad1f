"""Reading works where neither torch nor transformers is installed, and what needs them says how to get them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollout_traces.errors import MissingExtra, extra
from tests.store.conftest import shared_folder

__all__ = ["shared_folder"]

ROOT = Path(__file__).parents[1]
WITHOUT = """
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refused())
"""
COMMAND = "from rollout_traces.cli import main; main()"
PYTHON = """
import rollout_traces as rt

store = rt.open_store("reading")
rows = store.query(where="reward > 0.5")
print(len(rows.rows), store.transcript(rows.rows[0].id).turns[0].role, store.rollouts().num_rows)
"""
PAGE = """
from starlette.testclient import TestClient
from rollout_traces.inspector.server import build_server
from rollout_traces.inspector.workspace import Workspace

server = build_server(Workspace(projects=("reading",)))
client = TestClient(server.app)
print(client.get("/").status_code, client.get("/api/v1/projects").status_code)
"""


def without_torch(folder: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Code in a process of its own, in which torch and transformers cannot be imported."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT + code, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TRACKIO_DIR": str(folder), "COLUMNS": "200"},
        check=False,
        timeout=120,
    )


class TestReading:
    @pytest.mark.parametrize(
        "arguments",
        [
            ("list",),
            ("stats",),
            ("get", "--help"),
            ("explain", "--step", "2"),
            ("events",),
            ("prompts",),
        ],
        ids=lambda arguments: arguments[0],
    )
    def test_a_command_works(self, shared_folder: Path, arguments: tuple[str, ...]) -> None:
        done = without_torch(shared_folder, COMMAND, *arguments)
        assert (done.returncode, done.stderr) == (0, "")

    def test_python_reads_a_project(self, shared_folder: Path) -> None:
        done = without_torch(shared_folder, PYTHON)
        assert done.stdout.split() == ["4", "user", "26"], done.stderr

    def test_the_page_is_served(self, shared_folder: Path) -> None:
        done = without_torch(shared_folder, PAGE)
        assert done.stdout.split() == ["200", "200"], done.stderr


class TestWhatNeedsThem:
    def test_says_the_extra(self, shared_folder: Path, tmp_path: Path) -> None:
        batch = tmp_path / "batch.pt"
        batch.write_bytes(b"")
        done = without_torch(shared_folder, COMMAND, "check", str(batch))
        assert done.returncode == 1
        assert done.stderr == "reading batch.pt needs torch: pip install 'rollout-traces[train]'.\n"

    def test_doctor_does_not_fail_for_want_of_them(self, shared_folder: Path) -> None:
        done = without_torch(shared_folder, COMMAND, "doctor", "--tokenizer", "nowhere")
        assert done.returncode == 1
        assert "pip install 'rollout-traces[train]'" in done.stdout

    def test_an_error_inside_an_installed_package_stays_itself(self) -> None:
        with pytest.raises(ImportError) as caught, extra("train", "this"):
            raise ImportError("libcuda.so")
        assert not isinstance(caught.value, MissingExtra)
