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
from rollout_traces.ledger.build import build_ledger
from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.steps.preflight import (
    LEVELS,
    CheckReport,
    Problem,
    load_batch,
    of_groups,
    of_logprob_frame,
    of_rewards,
)
from tests.builders import make_packed_batch
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer
from tests.metrics.builders import make_ledger


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


def sampled(rows: list[list[int]], **tracks: list[float]) -> PackedBatch:
    """Rows of as many tokens as their masks, with tracks given flat."""
    given = {name: np.asarray(values, np.float32) for name, values in tracks.items()}
    return make_packed_batch([[7] * len(row) for row in rows], rows, tracks=given)


class TestLogprobsOfTheNextToken:
    EARLY, IN_PLACE = [0, -1, -1, 0], [0, 0, -1, -1]

    def test_are_told_by_the_edges_of_every_sampled_run(self):
        [problem] = of_logprob_frame(sampled([[0, 0, 1, 1]], prox_logprobs=self.EARLY))
        assert (problem.level, problem.n_rows, problem.row) == ("error", 1, 0)
        assert problem.message.startswith("prox_logprobs are one token early")
        assert not list(of_logprob_frame(sampled([[0, 0, 1, 1]], logprobs=self.IN_PLACE)))
        two_runs = [0, 1, 0, 0, 1, 1]
        assert list(of_logprob_frame(sampled([two_runs], logprobs=[-1, 0, 0, -1, -1, 0])))
        assert not list(of_logprob_frame(sampled([two_runs], logprobs=[-1, 0, 0, 0, -1, -1])))
        assert not list(of_logprob_frame(sampled([two_runs], logprobs=[0, -1, 0, -1, -1, 0])))

    def test_that_begin_with_the_row_are_not_known_to_be_early(self):
        assert not list(of_logprob_frame(sampled([[1, 1]], logprobs=[-1, 0])))

    def test_count_from_nine_rows_in_ten_that_sampled_something(self):
        rows = [[0, 0, 1, 1]] * 10
        nine = [*self.IN_PLACE, *self.EARLY * 9]
        [problem] = of_logprob_frame(sampled([*rows, [0, 0]], logprobs=[*nine, 0, 0]))
        assert (problem.n_rows, problem.row) == (9, 1)
        assert not list(of_logprob_frame(sampled(rows, logprobs=[*self.IN_PLACE * 2, *self.EARLY * 8])))
        assert not list(of_logprob_frame(sampled([[0, 0]], logprobs=[0, 0])))


class TestGroupsAndRewards:
    @staticmethod
    def groups(prompts: list[int], ids: list[int]):
        batch = make_packed_batch(
            [[prompt, 5] for prompt in prompts], [[0, 1]] * len(prompts), group_ids=np.asarray(ids)
        )
        return [(p.level, p.message, p.n_rows, p.row) for p in of_groups(batch, build_ledger(batch))]

    def test_rows_that_repeat_a_prompt_in_groups_of_one_are_counted(self):
        said = "every rollout is a group although 2 rows repeat a prompt: give `group_ids`."
        assert self.groups([1, 1, 1, 2], [0, 1, 2, 3]) == [("warn", said, 4, None)]
        assert self.groups([1, 2], [0, 1]) == [("info", "every rollout is a group.", 2, None)]

    def test_a_group_of_two_or_a_single_rollout_is_nothing_to_tell(self):
        assert self.groups([1, 1, 2], [0, 0, 1]) == [] == self.groups([1], [0])

    @staticmethod
    def rewards(*values: float | None):
        return [(p.name, p.message, p.n_rows) for p in of_rewards(make_ledger(reward=values))]

    def test_rewards_that_say_nothing_are_counted(self):
        said = "every reward is 0.5: there is nothing to learn from."
        assert self.rewards(0.5, 0.5, None) == [("rewards_equal", said, 2)]
        assert self.rewards(None, None) == [("rewards_unknown", "no rollout has a reward.", 2)]
        assert self.rewards(0.5, 0.25) == [] == self.rewards(0.5, None)


class TestReport:
    def test_problems_stand_in_order_and_sizes_are_counted(self, arrays, tokenizer):
        arrays["loss_mask"] = np.asarray(arrays["attention_mask"]).astype(int)
        report = rt.check({**arrays, "rewards": [1.0] * 8}, tokenizer)
        levels = [problem.level for problem in report.problems]
        assert levels == sorted(levels, key=LEVELS.index) and {"error", "warn"} <= set(levels)
        lengths = np.asarray(arrays["attention_mask"]).sum(1)
        assert (report.n_tokens, report.longest, report.n_groups) == (lengths.sum(), lengths.max(), 2)

    def test_a_problem_fails_its_own_level_and_those_below(self):
        def failed(level):
            report = CheckReport(1, 1, 1, 1, "given", (Problem("x", level, "y", 1),), {}, {})
            return [report.failed(asked) for asked in LEVELS]

        assert failed("error") == [True, True, True]
        assert failed("warn") == [False, True, True]
        assert failed("info") == [False, False, True]

    def test_a_report_of_nothing_says_so_and_what_was_not_looked_for(self):
        off = {"stale": ("stale.limit",), "header_drift": ("tokenizer", "tokens")}
        assert str(CheckReport(2, 1234, 1000, 1, "given", (), off, {})).splitlines() == [
            "2 rollouts of 1 groups, 1,234 tokens, the longest 1,000; sampled tokens are told by given.",
            "Nothing is wrong that can be seen.",
            "off   header_drift: no tokenizer or tokens",
            "off   stale: no stale.limit",
        ]

    def test_the_worst_rows_are_shown_first(self, arrays, tokenizer):
        loss = np.asarray(arrays["loss_mask"]).astype(int)
        loss[6] = np.asarray(arrays["attention_mask"])[6]
        report = rt.check({**arrays, "loss_mask": loss}, tokenizer)
        assert next(iter(report.transcripts)) == 6 and len(report.transcripts) == 3


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

    def test_rows_of_a_parquet_file_may_differ_in_length(self, tmp_path):
        import pyarrow
        import pyarrow.parquet

        rows = {"input_ids": [[1, 2, 3], [4]], "loss_mask": [[0, 1, 1], [1]], "notes": [["a"], ["b"]]}
        pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "b.parquet")
        found = load_batch(tmp_path / "b.parquet")
        assert found["input_ids"].tolist() == [[1, 2, 3], [4, 0, 0]]
        assert found["loss_mask"].tolist() == [[0, 1, 1], [1, 0, 0]]
        assert found["attention_mask"].tolist() == [[True] * 3, [True, False, False]]
        assert found["notes"] == [["a"], ["b"]]
        pyarrow.parquet.write_table(pyarrow.table({"ids": [[1]]}), tmp_path / "b.parquet")
        with pytest.raises(BatchError, match=r"no column 'input_ids'\. Seen ids"):
            load_batch(tmp_path / "b.parquet")

    def test_a_file_that_is_not_there_or_has_no_ending_is_refused(self, tmp_path):
        with pytest.raises(BatchError, match=r"b\.npz: no such file"):
            load_batch(tmp_path / "b.npz")
        with pytest.raises(BatchError, match=r"a folder\. Expected one file with a batch"):
            load_batch(tmp_path)
        (tmp_path / "b").write_text("x")
        with pytest.raises(BatchError, match="seen no ending"):
            load_batch(tmp_path / "b")

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
        assert code("--fail-on", "nothing") == 1
        arrays["loss_mask"] = np.asarray(arrays["attention_mask"]).astype(int)
        assert code("--fail-on", "error") == 1
