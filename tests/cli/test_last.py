"""`rollout-traces last`: what a killed trainer handed over and nobody stored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import rollout_traces as rt
from rollout_traces.cli import build_app
from rollout_traces.spool.run_folder import run_folders
from tests.generator import BatchPlan, rollout_batch, tiny_tokenizer


def left_behind(name: str, seed: int, tokenizer: object = None) -> list[int]:
    """Hands a step over whose worker never starts; the lengths of its rollouts."""
    batch = rollout_batch(tiny_tokenizer(), BatchPlan(n_groups=2, group_size=2, seed=seed))
    logger = rt.RolloutLogger("p", name, tokenizer)
    logger._pipeline.start = lambda: None
    logger.log_rollouts(batch, step=1)
    logger._pipeline._writer.close()
    logger.run.finish()
    import trackio.context_vars

    trackio.context_vars.current_run.set(None)
    return [int(n) for n in batch.attention_mask.sum(1)]


def last(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "300"}).invoke(build_app(["last"]), ["last", *arguments])


def folder_of(trackio_dir: Path, name: str) -> Path:
    (found,) = (
        folder.path
        for folder in run_folders(trackio_dir / "rollout-traces" / "spool")
        if folder.manifest().run_name == name
    )
    return found


class TestWhatWaits:
    @pytest.fixture
    def lengths(self, trackio_dir: Path) -> list[tuple[int, str]]:
        found = [(n, "first") for n in left_behind("first", 1, tiny_tokenizer())]
        return found + [(n, "second") for n in left_behind("second", 2)]

    def test_the_longest_of_all_runs_come_first(self, lengths: list[tuple[int, str]]) -> None:
        rows = json.loads(last("--json").output)["rows"]
        assert [row["tokens"] for row in rows] == sorted((n for n, _ in lengths), reverse=True)
        assert sorted((row["tokens"], row["run"]) for row in rows) == sorted(lengths)
        assert {row["project"] for row in rows} == {"p"} and {row["step"] for row in rows} == {1}

    def test_as_many_as_are_asked_for(self, lengths: list[tuple[int, str]]) -> None:
        rows = json.loads(last("--json", "-n", "3").output)["rows"]
        assert [row["tokens"] for row in rows] == sorted((n for n, _ in lengths), reverse=True)[:3]

    def test_their_ends_are_shown_where_the_tokenizer_is_at_hand(
        self, lengths: list[tuple[int, str]]
    ) -> None:
        rows = json.loads(last("--json").output)["rows"]
        assert {row["run"]: bool(row["end"]) for row in rows} == {"first": True, "second": False}

    def test_a_person_sees_a_table(self, lengths: list[tuple[int, str]]) -> None:
        shown = last().output
        assert "project" in shown and "stop_reason" in shown and "first" in shown and "second" in shown
        assert "everything handed over" not in shown

    def test_another_project_has_none(self, lengths: list[tuple[int, str]]) -> None:
        assert json.loads(last("--json", "-p", "other").output)["rows"] == []

    def test_a_tokenizer_that_cannot_be_read_leaves_the_texts_out_and_says_so(
        self, lengths: list[tuple[int, str]], trackio_dir: Path
    ) -> None:
        [path] = folder_of(trackio_dir, "first").rglob("tokenizer.json")
        path.write_text("{")
        done = last("--json")
        assert done.exit_code == 0 and f"{path}: cannot be read" in done.stderr
        assert [row["end"] for row in json.loads(done.stdout)["rows"]] == [""] * len(lengths)


def test_nothing_that_waits_is_said_in_one_sentence(trackio_dir: Path) -> None:
    assert last().output == "Nothing waits on this node: everything handed over is stored.\n"
    said = last("-p", "nosuch").output
    assert said.startswith(
        "Nothing of project 'nosuch' waits on this node, and no project of that name is in "
    )


def test_a_folder_that_is_damaged_is_named_instead(trackio_dir: Path) -> None:
    left_behind("run", 1)
    folder = folder_of(trackio_dir, "run")
    (folder / "manifest.json").write_text("{")
    shown = last().output
    assert str(folder) in shown and "1 records wait there" in shown
    assert "everything handed over" not in shown
