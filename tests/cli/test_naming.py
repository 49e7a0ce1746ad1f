"""A run, a project and a rollout are named in one way by every command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from rollout_traces import __version__
from rollout_traces.cli import LEAN, build_app, commands
from rollout_traces.errors import StoreError
from rollout_traces.store import Store
from tests.cli.conftest import Command
from tests.store.projects import RUN

ROOT = Path(__file__).parents[2]
OF_A_RUN = ("list", "stats", "explain", "events", "prompts", "flips", "delete", "export")
MAIN = "from rollout_traces.cli import main; main()"


def parameters(name: str) -> list:
    """The parameters of a command."""
    return typer.main.get_command(build_app([name])).commands[name].params  # type: ignore[attr-defined]


def piped(folder: Path, line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A line of a shell, in which `$CMD` is the command line."""
    command = f"{sys.executable} -c '{MAIN}'"
    own = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    env = {**own, "TRACKIO_DIR": str(folder), **variables}
    asked = ["bash", "-o", "pipefail", "-c", line.replace("$CMD", command)]
    return subprocess.run(asked, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)


class TestRuns:
    @pytest.mark.parametrize("name", OF_A_RUN)
    def test_the_run_is_the_first_argument_and_no_option(self, name: str) -> None:
        found = parameters(name)
        first = next(each for each in found if each.param_type_name == "argument")
        assert first.name == "run"
        assert not {"--run", "-r"} & {option for each in found for option in each.opts}

    @pytest.mark.parametrize("name", commands())
    def test_p_is_the_project_wherever_there_is_one(self, name: str) -> None:
        for each in parameters(name):
            assert ("-p" in each.opts) == ("--project" in each.opts)

    @pytest.mark.parametrize("name", ["list", "stats"])
    def test_it_may_be_the_beginning_of_a_name(self, command: Command, name: str) -> None:
        whole, part = command(name, RUN, "--json"), command(name, RUN[:2], "--json")
        assert whole.exit_code == 0 and json.loads(whole.stdout) == json.loads(part.stdout)

    def test_a_word_alone_is_what_is_listed_or_counted(self, command: Command) -> None:
        of_run = json.loads(command("stats", RUN, "reward", "--json").stdout)
        assert of_run == json.loads(command("stats", "reward", "--json").stdout)
        assert command("list", RUN, "steps").output == command("list", "steps").output

    @pytest.mark.parametrize("name", ["list", "stats"])
    def test_one_that_is_not_there_is_said(self, command: Command, name: str) -> None:
        assert "no run 'nobody'" in str(command(name, "nobody").exception)

    def test_an_export_takes_it_before_the_file(self, command: Command, tmp_path: Path) -> None:
        files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
        assert command("export", RUN, str(files[0])).exit_code == 0
        assert command("export", str(files[1])).exit_code == 0
        assert files[0].read_text() == files[1].read_text()
        assert "name the file or folder" in str(command("export").exception)
        assert f"{RUN} is a run. Name the file" in str(command("export", RUN).exception)


class TestRollouts:
    def test_every_lookup_takes_a_uid_or_the_beginning_of_one(self, store: Store) -> None:
        row = store.query(where="uid = 'b0-1'").rows[0]
        for lookup in (store.messages, store.transcript, store.details, store.record, store.find):
            assert repr(lookup("b0-1")) == repr(lookup(str(row.id))), lookup.__name__
        assert store.messages("e2") == store.messages("e2-1")

    def test_one_that_is_not_there_is_said_by_all_alike(self, store: Store) -> None:
        for lookup in (store.messages, store.transcript, store.details, store.record):
            with pytest.raises(StoreError, match="no trace 'nobody'"):
                lookup("nobody")

    def test_tables_name_them_by_uid(self, command: Command, store: Store) -> None:
        ids = [str(row.id) for row in store.query().rows]
        for asked in (("list",), ("get", "b0-0"), ("explain", "--step", "2")):
            output = command(*asked).output
            assert not [trace_id for trace_id in ids if trace_id in output], asked


class TestJson:
    @pytest.mark.parametrize(
        "asked",
        [
            ("list",), ("list", "runs"), ("list", "steps"), ("list", "columns"), ("list", "projects"), ("stats",),
            ("stats", "reward"), ("stats", "--by", "group"), ("events",), ("prompts",), ("label",), ("last",),
        ],
        ids=" ".join,
    )  # fmt: skip
    def test_rows_have_one_shape(self, command: Command, asked: tuple[str, ...]) -> None:
        found = json.loads(command(*asked, "--json").stdout)
        assert isinstance(found["rows"], list) and found["total"] >= len(found["rows"])


class TestPipes:
    def test_a_reader_that_has_enough_ends_a_command_quietly(self, shared_folder: Path) -> None:
        done = piped(shared_folder, "$CMD list columns | head -n 1")
        assert (done.returncode, done.stderr) == (0, "") and done.stdout.count("\n") == 1

    def test_a_reader_that_left_before_is_no_error(self, shared_folder: Path) -> None:
        done = piped(shared_folder, "(sleep 1; $CMD list projects) | exec 0<&-")
        assert (done.returncode, done.stderr) == (0, "")

    def test_colours_are_left_out_where_that_is_asked(self, shared_folder: Path) -> None:
        asked = f"script -qec \"{sys.executable} -c '{MAIN}' list --nothing\" /dev/null"
        assert "\x1b[3" in piped(shared_folder, asked, TERM="xterm-256color").stdout
        assert "\x1b[3" not in piped(shared_folder, asked, TERM="xterm-256color", NO_COLOR="1").stdout

    def test_the_version_is_printed(self, tmp_path: Path) -> None:
        assert piped(tmp_path, "$CMD --version").stdout == f"rollout-traces {__version__}\n"

    def test_forty_columns_are_enough(self, shared_folder: Path) -> None:
        asked = f"script -qec \"stty cols 40; {sys.executable} -c '{MAIN}' list -n 3\" /dev/null"
        lines = piped(shared_folder, asked, NO_COLOR="1").stdout.splitlines()
        table = [line for line in lines if "b2-" in line]
        assert table and all(len(line.rstrip()) <= 40 for line in table)


class TestSpeed:
    @pytest.mark.parametrize("name", ["list", "stats"])
    def test_a_command_that_prints_leaves_pandas_out(self, shared_folder: Path, name: str) -> None:
        code = "import atexit\natexit.register(lambda: print(sorted(sys.modules)))\n" + MAIN
        done = subprocess.run(
            [sys.executable, "-c", f"import sys\n{code}", name],
            env={**os.environ, "TRACKIO_DIR": str(shared_folder)}, cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
        modules = done.stdout.splitlines()[-1]
        assert "'duckdb'" in modules and "'pandas'" not in modules, done.stderr

    def test_help_loads_no_arrays(self) -> None:
        code = "from rollout_traces.cli import main\ntry: main()\nexcept SystemExit: pass\nprint('numpy' in sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", f"import sys\n{code}", "--help"], cwd=ROOT, capture_output=True, text=True
        )
        assert done.stdout.splitlines()[-1] == "False"

    def test_those_commands_exist(self) -> None:
        assert set(commands()) >= LEAN
