"""What connects where, as SECURITY.md says: nothing that was not asked for, with the Hub switched on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.inspector.conftest import BEARER, TOKEN, free_port

ROOT = Path(__file__).resolve().parents[2]
GUARD = Path(__file__).parent / "guard"
SWITCHES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "TRACKIO_TELEMETRY",
            "GRADIO_ANALYTICS_ENABLED", "HF_DATASETS_OFFLINE", "DO_NOT_TRACK")  # fmt: skip
"""What a careful user sets; here none is."""


class Guarded:
    """Processes that reach no other machine, and what they tried.

    Args:
        folder: for Trackio's folder and the notes.
    """

    def __init__(self, folder: Path) -> None:
        self.trackio = folder / "trackio"
        self._notes = folder / "attempts"
        kept = {name: value for name, value in os.environ.items() if name not in SWITCHES}
        self.environment = {
            **kept,
            "PYTHONPATH": f"{GUARD}{os.pathsep}{ROOT}",
            "SOCKET_GUARD_FILE": str(self._notes),
            "TRACKIO_DIR": str(self.trackio),
            "HOME": str(folder),
            "HF_HOME": str(folder / "hf"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "ROLLOUT_TRACES_TOKEN": TOKEN,
            "OMP_NUM_THREADS": "1",
        }

    def run(self, *arguments: str, succeeds: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs Python to its end."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0 or not succeeds, done.stdout[-2000:] + done.stderr[-2000:]
        return done

    def attempts(self) -> list[str]:
        """What was tried so far."""
        return self._notes.read_text().splitlines() if self._notes.exists() else []


COMMAND = ("-c", "from rollout_traces.cli import main; main()")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Guarded:
    """A project that was logged under the guard."""
    made = Guarded(tmp_path_factory.mktemp("guarded"))
    made.run("-m", "tests.inspector.make_project", "--steps", "1")
    return made


class TestTheGuard:
    def test_sees_what_is_tried(self, tmp_path):
        guarded = Guarded(tmp_path)
        script = (
            "import socket, subprocess, sys, urllib.request\n"
            "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); socket.create_connection(s.getsockname())\n"
            "try: urllib.request.urlopen('https://huggingface.co')\n"
            "except OSError: pass\n"
            "try: socket.create_connection(('192.0.2.1', 80), 1)\n"
            "except OSError: pass\n"
        )
        guarded.run("-c", script)
        assert [line.split(" by ")[0] for line in guarded.attempts()] == [
            "socket.getaddrinfo huggingface.co",
            "socket.getaddrinfo 192.0.2.1",
        ]


class TestNothingConnects:
    def test_when_rollouts_are_logged(self, guarded):
        assert (guarded.trackio / "demo.db").is_file()
        assert guarded.attempts() == []

    @pytest.mark.parametrize(
        "arguments",
        [
            ("list", "--project", "demo"),
            ("stats", "--project", "demo"),
            ("explain", "run-a", "--project", "demo"),
            ("last",),
            ("doctor",),
            ("recover",),
        ],
        ids=lambda arguments: arguments[0],
    )
    def test_when_they_are_read(self, guarded, arguments):
        before = guarded.attempts()
        guarded.run(*COMMAND, *arguments, succeeds=arguments[0] in ("list", "stats", "explain"))
        assert guarded.attempts() == before

    def test_when_they_are_exported(self, guarded, tmp_path):
        before = guarded.attempts()
        for form in ("jsonl", "parquet", "site"):
            guarded.run(*COMMAND, "export", "run-a", "-p", "demo", str(tmp_path / f"a.{form}"), "-f", form)
            assert (tmp_path / f"a.{form}").exists()
        assert guarded.attempts() == before

    def test_when_rollouts_of_another_tool_are_imported(self, guarded):
        before = guarded.attempts()
        guarded.run(*COMMAND, "import", "tests/sources/samples/verifiers", "--project", "imported")
        assert (guarded.trackio / "imported.db").is_file()
        assert guarded.attempts() == before

    def test_when_they_are_shown(self, guarded):
        before = guarded.attempts()
        port = free_port()
        served = subprocess.Popen(
            [sys.executable, *COMMAND, "show", "--no-browser", "--port", str(port)],
            cwd=ROOT,
            env=guarded.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            for path in ("/", "/config", "/trackio/", "/trackio/version"):
                assert _status(f"http://127.0.0.1:{port}{path}") == 200
            assert _status(f"http://127.0.0.1:{port}/trackio/api/get_all_projects", b"{}") == 200
            assert (
                _status(f"http://127.0.0.1:{port}/trackio/api/get_registries", b'{"bucket_id": "a/b"}') == 404
            )
        finally:
            served.terminate()
            served.wait(30)
        assert guarded.attempts() == before

    def test_when_the_demo_trains(self, tmp_path):
        guarded = Guarded(tmp_path)
        guarded.run("examples/tiny_grpo.py", "--steps", "1", "--warmup-steps", "2")
        assert guarded.trackio.is_dir()
        assert guarded.attempts() == []


def _status(address: str, data: bytes | None = None) -> int:
    request = urllib.request.Request(
        address, data=data, headers={**BEARER, "Content-Type": "application/json"}
    )
    for _ in range(240):
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            time.sleep(0.25)
    raise AssertionError(f"no answer from {address}")
