from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rollout_traces.cli import build_app
from rollout_traces.store import Store, open_store
from rollout_traces.store.step_metrics import summarise_steps
from tests.cli.conftest import Command
from tests.store.projects import (
    PROJECT,
    RUN,
    conversation,
    make_ledger,
    store_values,
    write_resumed,
    write_step,
)


class TestStats:
    def test_a_line_a_step(self, command: Command) -> None:
        lines = json.loads(command("stats", "--json").stdout)["rows"]
        assert [(line["split"], line["step"], line["rollouts"], line["traced"]) for line in lines] == [
            ("rollout", 0, 8, 3),
            ("rollout", 1, 8, 3),
            ("rollout", 2, 8, 3),
            ("eval-rollout", 2, 2, 1),
        ]

    def test_flags_that_need_text_say_of_how_many_kept_rollouts_they_are(self, trackio_dir: Path) -> None:
        flags = {0: ["tool_error", "tied_group"], 1: ["tied_group"], 2: ["tied_group"]}
        write_step(make_ledger([[0, 0, 0], [1, 0, 1]], step=0, traced=[0, 3], flags=flags), [0, 3])
        shown = CliRunner().invoke(build_app(["stats"]), ["stats"], env={"COLUMNS": "200"}).stdout
        assert "tied_group 3, tool_error 1 of 2 kept" in shown
        assert summarise_steps(open_store(PROJECT))[0]["flags"] == {"tied_group": 3, "tool_error": 1}

    def test_a_column_as_bars(self, command: Command) -> None:
        output = command("stats", "flags", "--all").output
        assert "truncated" in output and "█" * 40 in output

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            (("reward", "--bins", "2", "--steps", "0"), {"0 … 0.5": 2, "0.5 … 1": 1}),
            (("reward", "--steps", "0"), {"0": 1, "0.25": 1, "1": 1}),
            (("flags", "--all", "--steps", "0"), {"truncated": 2, "repetition": 1, "tied_group": 1}),
            (("reward", "--bins", "1", "--all", "--steps", "0"), {"0 … 1": 7, "unknown": 1}),
        ],
    )
    def test_counts_of_a_column(self, command: Command, arguments: tuple[str, ...], expected: dict) -> None:
        found = json.loads(command("stats", "--json", *arguments).stdout)["rows"]
        assert {entry["value"]: entry["count"] for entry in found} == expected

    def counted(self, command: Command, *arguments: str) -> list[tuple]:
        rows = json.loads(command("stats", "--json", *arguments).stdout)["rows"]
        return [tuple(row.values()) for row in rows]

    def test_numbers_stand_in_their_order_and_the_unknown_last(self, command: Command) -> None:
        asked = ("reward", "--all", "--steps", "0", "--split", "rollout")
        assert self.counted(command, *asked) == [
            ("0", 1),
            ("0.25", 4),
            ("0.5", 1),
            ("1", 1),
            ("unknown", 1),
        ]
        assert self.counted(command, *asked, "--bins", "4") == self.counted(command, *asked)
        assert self.counted(command, *asked, "--bins", "3") != self.counted(command, *asked)

    def test_splits_are_counted_apart_where_there_are_several(self, command: Command) -> None:
        assert {row[0] for row in self.counted(command, "reward", "--all")} == {"rollout", "eval-rollout"}
        first, *_ = self.counted(command, "reward", "--all", "--where", "step = 1")
        assert first == ("0", 1)
        assert self.counted(command, "reward", "--all", "--where", "step = 99") == []

    def test_a_bar_is_as_long_as_its_part_of_the_longest(self, command: Command) -> None:
        output = command("stats", "reward", "--all", "--steps", "0", "--split", "rollout").output
        bars = {line.split()[0]: line.count("█") for line in output.splitlines() if "█" in line}
        assert bars == {"0": 10, "0.25": 40, "0.5": 10, "1": 10, "unknown": 10}
        assert "all rollouts" in output
        assert "--all counts every rollout" in command("stats", "reward").output

    def test_the_one_word_is_a_column_where_no_run_has_that_name(self, command: Command) -> None:
        assert self.counted(command, "reward", "--steps", "0") == self.counted(
            command, RUN, "reward", "--steps", "0"
        )
        assert command("stats", "nothing").exit_code != 0
        lines = json.loads(command("stats", RUN, "--json").stdout)["rows"]
        assert len(lines) == 4

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("reward", "--by", "group"), "leave 'reward' out"),
            (("reward", "--mean", "reward"), "leave 'reward' out"),
            (("--where", "step = 1"), "name one, such as reward"),
            (("--text", "boxed"), "name one, such as reward"),
            (("--all",), "name one, such as reward"),
        ],
    )
    def test_what_does_not_go_together_is_refused(
        self, command: Command, arguments: tuple[str, ...], said: str
    ) -> None:
        done = command("stats", *arguments)
        assert done.exit_code == 1 and said in str(done.exception)

    def test_columns_may_be_named_with_commas(self, command: Command) -> None:
        asked = ("stats", "--split", "rollout", "--min", "reward,n_sampled", "--max", "reward", "--json")
        [row] = json.loads(command(*asked).stdout)["rows"]
        assert (row["min(reward)"], row["min(n_sampled)"], row["max(reward)"]) == (0.0, 5, 1.0)
        assert row["rollouts"] == 24

    def test_of_no_rollouts_there_is_nothing_to_tell(self, command: Command) -> None:
        asked = ("stats", "--by", "group", "--where", "step = 99")
        assert "no rollouts yet" in command(*asked).output
        assert "unobserved" not in command(*asked).output

    def test_figures_by_the_values_of_a_column_never_mix_splits(self, command: Command) -> None:
        """Seen once: stats only counted."""
        """Seen once: stats mixed splits, and kept rows with all."""
        asked = ("stats", "--by", "group", "--mean", "reward", "--p95", "n_sampled", "--json")
        lines = {(line["split"], line["group"]): line for line in json.loads(command(*asked).stdout)["rows"]}
        assert set(lines) == {("rollout", 0), ("rollout", 1), ("eval-rollout", 0)}
        assert lines["rollout", 0]["mean(reward)"] == pytest.approx(0.5)
        assert lines["eval-rollout", 0]["mean(reward)"] == 1.0
        assert lines["rollout", 1]["p95(n_sampled)"] == pytest.approx(75.0)
        assert lines["rollout", 1]["rollouts"] == 12

    def test_a_figure_that_no_rollout_has_is_said_to_be_unobserved(self, command: Command) -> None:
        output = command("stats", "--by", "split", "--mean", "mismatch_k3").output
        assert "unobserved in these rollouts: mean(mismatch_k3)" in output

    def test_a_figure_of_a_text_is_refused(self, command: Command) -> None:
        """Seen once: it was said to be unobserved."""
        said = str(command("stats", "--mean", "stop_reason").exception)
        assert said.startswith("mean(stop_reason): stop_reason is text; expected a column of numbers.")

    def test_a_word_that_is_neither_run_nor_column_is_said_to_be_neither(self, command: Command) -> None:
        said = str(command("stats", "nosuch").exception)
        assert "no run 'nosuch'" in said and "Nor is it a column" in said


