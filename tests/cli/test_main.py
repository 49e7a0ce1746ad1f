from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rollout_traces.cli import PANELS, build_app, commands, options

OWN = ("list", "get", "stats", "export", "import", "doctor")
ROOT = Path(__file__).parents[2]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
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

    def test_a_paragraph_of_the_help_is_broken_by_the_terminal_alone(self) -> None:
        """Seen once: half a line in the middle of a sentence."""
        told = parsed("stats").help
        assert "a column is counted over the kept ones" in told and "\nExample: " in told

    def test_every_command_module_is_found(self) -> None:
        assert set(OWN) <= set(commands())

    def test_help_groups_every_command(self) -> None:
        grouped = [name for names in PANELS.values() for name in names]
        assert sorted(grouped) == sorted(commands())
        said = CliRunner().invoke(build_app(), ["--help"]).output
        assert [said.index(f" {panel} ") for panel in PANELS] == sorted(
            said.index(f" {panel} ") for panel in PANELS
        )

    def test_the_usage_of_run_names_the_script_and_its_arguments(self) -> None:
        said = CliRunner().invoke(build_app(["run", "get"]), ["run", "--help"]).output
        assert "SCRIPT|-m MODULE [ARGS]..." in said

    @pytest.mark.parametrize("name", OWN)
    def test_every_command_and_option_is_documented(self, name: str) -> None:
        page = (ROOT / "docs" / "cli.md").read_text()
        assert f"rollout-traces {name}" in page
        written = [o for p in parameters_of(name).values() for o in p.opts]
        missing = [o for o in written if o.startswith("--") and o not in page]
        assert missing == []

    @pytest.mark.parametrize("name", commands())
    def test_every_argument_and_option_has_its_help(self, name: str) -> None:
        assert [p.name for p in parameters_of(name).values() if not p.help] == []

    def test_check_takes_the_name_of_its_example_by_its_help_too(self) -> None:
        """Seen once: “a folder”, below an example with a name on the Hub."""
        assert "a name on the Hub" in parameters_of("check")["tokenizer"].help

    def test_a_switch_has_a_contrary_where_it_is_on_by_default_alone(self) -> None:
        assert parameters_of("check")["show"].secondary_opts == ["--no-show"]
        assert parameters_of("export")["tokens"].secondary_opts == []


def parameters_of(name: str) -> dict[str, Any]:
    """The arguments and options of a command, by their names in Python."""
    return {parameter.name: parameter for parameter in parsed(name).params if parameter.name != "help"}


def parsed(name: str) -> Any:
    """A command as typer reads it."""
    import typer.main

    return typer.main.get_command(build_app([name])).commands[name]  # type: ignore[attr-defined]


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

    def test_a_value_that_is_none_is_one_message_too(self, shared_folder: Path) -> None:
        done = run(shared_folder, "list", "--steps", "5-9")
        assert done.returncode == 1
        assert done.stderr == "steps: '5-9' is no step or range; expected 12, 10:20, 10: or :20.\n"

    def test_an_empty_folder_says_what_to_do(self, tmp_path: Path) -> None:
        done = run(tmp_path, "list")
        assert done.returncode == 1 and "Log something first" in done.stderr

    def test_several_projects_ask_which(self, tmp_path: Path) -> None:
        for name in ("one.db", "two.db"):
            (tmp_path / name).touch()
        done = run(tmp_path, "list")
        assert "which project? --project with one of: one, two." in done.stderr

    def test_an_unknown_project_names_those_there_are(self, shared_folder: Path, tmp_path: Path) -> None:
        assert "Projects there: reading." in run(shared_folder, "get", "x", "-p", "nope").stderr
        (tmp_path / "none").mkdir()
        assert "show --example" in run(tmp_path / "none", "get", "x", "-p", "nope").stderr


def test_a_user_without_a_name_on_this_machine_signs_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(options.getpass, "getuser", lambda: "ann")
    assert options.login() == "ann"
    monkeypatch.setattr(options.getpass, "getuser", nobody)
    assert options.login() == "unknown"
