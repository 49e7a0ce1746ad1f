"""A batch is looked at before a run: what is wrong is named with its rows, what is right stays silent."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

import rollout_traces as rt
from rollout_traces.cli.check import check
from rollout_traces.errors import BatchError
from rollout_traces.steps.preflight import load_batch
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture
def arrays(tokenizer):
    """A healthy batch of two groups of four, as numpy arrays."""
    given = batch_arrays(tokenizer, BatchPlan(n_groups=2, group_size=4))
    return {key: np.asarray(value) if hasattr(value, "detach") else value for key, value in given.items()}


def names(report) -> set[str]:
    return {problem.name for problem in report.problems}


class TestCheck:
    def test_a_healthy_batch_has_no_error_and_three_rows_to_read(self, arrays, tokenizer):
        report = rt.check(arrays, tokenizer)
        assert not report.failed("error"), str(report)
        assert len(report.transcripts) == 3
        assert f"{report.n_rows} rollouts of 2 groups" in str(report)

    def test_prompt_tokens_in_the_loss_are_an_error_with_their_rows(self, arrays, tokenizer):
        arrays["loss_mask"] = np.asarray(arrays["attention_mask"]).astype(int)
        report = rt.check(arrays, tokenizer)
        [leak] = [problem for problem in report.problems if problem.name == "mask_leak"]
        assert (leak.level, leak.n_rows, leak.row) == ("error", 8, 0)
        assert report.failed("error")

    @pytest.mark.parametrize("by", [-1])
    def test_logprobs_in_the_frame_of_the_logits_are_an_error(self, arrays, tokenizer, by):
        sampled = (
            np.asarray(arrays["response_mask"] if "response_mask" in arrays else arrays["loss_mask"]) > 0
        )
        arrays["logprobs"] = np.where(sampled, -0.5, 0.0).astype(np.float32)
        assert "logprobs_shifted" not in names(rt.check(arrays, tokenizer))
        arrays["logprobs"] = np.roll(arrays["logprobs"], by, axis=1)
        assert "logprobs_shifted" in names(rt.check(arrays, tokenizer))

    def test_groups_of_one_over_repeated_prompts_say_what_to_give(self, arrays, tokenizer):
        arrays.pop("group_ids", None)
        [problem] = [p for p in rt.check(arrays, tokenizer).problems if p.name == "groups_of_one"]
        assert problem.level == "warn" and "give `group_ids`" in problem.message

    def test_rewards_that_are_equal_or_missing_are_said(self, arrays, tokenizer):
        assert "rewards_equal" in names(rt.check({**arrays, "rewards": [1.0] * 8}, tokenizer))
        assert "rewards_unknown" in names(rt.check({**arrays, "rewards": None}, tokenizer))

    def test_what_cannot_be_looked_for_says_what_it_lacks(self, arrays):
        report = rt.check(arrays)
        assert report.transcripts == {}
        assert "tokenizer" in {key for keys in report.off.values() for key in keys}

    def test_no_rows_and_wrong_shapes_are_refused_by_name(self, arrays):
        with pytest.raises(BatchError, match="no rollouts"):
            rt.check([])
        with pytest.raises(BatchError, match="loss_mask: seen shape"):
            rt.check({**arrays, "loss_mask": np.ones((8, 2))})

    def test_nothing_is_written(self, arrays, tokenizer, trackio_dir, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        before = sorted(tmp_path.rglob("*"))
        rt.check(arrays, tokenizer)
        assert sorted(tmp_path.rglob("*")) == before


class TestFiles:
    def save(self, folder, arrays):
        import pyarrow
        import pyarrow.parquet

        kept = {key: arrays[key] for key in ("input_ids", "attention_mask", "loss_mask", "rewards")}
        torch.save({key: torch.as_tensor(np.asarray(value)) for key, value in kept.items()}, folder / "b.pt")
        np.savez(folder / "b.npz", **{key: np.asarray(value) for key, value in kept.items()})
        rows = {key: np.asarray(value).tolist() for key, value in kept.items()}
        pyarrow.parquet.write_table(pyarrow.table(rows), folder / "b.parquet")

    @pytest.mark.parametrize("ending", ["pt", "npz", "parquet"])
    def test_every_format_gives_the_same_report(self, tmp_path, arrays, tokenizer, ending):
        self.save(tmp_path, arrays)
        report = rt.check(load_batch(tmp_path / f"b.{ending}"), tokenizer)
        assert (report.n_rows, report.n_tokens) == (8, int(np.asarray(arrays["attention_mask"]).sum()))

    def test_a_pickle_is_refused(self, tmp_path):
        torch.save({"x": object}, tmp_path / "b.pt")
        with pytest.raises(BatchError, match="cannot be loaded"):
            load_batch(tmp_path / "b.pt")

    def test_another_ending_is_refused_with_those_that_are_read(self, tmp_path):
        (tmp_path / "b.csv").write_text("x")
        with pytest.raises(BatchError, match=r"seen \.csv\. Expected one of \.pt, \.pth, \.npz, \.parquet"):
            load_batch(tmp_path / "b.csv")

    def test_the_command_exits_with_1_where_an_error_is_found(self, tmp_path, arrays, tokenizer):
        tokenizer.save_pretrained(tmp_path / "tokenizer")

        def run() -> subprocess.CompletedProcess:
            self.save(tmp_path, arrays)
            arguments = ["check", "b.npz", "--tokenizer", "tokenizer"]
            return subprocess.run(
                [sys.executable, "-c", "from rollout_traces.cli import main; main()", *arguments],
                cwd=tmp_path,
                capture_output=True,
                text=True,
            )

        healthy = run()
        assert healthy.returncode == 0, healthy.stdout + healthy.stderr
        arrays["loss_mask"] = np.asarray(arrays["attention_mask"]).astype(int)
        broken = run()
        assert broken.returncode == 1
        assert "error" in broken.stdout and "row 0" in broken.stdout

    @pytest.mark.parametrize("ending", ["pt", "npz", "parquet"])
    def test_every_format_has_the_exit_codes(self, tmp_path, arrays, tokenizer, ending):
        tokenizer.save_pretrained(tmp_path / "tokenizer")
        app = typer.Typer()
        app.command()(check)
        arguments = [str(tmp_path / f"b.{ending}"), "--tokenizer", str(tmp_path / "tokenizer"), "--no-show"]

        def code(*options: str) -> int:
            self.save(tmp_path, arrays)
            return CliRunner().invoke(app, [*arguments, *options]).exit_code

        assert code("--fail-on", "error") == 0
        assert code("--fail-on", "nothing") == 2
        arrays["loss_mask"] = np.asarray(arrays["attention_mask"]).astype(int)
        assert code("--fail-on", "error") == 1
