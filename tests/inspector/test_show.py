"""`rollout-traces show`."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from rollout_traces.cli.show import page_address
from rollout_traces.errors import ConfigError
from rollout_traces.inspector.server import checked_port, free_port
from tests.inspector.conftest import ROOT, Served, environment


def run_show(folder, *options: str) -> subprocess.CompletedProcess[str]:
    """The command, expected to end by itself."""
    return subprocess.run(
        [sys.executable, "-c", "from rollout_traces.cli import main; main()", "show", *options],
        cwd=ROOT,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=120,
    )


class TestShow:
    def test_prints_the_addresses(self, served):
        said = served.output.read_text()
        assert f"Inspector: http://127.0.0.1:{served.port}/" in said
        assert f"http://127.0.0.1:{served.port}/trackio/" in said

    def test_help_shows_an_example(self, tmp_path):
        assert "rollout-traces show --project gsm8k" in run_show(tmp_path, "--help").stdout

    def test_an_unknown_project_is_one_message(self, home):
        done = run_show(home, "--project", "nowhere", "--no-browser")
        assert done.returncode == 1
        assert "no project 'nowhere'" in done.stderr
        assert "Traceback" not in done.stderr

    def test_another_host_is_warned_about(self, home):
        server = Served(home, "--host", "0.0.0.0", "--project", "demo")
        server.stop()
        assert "can read every rollout" in server.output.read_text()


class TestPorts:
    def test_a_taken_port_is_passed_over(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            assert free_port("127.0.0.1", port) > port
            with pytest.raises(ConfigError, match=f"--port {port} on 127.0.0.1"):
                checked_port("127.0.0.1", port)

    def test_one_that_was_asked_for_and_is_none_is_refused(self):
        for port in (0, 99_999, -1):
            with pytest.raises(ConfigError, match=f"seen {port}. Expected 1 to 65535"):
                checked_port("127.0.0.1", port)

    def test_of_another_machine_are_no_ports_of_this_one(self):
        with pytest.raises(ConfigError, match=r"--host 192\.0\.2\.1: this machine cannot listen there"):
            free_port("192.0.2.1")


class TestAddress:
    def test_is_one_a_browser_can_open(self):
        assert page_address("0.0.0.0", 7861, project="a b&c") == "http://127.0.0.1:7861/?project=a%20b%26c"
        assert page_address("::1", 1, "/proxy/1/") == "http://[::1]:1/proxy/1/"
