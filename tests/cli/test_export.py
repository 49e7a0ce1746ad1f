from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import rollout_traces as rt
from rollout_traces.cli import build_app
from rollout_traces.errors import ConfigError, NotWritten
from tests.cli.conftest import Command


class TestExport:
    def test_a_filter_becomes_a_file_and_a_manifest(self, command: Command, tmp_path: Path) -> None:
        out = tmp_path / "deep" / "some.jsonl"
        done = command("export", str(out), "-w", "reward >= 1", "-n", "2")
        assert done.exit_code == 0, done.output
        assert "2 of 4 rollouts" in done.output
        assert len(out.read_text().splitlines()) == 2
        manifest = json.loads(out.with_name("some.jsonl.manifest.json").read_text())
        assert (manifest["rows"], manifest["matched"], manifest["query"]["where"]) == (2, 4, "reward >= 1")

    def test_the_format_can_be_named(self, command: Command, tmp_path: Path) -> None:
        done = command("export", str(tmp_path / "file"), "--format", "jsonl", "--json")
        assert json.loads(done.stdout)["rows"] == 10

    def test_an_unknown_format_names_all_that_the_help_names(self, command: Command, tmp_path: Path) -> None:
        """Seen once: “expected one of jsonl, parquet”."""
        done = command("export", str(tmp_path / "file"), "-f", "dop")
        known = "jsonl, parquet, atif, scout, site, sft, dpo, reward, hub, hub-sts"
        assert str(done.exception) == f"--format 'dop', expected one of {known}."

    @pytest.mark.parametrize(
        "options",
        [
            "-f jsonl",
            "-f parquet",
            "-f atif",
            "-f scout",
            "-f sft",
            "-f site -p FOLDER",
            "--partition-by run",
        ],
    )
    def test_what_cannot_be_written_is_one_sentence_with_the_name_that_was_given(
        self, command: Command, tmp_path: Path, options: str
    ) -> None:
        if "FOLDER" in options:
            assert command("export", str(tmp_path / "exported"), "--partition-by", "run").exit_code == 0
        (tmp_path / "file").touch()
        out = str(tmp_path / "file" / "out")
        given = [str(tmp_path / "exported") if word == "FOLDER" else word for word in options.split()]
        done = command("export", "run-001", out, *given)
        assert isinstance(done.exception, NotWritten), done.output
        assert str(done.exception).startswith(f"{out}: cannot be written: ")

    def test_one_is_shared_as_a_file(
        self, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Seen once: `share` knew no folder, which its help offers."""
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        folder = str(tmp_path / "exported")
        assert command("export", folder, "--partition-by", "run", "--tokens").exit_code == 0
        done = command("share", "b1-0", "-p", folder, "-o", str(tmp_path / "page.html"))
        assert done.exit_code == 0, done.output
        assert "boxed" in (tmp_path / "page.html").read_text() and "in place of" not in done.output
        again = command("share", "b1-0", "-p", folder, "-o", str(tmp_path / "page.html"))
        assert again.stdout.endswith("page.html, in place of what was there\n")
        device = tmp_path / "device"
        device.symlink_to("/dev/null")
        refused = command("share", "b1-0", "-p", folder, "-o", str(device)).exception
        assert isinstance(refused, ConfigError) and "a pipe or a device" in str(refused)


def test_a_project_without_texts_says_how_all_rows_are_written(trackio_dir: Path, tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "6*7?"}, {"role": "assistant", "content": "42"}]
    logger = rt.RolloutLogger(project="p", name="r", worker="thread")
    logger.log_rollouts(rt.RolloutBatch.from_messages([talk] * 4, rewards=[1.0] * 4), step=1)
    logger.finish()
    done = CliRunner().invoke(build_app(["export"]), ["export", str(tmp_path / "out.jsonl"), "-p", "p"])
    assert "0 of 0 rollouts" in done.stdout and "--all writes all 4." in done.stderr
