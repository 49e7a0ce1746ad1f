"""`rollout-traces import` says what it took, what it did not and where, and what its rollouts lack."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rollout_traces.cli import build_app

pytestmark = pytest.mark.usefixtures("trackio_dir")


def command(*arguments: str | Path) -> Result:
    return CliRunner().invoke(build_app(["import"]), ["import", *map(str, arguments), "-p", "p"])


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "rollout_data"
    folder.mkdir(parents=True)
    row = {"input": "q", "output": "a", "gts": "1", "score": 1.0, "step": 1}
    (folder / "1.jsonl").write_text(json.dumps(row) + "\n{broken\n" + json.dumps(row) + "\n")
    (folder / "global_step_2_training_input.pkl").write_bytes(b"\x80\x04N.")
    return folder.parent


def test_what_is_broken_is_said_with_file_and_line_and_counted_and_the_rest_is_imported(dump: Path) -> None:
    done = command(dump)
    assert done.exit_code == 0
    assert "run: 2 rollouts in 1 step " in done.stdout
    assert "2 came without token ids: token views and masks are unobserved" in done.stdout
    assert f"{dump}/rollout_data/1.jsonl:2: " in done.stderr
    assert "--trust-pickle" in done.stderr
    [count] = [line for line in done.stderr.splitlines() if line.startswith("In all:")]
    assert count.startswith("In all: broken lines: 1, ") and "pickle" in count


def test_a_second_import_passes_over_what_is_known(dump: Path) -> None:
    command(dump)
    again = command(dump)
    assert again.exit_code == 0 and "imported before and unchanged: 1 file." in again.stdout


def test_a_folder_without_rollouts_is_named_and_fails(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = command(tmp_path / "empty")
    assert done.exit_code == 1 and "is empty" in done.stderr
    assert "In all" not in done.stderr  # one sentence needs no sum


def test_programs_get_json(dump: Path) -> None:
    told = json.loads(command(dump, "--json").stdout)
    assert told["runs"][0]["rows"] == 2 and told["problems"]["counts"]["broken_lines"] == 1


def test_ids_that_no_tokenizer_decodes_are_said(tmp_path: Path) -> None:
    group = {
        "tokens": [[5, 6]],
        "masks": [[-100, 6]],
        "scores": [1.0],
        "messages": [[{"role": "user", "content": "q"}]],
    }
    (tmp_path / "groups.jsonl").write_text(json.dumps(group) + "\n")
    assert "1 have token ids, which are kept where --tokenizer names" in command(tmp_path).stdout


def test_a_name_is_not_said_of_rollouts_that_hold_their_own(tmp_path: Path) -> None:
    """Seen once: “theirs: 1 rollout”, and the run was called r."""
    row = {"id": "1", "run_id": "1", "run": "r", "split": "rollout", "step": 1, "reward": 1.0, "schema": 1}
    row |= {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    done = command(tmp_path / "rows.jsonl", "--name", "theirs")
    assert "r: 1 rollout in 1 step" in done.stdout and "theirs" not in done.stdout
    assert "a name is for files that hold none" in done.stderr