class TestSummary:
    def test_figures_are_those_of_all_rollouts(self, store: Store) -> None:
        (summary,) = summarise_steps(store, RUN, "rollout", (1, 1))
        assert summary["reward/mean"] == pytest.approx((1.0 + 0.0 + 0.5 + 4 * 0.25) / 7)
        assert summary["group/tie_share"] == 0.5
        assert summary["flags"] == {"truncated": 2, "repetition": 1, "tied_group": 1}
        assert summary["tokens/completion/mean"] == 40.0
        assert summary["stop/length_share"] is None and summary["staleness/max"] is None

    def test_steps_without_a_ledger_speak_of_their_traces(self, trackio_dir: Path) -> None:
        chat = [{"role": "user", "content": "hi"}]
        for reward in (1.0, 0.0):
            store_values(
                conversation("rollouts", chat, reward=reward, group_id=0, stop_reason="length"), step=5
            )
        (summary,) = summarise_steps(open_store(PROJECT))
        assert (summary["step"], summary["rollouts"], summary["traced"]) == (5, 2, 2)
        assert summary["reward/mean"] == 0.5 and summary["group/tie_share"] == 0.0
        assert summary["stop/length_share"] == 1.0


@pytest.mark.usefixtures("trackio_dir")
class TestAResumedRun:
    def asked(self, *arguments: str) -> str:
        write_resumed()
        found = CliRunner().invoke(build_app(["stats"]), ["stats", *arguments], env={"COLUMNS": "200"})
        assert found.exit_code == 0, found.output
        return found.stdout

    def test_a_column_is_counted_without_what_was_superseded_and_infinity_has_its_name(self) -> None:
        rows = json.loads(self.asked("reward", "--all", "--json"))["rows"]
        assert {row["value"]: row["count"] for row in rows} == {"0": 3, "0.5": 1, "1": 3, "Infinity": 1}
        rows = json.loads(self.asked("reward", "--all", "--bins", "2", "--json"))["rows"]
        assert rows[-1] == {"value": "Infinity", "count": 1}

    def test_late_rollouts_stand_beside_those_that_the_metrics_speak_of(self) -> None:
        rows = json.loads(self.asked("--json"))["rows"]
        assert [(row["step"], row["rollouts"], row["late"]) for row in rows] == [(0, 4, 0), (1, 4, 1)]
        assert "4, 1 late" in self.asked()

    def test_runs_are_counted_apart_where_there_are_several(self) -> None:
        write_step(make_ledger([[1.0, 0.0]], step=0, batch="other-"), (), run=("other", "other-id"))
        rows = json.loads(self.asked("reward", "--all", "--json"))["rows"]
        assert [row for row in rows if row["run"] == "other"] == [
            {"run": "other", "value": "0", "count": 1},
            {"run": "other", "value": "1", "count": 1},
        ]
        assert sum(row["count"] for row in rows if row["run"] == RUN) == 8
