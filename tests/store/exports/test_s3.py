"""An export in a bucket of a real S3 server, through the store, the commands and the pages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rollout_traces.cli import build_app
from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages import explore, group, rollouts, run
from rollout_traces.inspector.workspace import Workspace
from rollout_traces.store import Store, open_store
from tests.inspector.told import told
from tests.store.projects import RUN


class TestStore:
    def test_reads_it_without_trackio(self, bucket: str, store: Store) -> None:
        opened = open_store(bucket)
        assert opened.runs() == store.runs()
        assert opened.count(text="boxed{42}") == store.count(text="boxed{42}") > 0
        assert opened.messages("b1-0") == store.messages("b1-0")
        assert opened.sql("select count(*) as n from rollouts where traced")["n"].to_pylist() == [10]

    def test_a_new_step_is_read_and_no_other(self, bucket: str, exported: Path) -> None:
        import s3fs

        opened = open_store(bucket)
        file = next(exported.glob("run=*/step=2/*.parquet"))
        s3fs.S3FileSystem().put(str(file), f"{bucket}/run={RUN}/step=7/part-0.parquet")
        assert opened.refresh() == 4 and opened.count(steps=(7, 7)) == 4

    def test_the_index_serves_while_the_bucket_is_away(
        self, bucket: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        opened = open_store(bucket)
        monkeypatch.setattr(opened.source.folder, "root", "gone/away")  # type: ignore[attr-defined]
        with pytest.raises(StoreError, match="nothing there"):
            opened.refresh()
        assert opened.count() == 10

    def test_a_bucket_that_is_not_there_is_a_sentence(self, bucket: str) -> None:
        with pytest.raises(StoreError, match="s3://nobody/x"):
            open_store("s3://nobody/x")

    def test_options_name_the_server(
        self, bucket: str, s3_server: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("AWS_ENDPOINT_URL")
        assert open_store(bucket, options={"endpoint_url": s3_server}).count() == 10


class TestCommands:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["list"], "10 of 10 in export s3://rollouts/gsm8k"),
            (["list", "runs"], RUN),
            (["stats"], "reward/mean"),
            (["stats", "--by", "split", "--mean", "reward"], "mean(reward)"),
            (["get", "b1-0"], "What is 6 times 7?"),
            (["flips", "--split", "rollout"], ""),
            (["prompts"], ""),
        ],
    )
    def test_take_the_address_for_a_project(self, bucket: str, arguments: list[str], said: str) -> None:
        done = CliRunner().invoke(
            build_app([arguments[0]]), [*arguments, "-p", bucket], env={"COLUMNS": "200"}
        )
        assert done.exit_code == 0, done.output
        assert said in done.output

    def test_explain_asks_it_the_same(self, bucket: str, shared_folder: Path) -> None:
        run_it = CliRunner().invoke
        asked = ["explain", RUN, "--step", "2", "--json"]
        here = run_it(
            build_app(["explain"]), [*asked, "-p", "reading"], env={"TRACKIO_DIR": str(shared_folder)}
        )
        there = run_it(build_app(["explain"]), [*asked, "-p", bucket])
        assert there.exit_code == here.exit_code == 0, there.output
        assert json.loads(there.stdout) == json.loads(here.stdout)


class TestPages:
    def test_show_it(self, bucket: str, shared_folder: Path) -> None:
        there = Workspace(projects=(bucket,))
        here = Workspace(folder=shared_folder, projects=("reading",))
        assert not there.is_local
        asked = {"run": RUN, "split": "rollout", "step": 1}
        trace = there.store(bucket).query(where="uid = 'b1-0'").rows[0].id
        for page, function, more in (
            (explore, explore.table, {"rows": "all"}),
            (explore, explore.spread, {"column": "reward"}),
            (rollouts, rollouts.samples, {}),
            (group, group.group, {"group": 0}),
            (run, run.run_report, {}),
        ):
            given = asked | more | {"id": trace}
            a = told(function, there, {**given, "project": bucket})
            b = told(function, here, {**given, "project": "reading"})
            assert set(a) == set(b) and "error" not in a, page
        rows = told(explore.table, there, {**asked, "project": bucket, "rows": "all"})["rows"]
        expected = told(explore.table, here, {**asked, "project": "reading", "rows": "all"})["rows"]
        assert [row["cells"] for row in rows] == [row["cells"] for row in expected]
        there.close()
        here.close()


def test_a_copy_of_the_bucket_is_the_same_export(exported: Path, tmp_path: Path, store: Store) -> None:
    shutil.copytree(exported, tmp_path / "copied")
    assert open_store(str(tmp_path / "copied")).count(rows="all") == store.count(rows="all")
