from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollout_traces.store import Store, open_store
from rollout_traces.store.step_metrics import summarise_steps
from tests.cli.conftest import Command
from tests.store.projects import PROJECT, RUN, conversation, store_values


class TestStats:
    def test_a_line_a_step(self, command: Command) -> None:
        lines = json.loads(command("stats", "--json").stdout)["rows"]
        assert [(line["split"], line["step"], line["rollouts"], line["traced"]) for line in lines] == [
            ("rollout", 0, 8, 3),
            ("rollout", 1, 8, 3),
            ("rollout", 2, 8, 3),
            ("eval-rollout", 2, 2, 1),
        ]

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
