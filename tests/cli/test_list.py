from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rollout_traces import RolloutBatch, RolloutLogger
from rollout_traces.cli import build_app
from rollout_traces.store import Store
from tests.cli.conftest import Command
from tests.store.projects import RUN


class TestList:
    def test_where_none_was_kept_with_its_text_that_is_said(self, trackio_dir: Path) -> None:
        """Seen once: who logged without `max_rollout_traces_per_step` read "0 of 0" and no more."""
        logger = RolloutLogger(project="none-kept", name="run", worker="thread")
        said = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hello."}]
        logger.log_rollouts(RolloutBatch.from_messages([said, said], rewards=[1.0, 0.0]), step=0)
        logger.finish()
        done = CliRunner().invoke(build_app(["list"]), ["list", "-p", "none-kept"])
        assert "0 of 0" in done.stdout and "--all lists all 2." in done.stderr

    def test_rollouts_are_a_table_that_says_how_many_there_are(self, command: Command) -> None:
        done = command("list", "-n", "2", "-s", "-reward,step")
        assert done.exit_code == 0, done.output
        assert "2 of 10 in project 'reading'" in done.output
        assert "b0-0" in done.output and "more with --after" in done.output

    def test_a_filter_that_finds_nothing_says_so_and_of_how_many(self, command: Command) -> None:
        """Seen once: an empty table under "0 of 0"."""
        done = command("list", "-w", "reward > 99")
        assert done.exit_code == 0
        assert done.output == "Nothing matches: 0 of 10 kept rollouts in project 'reading'.\n"

    def test_json_pages_on_with_its_cursor(self, command: Command) -> None:
        first = json.loads(command("list", "--json", "-n", "6").stdout)
        second = json.loads(command("list", "--json", "-n", "6", "--after", first["next"]).stdout)
        uids = [row["uid"] for row in first["rows"] + second["rows"]]
        assert first["total"] == 10 and len(set(uids)) == 10 and second["next"] is None

    @pytest.mark.parametrize(
        ("arguments", "uids"),
        [
            (("-w", "flags has 'tied_group'", "--steps", "1:2"), {"b1-4", "b2-4"}),
            (("--split", "eval-rollout"), {"e2-1"}),
            (("-t", "boxed{4", "--steps", "2"), {"b2-0"}),
            (("--all", "-w", "n_sampled = 75", "--steps", ":1"), {"b0-7", "b1-7"}),
        ],
    )
    def test_filters(self, command: Command, arguments: tuple[str, ...], uids: set[str]) -> None:
        done = command("list", "--json", *arguments)
        assert {row["uid"] for row in json.loads(done.stdout)["rows"]} == uids

    def test_no_cell_is_cut_in_a_pipe(self, command: Command, store: Store) -> None:
        """Seen once: tables were cut, in a pipe too."""
        ids = [row.id or "" for row in store.query().rows]
        assert max(map(len, ids)) > 48
        lines = command("list", "--columns", "id,reply").output
        assert all(trace_id in lines for trace_id in ids) and "…" not in lines

    def test_chosen_columns(self, command: Command) -> None:
        header = command("list", "--columns", "step, component/format", "-n", "1").output.splitlines()[1]
        assert header.split() == ["step", "component/format"]

    def test_json_gives_the_chosen_columns_and_no_others(self, command: Command) -> None:
        """Seen once: list --json --columns ignored the columns."""
        found = json.loads(command("list", "--json", "--columns", "step,uid", "-n", "2").stdout)
        assert [set(row) for row in found["rows"]] == [{"step", "uid"}] * 2

    @pytest.mark.parametrize("what", ["projects", "runs", "steps", "columns"])
    def test_other_things_can_be_listed(self, command: Command, what: str) -> None:
        done = command("list", what, "--json")
        assert done.exit_code == 0 and json.loads(done.stdout)["rows"]
        assert command("list", what).exit_code == 0

    def test_the_time_of_a_run_has_its_zone(self, command: Command) -> None:
        assert "started, UTC" in command("list", "runs").output

    @pytest.mark.parametrize("what", ["steps", "columns"])
    def test_limit_is_of_whatever_is_listed(self, command: Command, what: str) -> None:
        """Seen once: -n was ignored but for rollouts."""
        whole = json.loads(command("list", what, "--json").stdout)
        found = json.loads(command("list", what, "--json", "-n", "1").stdout)
        assert len(whole["rows"]) == whole["total"] > 1
        assert found == {"rows": whole["rows"][:1], "total": whole["total"]}
        shown = command("list", what, "-n", "1").output
        assert shown.startswith(f"1 of {whole['total']}") and len(shown.splitlines()) == 4

    def test_where_there_is_no_project_it_says_so(
        self, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Seen once: a table without rows."""
        monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
        done = command("list", "projects")
        assert (done.exit_code, done.output) == (
            0,
            f"no projects in {tmp_path}. Log something first, or set TRACKIO_DIR.\n",
        )

    @pytest.mark.parametrize("what", ["runs", "projects"])
    def test_none_are_listed_where_none_are_asked_for(self, command: Command, what: str) -> None:
        assert json.loads(command("list", what, "--json", "-n", "0").stdout) == {"rows": [], "total": 1}
        assert command("list", what, "-n", "0").output.startswith("0 of 1 in ")

    def test_steps_within_a_range(self, command: Command) -> None:
        found = json.loads(command("list", "steps", "--json", "--steps", "1:2").stdout)["rows"]
        assert [(row["split"], row["step"]) for row in found] == [
            ("rollout", 1),
            ("rollout", 2),
            ("eval-rollout", 2),
        ]

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ((RUN, "nonsense"), "expected rollouts, steps, columns, runs, projects"),
            (("--steps", "a:b"), "no step or range"),
            (("--steps", "20:10"), "ends before it begins"),
            (("--limit", "many"), "--limit"),
            (("--split", "train"), "there is eval-rollout, rollout"),
            (("steps", "--split", "train"), "there is eval-rollout, rollout"),
            (("--columns", "reward,nope"), "no column 'nope'"),
            (("-n", "-1"), "--limit"),
            (("steps", "-w", "reward < 1", "-s", "step"), "--where, --sort: of rollouts alone"),
            (("columns", "--steps", "1"), "`list columns` takes --all, --limit"),
            (("runs", "-t", "boxed"), "`list runs` takes --limit"),
        ],
    )
    def test_what_is_not_understood_is_said(
        self, command: Command, arguments: tuple[str, ...], said: str
    ) -> None:
        done = command("list", *arguments)
        assert done.exit_code == (2 if said == "--limit" else 1)
        assert said in f"{done.output} {done.exception}"
