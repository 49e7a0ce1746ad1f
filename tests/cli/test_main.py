from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rollout_traces.cli import build_app, commands, options

OWN = ("list", "get", "stats", "export", "import", "doctor")
ROOT = Path(__file__).parents[2]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    import os

    return subprocess.run(
        [sys.executable, "-c", "from rollout_traces.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TRACKIO_DIR": str(folder)},
        check=False,
    )


class TestCommands:
    @pytest.mark.parametrize("name", OWN)
    def test_help_shows_an_example(self, name: str) -> None:
        done = CliRunner().invoke(build_app([name]), [name, "--help"])
        assert done.exit_code == 0 and f"Example: rollout-traces {name}" in done.output

    def test_every_command_module_is_found(self) -> None:
        assert set(OWN) <= set(commands())

    @pytest.mark.parametrize("name", OWN)
    def test_every_command_and_option_is_documented(self, name: str) -> None:
        import typer.main

        page = (ROOT / "docs" / "cli.md").read_text()
        found = typer.main.get_command(build_app([name])).commands[name]  # type: ignore[attr-defined]
        assert f"rollout-traces {name}" in page
        missing = [
            o for p in found.params for o in p.opts if o.startswith("--") and o != "--help" and o not in page
        ]
        assert missing == []


class TestOutput:
    def test_a_pipe_gets_the_table_and_nothing_else(self, shared_folder: Path) -> None:
        done = run(shared_folder, "list", "-n", "1")
        assert done.returncode == 0 and done.stderr == ""
        assert done.stdout.startswith("1 of 10 in project 'reading'\n")


class TestErrors:
    def test_a_bad_query_is_pointed_at_and_exits_with_1(self, shared_folder: Path) -> None:
        done = run(shared_folder, "list", "-w", "rewrd < 1")
        assert done.returncode == 1 and done.stdout == ""
        assert done.stderr.splitlines()[-3:] == [
            "no column 'rewrd'. Did you mean reward?",
            "  rewrd < 1",
            "  ^^^^^",
        ]

    def test_an_empty_folder_says_what_to_do(self, tmp_path: Path) -> None:
        done = run(tmp_path, "list")
        assert done.returncode == 1 and "Log something first" in done.stderr

    def test_several_projects_ask_which(self, tmp_path: Path) -> None:
        for name in ("one.db", "two.db"):
            (tmp_path / name).touch()
        done = run(tmp_path, "list")
        assert "which project? --project with one of: one, two." in done.stderr

    def test_an_unknown_project_names_those_there_are(self, shared_folder: Path) -> None:
        assert "Projects there: reading." in run(shared_folder, "get", "x", "-p", "nope").stderr


def test_a_user_without_a_name_on_this_machine_signs_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(options.getpass, "getuser", lambda: "ann")
    assert options.login() == "ann"
    monkeypatch.setattr(options.getpass, "getuser", nobody)
    assert options.login() == "unknown"
