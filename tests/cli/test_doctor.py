"""`doctor PATH` says what rollouts files hold, and neither imports nor writes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import orjson
from typer.testing import CliRunner, Result

from rollout_traces.cli import build_app

SAMPLES = Path(__file__).parents[1] / "sources" / "samples"


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(["doctor"]), ["doctor", *arguments])


def findings(*paths: Path) -> dict[str, dict[str, dict[str, str]]]:
    """Heading -> subject -> finding."""
    result = doctor("--json", *map(str, paths))
    assert result.exit_code == 0, result.output
    return {
        name: {item["subject"]: item for item in items} for name, items in orjson.loads(result.stdout).items()
    }


class TestDoctorOfAPath:
    def test_each_run_has_its_format_steps_and_what_its_rollouts_have(self, trackio_dir):
        found = findings(SAMPLES / "verl" / "rollout_data", SAMPLES / "slime")
        assert len(found) == 2
        verl, slime = found["Run verl"], found["Run slime"]
        assert "2 files" in verl["where"]["seen"] and "steps 1 to 2" in verl["where"]["seen"]
        dump = verl["verl, rollout_data_dir or validation_data_dir"]["seen"]
        assert "of the first 4 rollouts of 1.jsonl 0 have token ids, rewards 0 to 1" in dump
        ours = slime["slime or miles, debug rollout data"]["seen"]
        assert "4 have token ids, tracks logprobs, versions" in ours

    def test_what_the_files_do_not_say_is_named_with_what_helps(self, trackio_dir):
        [run] = findings(SAMPLES / "verl" / "rollout_data").values()
        lacks = run["not in the files"]
        assert lacks["status"] == "note" and "token ids" in lacks["seen"]
        assert "--tokenizer" in lacks["advice"]

    def test_what_is_not_read_is_listed_beside_what_is(self, trackio_dir, tmp_path):
        shutil.copytree(SAMPLES / "verl" / "rollout_data", tmp_path / "run")
        with (tmp_path / "run" / "1.jsonl").open("a") as file:
            file.write("{torn\n")
        found = findings(tmp_path / "run")
        [torn] = found.pop("Not read").values()
        assert torn["status"] == "warn" and "1.jsonl" in torn["seen"]
        assert len(found) == 1

    def test_nothing_is_imported_and_no_file_changes(self, trackio_dir, tmp_path):
        shutil.copytree(SAMPLES / "verl", tmp_path / "run")
        before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
        result = doctor(str(tmp_path / "run"))
        assert result.exit_code == 0, result.output
        after = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
        assert after == before
        assert not list(trackio_dir.rglob("*.db"))

    def test_a_path_that_is_not_there_is_named_without_a_traceback(self, trackio_dir, tmp_path):
        code = "from rollout_traces.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code, "doctor", str(tmp_path / "nope")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert done.stderr.strip() == f"{tmp_path / 'nope'}: no such file or folder."
