"""`rollout-traces show`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest
from typer.testing import CliRunner

from rollout_traces.cli import build_app
from rollout_traces.cli.options import remember
from rollout_traces.cli.show import OFFERED, _offer, _open_browser, _write_token, page_address, server_address
from rollout_traces.errors import ConfigError
from rollout_traces.inspector import server
from rollout_traces.inspector.guard import ServerOptions
from rollout_traces.inspector.server import listen
from tests.inspector.conftest import ROOT, TOKEN, Served, environment
from tests.inspector.forked import start_command


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


def shown(folder: Path, output: Path, *options: str) -> tuple[int | None, list[str]]:
    """The exit code and the lines of the command, which is expected to end by itself; its process has all imported."""
    process = start_command(["show", *options], folder, environment(folder), output)
    process.join(120)
    return process.exitcode, output.read_text().splitlines()


class TestShow:
    def test_prints_the_addresses(self, served):
        said = served.output.read_text()
        token = urlencode({"access_token": TOKEN})
        assert f"Inspector: http://127.0.0.1:{served.port}/#{token}" in said
        assert re.search(rf"http://127.0.0.1:{served.port}/trackio/[0-9a-f]{{64}}/\n", said)

    def test_help_shows_an_example(self, tmp_path):
        said = " ".join(run_show(tmp_path, "--help").stdout.split())  # the oldest typer wraps it
        assert "rollout-traces show --project gsm8k" in said

    def test_an_unknown_project_is_one_message(self, home):
        done = run_show(home, "--project", "nowhere", "--no-browser")
        assert done.returncode == 1
        first, second = (
            done.stderr.splitlines()
        )  # seen once: forty more, of what DuckDB's binding had not freed
        assert first == "Starting…" and "no project 'nowhere'" in second

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (("--project", "demo", "--run", "nosuch"), "no run 'nosuch'"),
            (("--server-url", "http://127.0.0.1:1"), "no Trackio server answers"),
        ],
    )
    def test_what_cannot_be_opened_is_said_before_a_page_is_served(self, home, tmp_path, options, said):
        code, lines = shown(home, tmp_path / "said.txt", *options, "--no-browser", "--no-trackio")
        assert code == 1 and not any("Inspector:" in line for line in lines)
        assert said in lines[1]

    def test_what_was_opened_before_is_offered_where_it_can_be_opened(self, tmp_path, monkeypatch, capsys):
        """Seen once: a project of another Trackio folder."""
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
        monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
        (tmp_path / "here.db").touch()
        for name in ("elsewhere", "here", str(tmp_path / "gone"), str(tmp_path), "s3://bucket/export"):
            remember(name)
        _offer()
        said = capsys.readouterr().out
        assert said.count("show --project") == 3
        assert all(name in said for name in ("project here", f"project {tmp_path}\n", "s3://bucket/export"))

    def test_as_many_are_offered_as_fit_and_of_none_nothing_is_said(self, tmp_path, monkeypatch, capsys):
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
        monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
        remember("gone")
        _offer()
        assert capsys.readouterr().out == ""
        for number in range(OFFERED + 1):
            (tmp_path / str(number)).touch()
            remember(str(tmp_path / str(number)))
        _offer()
        said, *offered = capsys.readouterr().out.splitlines()
        assert said == "Opened or written before:" and len(offered) == OFFERED
        assert offered[0].endswith(str(tmp_path / str(OFFERED)))

    def test_another_host_is_warned_about(self, home):
        server = Served(home, "--host", "0.0.0.0", "--project", "demo")
        server.stop()
        assert "can read every rollout" in server.output.read_text()


class TestPorts:
    def test_a_taken_port_is_passed_over(self, monkeypatch):
        with listen("127.0.0.1", 0) as taken:
            port = taken.getsockname()[1]
            monkeypatch.setattr(server, "FIRST_PORT", port)
            with listen("127.0.0.1") as free:
                assert free.getsockname()[1] > port
            monkeypatch.setattr(server, "MOST_PORTS", 1)
            with pytest.raises(ConfigError, match=f"no free port between {port} and {port} on 127"):
                listen("127.0.0.1")
        with listen("127.0.0.1") as last:
            assert last.getsockname()[1] == port

    @pytest.mark.parametrize("port", [0, 99_999, -1])
    def test_one_that_was_asked_for_and_is_none_is_refused(self, port):
        done = CliRunner().invoke(build_app(["show"]), ["show", "--no-browser", "--port", str(port)])
        assert done.exit_code == 2
        assert "to 1" in done.output or "than or equal to" in done.output

    def test_of_another_machine_are_no_ports_of_this_one(self):
        with pytest.raises(ConfigError, match=r"on 192\.0\.2\.1: .+\. Name another"):
            listen("192.0.2.1")


class TestAddress:
    def test_is_one_a_browser_can_open(self):
        everywhere = ServerOptions(host="0.0.0.0", port=7861, token="a+b")
        address = "http://127.0.0.1:7861/?project=a+b%26c#access_token=a%2Bb"
        assert page_address(everywhere, "a b&c") == address
        behind = ServerOptions(host="::1", port=1, root_path="/proxy/1/")
        assert page_address(behind) == "http://[::1]:1/proxy/1/"

    def test_the_browser_is_not_given_the_token_in_its_command_line(self, monkeypatch):
        given = []
        monkeypatch.setattr("webbrowser.open", given.append)
        _open_browser("http://127.0.0.1:1/?project=a&b#access_token=secret")
        path = Path(urlsplit(given[0]).path)
        assert "secret" not in given[0]
        assert "url=http://127.0.0.1:1/?project=a&amp;b#access_token=secret" in path.read_text()
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700


class TestRefusals:
    def test_no_token_off_loopback(self, tmp_path):
        done = run_show(tmp_path, "--no-token", "--host", "0.0.0.0", "--no-browser")
        assert done.returncode == 1
        assert "others can reach that address" in done.stderr

    def test_what_is_logged_with_nothing_that_takes_it(self, monkeypatch):
        monkeypatch.setenv("TRACKIO_WRITE_TOKEN", "x" * 64)
        assert _write_token(no_trackio=False) == "x" * 64
        with pytest.raises(ConfigError, match="--receive-logs with --no-trackio"):
            _write_token(no_trackio=True)
        monkeypatch.setenv("TRACKIO_WRITE_TOKEN", "short")
        with pytest.raises(ConfigError, match="--receive-logs: TRACKIO_WRITE_TOKEN: seen 5 characters"):
            _write_token(no_trackio=False)

    def test_taking_logs_without_a_write_token(self, tmp_path):
        done = run_show(tmp_path, "--receive-logs", "--no-browser")
        assert done.returncode == 1
        assert "TRACKIO_WRITE_TOKEN" in done.stderr


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:7861/proxied"),
        ("0.0.0.0", "http://127.0.0.1:7861/proxied"),
        ("::", "http://127.0.0.1:7861/proxied"),
        ("fd00::7", "http://[fd00::7]:7861/proxied"),
        ("node-3", "http://node-3:7861/proxied"),
    ],
)
def test_the_address_of_a_host_is_one_that_a_browser_opens(host, address):
    assert server_address(ServerOptions(host=host, port=7861, root_path="/proxied")) == address
