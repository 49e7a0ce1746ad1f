"""Settings that differ between runs and attempts, and how far a run had come."""

from __future__ import annotations

import json

import pytest

from rollout_traces.analysis.runs import (
    ConfigDifference,
    config_differences,
    configs_of,
    progress,
    resumed,
    setting_entries,
    setting_text,
    settings_changed,
    settings_of_attempts,
    settings_sentences,
)
from rollout_traces.model.names import EARLIER_KEY
from tests.analysis.builders import table


class TestDifferences:
    def test_are_named_by_dots_in_order(self):
        a = {"lr": 1, "model": {"name": "x", "size": 2}, "only a": None, "same": {}}
        b = {"lr": 2, "model": {"name": "y", "size": 2}, "only b": 3, "same": {}}
        assert config_differences(a, b) == [
            ConfigDifference("lr", 1, 2),
            ConfigDifference("model.name", "x", "y"),
            ConfigDifference("only b", None, 3),
        ]

    def test_of_earlier_configs_and_of_what_nobody_chose_are_none(self):
        differences = config_differences({EARLIER_KEY: "[1]"}, {"_Created": 1, "imported": "x", "lr": 1})
        assert [each.key for each in differences] == ["lr"]

    @pytest.mark.parametrize(("value", "text"), [(None, "not set"), (0.5, "0.5"), ("x" * 200, "x" * 50)])
    def test_are_told_in_a_sentence(self, value, text):
        assert text in setting_text(value) and len(setting_text(value)) < 140


class TestAttempts:
    OLD = {"lr": 1, "_Created": "2026-01-01T00:00:00.000000+00:00"}
    NEW = {"lr": 2, "_Created": "2026-01-03T00:00:00.000000+00:00", EARLIER_KEY: json.dumps([OLD, 7])}

    def test_configs_of_earlier_ones_are_carried_by_the_newest(self):
        assert configs_of(self.NEW) == [self.OLD, self.NEW]
        assert configs_of({EARLIER_KEY: "{", "lr": 1}) == [{EARLIER_KEY: "{", "lr": 1}]

    def test_a_config_belongs_to_the_attempts_that_began_after_it(self):
        attempts = [
            ("20260101T000001.000000Z-001", 0),
            ("20260102T000000.000000Z-002", 5),
            ("20260103T000001.000000Z-003", 9),
        ]
        ((step, changed),) = settings_of_attempts(self.NEW, attempts)
        assert step == 9 and changed == [ConfigDifference("lr", 1, 2)]

    def test_a_config_that_is_made_seconds_after_its_attempt_began_is_that_ones(self):
        """Seen once: a resume with another temperature changed nothing, since Trackio starts after the logger."""
        attempts = [("20260101T000000.000000Z-001", 0), ("20260102T235957.500000Z-001", 18)]
        ((step, changed),) = settings_of_attempts(self.NEW, attempts)
        assert step == 18 and changed == [ConfigDifference("lr", 1, 2)]

    def test_one_from_before_every_config_had_the_first(self):
        attempts = [("20251231T000000.000000Z-001", 0), ("20260104T000000.000000Z-002", 5)]
        assert [step for step, _ in settings_of_attempts(self.NEW, attempts)] == [5]
        assert list(settings_of_attempts(self.OLD, attempts)) == []

    def test_the_steps_at_which_a_run_was_resumed_are_those_of_the_later_ones(self):
        rows = [
            {"step": s, "group": 0, "attempt": a}
            for s, a in ((0, "a1"), (1, "a1"), (1, "a2"), (2, "a2"), (2, "a3"), (0, None))
        ]
        assert resumed(table(rows), "run") == [("a2", 1), ("a3", 2)]
        assert resumed(table(rows), "other") == []
        assert resumed(table([{"step": 0, "group": 0}]), "run") == []

    def test_settings_that_changed_at_one_are_an_entry(self):
        relations = table(
            [
                {"step": s, "group": 0, "attempt": a}
                for s, a in ((0, "20260102T000000.000000Z-1"), (4, "20260104T000000.000000Z-2"))
            ]
        )
        assert setting_entries(relations, "run") == []
        relations.config = lambda run: self.NEW
        (entry,) = setting_entries(relations, "run")
        assert entry.step == 4
        assert entry.sentence == "“lr” was changed at step 4, where the run was resumed: “1” to “2”."
        bare = table([{"step": 0, "group": 0}])
        bare.config = lambda run: self.NEW
        assert setting_entries(bare, "run") == []


class TestTheRunBefore:
    class Runs:
        """Three runs by when they were started, and their configs."""

        class Run:
            def __init__(self, number: int) -> None:
                self.id, self.name, self.started = str(number), f"run {number}", f"2026-01-0{number}"

        def runs(self):
            return [self.Run(2), self.Run(3), self.Run(1)]

        def run(self, name: str):
            return next(run for run in self.runs() if run.name == name)

        def config(self, run_id: str) -> dict:
            return {"lr": int(run_id) // 2, "_Created": run_id}

    def test_an_import_that_adds_a_config_of_its_own_changes_no_setting(self):
        """Seen once: "lr is 5e-07; not set in the run before", of two runs that were imported."""
        store = self.Runs()
        own, earlier = self.Runs.config, {"imported_from": "dump", "_Created": "9"}
        store.config = lambda run_id: {**earlier, EARLIER_KEY: json.dumps([own(store, run_id)])}
        assert settings_changed(store, "run 2") == ("run 1", [ConfigDifference("lr", 0, 1)])

    def test_is_the_one_that_was_started_last_before(self):
        store = self.Runs()
        assert settings_changed(store, "run 1") == ("", [])
        assert settings_changed(store, "run 2") == ("run 1", [ConfigDifference("lr", 0, 1)])
        assert settings_changed(store, "run 3") == ("run 2", [])
        assert settings_sentences(store, "run 1") == settings_sentences(store, "run 3") == []
        assert settings_sentences(store, "run 2") == [
            "Set otherwise than in “run 1”, the run before: “lr” “1” (“0” there)."
        ]


def test_progress_adds_up_rollouts_and_tokens():
    rows = [{"step": s, "group": 0, "n_sampled": n} for s, n in ((0, 5), (0, 7), (2, 1), (1, 10))]
    rows += [{"step": 1, "group": 0, "n_sampled": 99, "split": "eval-rollout"}]
    found = progress(table(rows), "run")
    assert found.steps.tolist() == [0, 1, 2]
    assert found.rollouts.tolist() == [2.0, 3.0, 4.0] and found.tokens.tolist() == [12.0, 22.0, 23.0]
