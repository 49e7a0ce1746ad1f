"""A hook's errors stay out of training: one warning a kind, with the trainer's version; nothing is tried for ever."""

from __future__ import annotations

import dataclasses
import sys
import time
from types import ModuleType, SimpleNamespace

import pytest

from rollout_traces.errors import BatchError
from rollout_traces.integrations import areal, base, trl
from rollout_traces.integrations.base import (
    Integration,
    arguments_of,
    binds,
    contained,
    failures,
    integration_named,
    warn_if_unsupported,
)
from rollout_traces.integrations.hook_logger import HookLogger
from rollout_traces.integrations.run_report import report_of
from tests.generator import BatchPlan, rollout_batch, tiny_tokenizer


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    monkeypatch.setattr(base, "_said", set())
    failures.clear()


class TestContained:
    def test_the_trainers_version_and_the_key_are_named_once(self, caplog):
        @contained("trl")
        def hook(step):
            raise BatchError(f"TRL's batch of step {step}: key 'completion_mask' is missing")

        assert [hook(step) for step in range(3)] == [None] * 3
        assert caplog.text.count("rollout-traces with") == 1
        assert f"rollout-traces with {integration_named('trl')}: BatchError: " in caplog.text
        assert "'completion_mask'" in caplog.text
        assert sum(failures.values()) == 3


class TestSeconds:
    def test_a_hook_inside_a_hook_is_counted_once(self):
        before = report_of("trl").hook_seconds

        @contained("trl")
        def inner():
            time.sleep(0.02)

        @contained("trl")
        def outer():
            inner()

        start = time.perf_counter()
        outer()
        assert 0.02 <= report_of("trl").hook_seconds - before <= time.perf_counter() - start

    def test_the_first_step_is_not_timed_since_it_makes_the_logger(self):
        mine = SimpleNamespace(log_rollouts=lambda *_, **__: None, close_step=lambda *_: None)
        hook = HookLogger("openrlhf", mine, {}, dict)
        report = report_of("openrlhf")
        for step in range(3):
            contained("openrlhf")(hook.log_rollouts)([], step=step, split="rollout")
            hook.close_step(step, "rollout")
        assert report.timed_steps == 2
        assert 0 < report.timed_hook_seconds <= report.timed_seconds


class TestVersions:
    def test_an_untested_version_is_said_once(self, caplog):
        trl_of_tomorrow = dataclasses.replace(integration_named("trl"), supported=">=99")
        for _ in range(3):
            warn_if_unsupported(trl_of_tomorrow)
        assert caplog.text.count("is not among the versions tested (>=99)") == 1
        assert f"trl {trl_of_tomorrow.version}" in caplog.text

    def test_a_version_of_those_it_was_tested_with_is_one(self, monkeypatch):
        trl_of_today = dataclasses.replace(integration_named("trl"), supported=">=1,<2")
        for version, is_tested in (("1.4.0", True), ("1.5.0rc1", True), ("2.0.0", False)):
            monkeypatch.setattr(Integration, "version", property(lambda self, version=version: version))
            assert trl_of_today.is_supported == is_tested

    @pytest.mark.parametrize("version", ["not a version", ""])
    def test_a_version_that_is_none_is_untested(self, monkeypatch, version):
        monkeypatch.setattr(Integration, "version", property(lambda self: version))
        assert not integration_named("trl").is_supported


class TestBinding:
    def test_a_trainer_without_what_is_needed_is_left_alone(self, caplog):
        trainer = SimpleNamespace(
            _generate=lambda prompts: None, callback_handler=SimpleNamespace(callbacks=[])
        )
        before = dict(vars(trainer))
        for _ in range(2):
            trl.attach(trainer)
        assert vars(trainer) == before
        assert (
            caplog.text.count(
                "SimpleNamespace has no _calculate_rewards and no _generate_and_score_completions"
            )
            == 1
        )

    def test_one_with_all_of_it_binds(self):
        assert binds(dataclasses.replace(integration_named("trl"), trainer_points=("real",)), 1)


class TestArguments:
    def test_positions_and_names_come_out_alike(self):
        def commit(epoch, step, global_step, data): ...

        for args, kwargs in (
            ((0, 1, 2, {}), {}),
            ((0, 1), {"global_step": 2, "data": {}}),
        ):
            assert arguments_of(commit, args, kwargs)["global_step"] == 2

    def test_one_that_moved_is_named(self):
        def commit(stats, at): ...

        with pytest.raises(BatchError, match=r"commit: no argument 'global_step'. Seen stats, at"):
            arguments_of(commit, ({}, 3), {})["global_step"]

    def test_a_function_without_a_signature_gives_none(self):
        assert arguments_of(dict.fromkeys, ([],), {}).get("x") is None


class TestHookLogger:
    def test_a_logger_that_cannot_be_made_is_tried_once(self, trackio_dir):
        asked = []

        def from_trainer():
            asked.append(1)
            return {"project": "p", "worker": "nowhere"}

        hook = HookLogger("trl", None, {}, from_trainer)
        for _ in range(3):
            with pytest.raises(Exception, match="worker: seen 'nowhere'"):
                hook.log_rollouts([], step=0, split="rollout")
        assert asked == [1]
        hook.close()

    def test_a_trainer_that_starts_again_begins_an_attempt_with_its_next_rollouts(self):
        calls = []
        mine = SimpleNamespace(
            log_rollouts=lambda *args, **kwargs: calls.append("rollouts"),
            begin_attempt=lambda: calls.append("attempt"),
        )
        hook = HookLogger("trl", mine, {}, dict)
        for _ in range(2):
            hook.start_training()
            hook.start_training()
            hook.log_rollouts([], step=1, split="rollout")
        assert calls == ["rollouts", "attempt", "rollouts"]

    @pytest.mark.parametrize(("leaks", "code"), [(False, 0), (True, 1)])
    def test_check_only_looks_at_the_first_rollouts_and_ends_the_script(
        self, trackio_dir, capsys, leaks, code
    ):
        tokenizer = tiny_tokenizer()
        batch = rollout_batch(tokenizer, BatchPlan(n_groups=2, group_size=4))
        if leaks:
            batch = dataclasses.replace(batch, loss_mask=batch.attention_mask)
        hook = HookLogger("trl", None, {"check_only": True}, lambda: {"project": "p", "tokenizer": tokenizer})
        assert hook.is_on
        with pytest.raises(SystemExit) as ended:
            contained("trl")(hook.log_rollouts)([batch], step=1, split="rollout")
        assert ended.value.code == code
        assert "trl, the first rollouts of rollout:\n8 rollouts of 2 groups" in capsys.readouterr().err
        assert not list(trackio_dir.iterdir())

    def test_a_trainer_that_logs_nothing_for_twenty_steps_is_warned_about_once(self, caplog):
        hook = HookLogger("trl", None, {"max_rollout_traces_per_step": 4}, dict)
        for step in range(60):
            hook.close_step(step, "rollout")
        assert caplog.text.count("no rollouts in the last 20 training steps, up to step 19") == 1
        assert "rollout-traces doctor" in caplog.text

    def test_one_that_logs_now_and_then_is_not(self, caplog):
        mine = SimpleNamespace(log_rollouts=lambda *_, **__: "handle", close_step=lambda *_: None)
        hook = HookLogger("trl", mine, {}, dict)
        for step in range(60):
            if step % 15 == 0:
                hook.log_rollouts([], step=step, split="rollout")
            hook.close_step(step, "rollout")
        assert not caplog.text

    @pytest.mark.parametrize(
        ("options", "is_on"),
        [({}, False), ({"max_rollout_traces_per_step": 0}, False), ({"ledger": True}, True)],
    )
    def test_a_cap_of_nothing_makes_a_logger_only_where_a_ledger_was_asked_for(self, options, is_on):
        assert HookLogger("trl", None, options, dict).is_on is is_on

    def test_what_a_script_says_of_a_hooked_trainer_is_taken_until_something_is_logged(self):
        hook = HookLogger("trl", None, {"max_rollout_traces_per_step": 32}, dict)
        hook.give(None, {"max_rollout_traces_per_step": 4, "selection": "first"})
        assert hook.options == {"max_rollout_traces_per_step": 4, "selection": "first"}
        mine = SimpleNamespace(log_rollouts=lambda *args, **kwargs: "handle", flush=lambda: True)
        hook.give(mine, {})
        assert hook.log_rollouts([], step=0, split="rollout") == "handle"
        hook.give(None, {"selection": "all"})
        assert hook.logger is mine and hook.options["selection"] == "first"
        hook.close()
        assert hook.logger is mine


@pytest.fixture
def cli_args(monkeypatch):
    """A later `TrackioConfig`, with a field that has no plain default and one of ours."""
    module = ModuleType("areal.api.cli_args")

    @dataclasses.dataclass
    class TrackioConfig:
        mode: str = "disabled"
        tags: list = dataclasses.field(default_factory=list, metadata={"help": "labels"})
        max_rollout_traces_per_step: int = 32

        def __post_init__(self):
            assert self.mode in ("disabled", "local")

    module.TrackioConfig = TrackioConfig
    for name in ("areal", "areal.api"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "areal.api.cli_args", module)
    return module


class TestTheConfigOfALaterAreal:
    def test_its_own_fields_defaults_and_checks_stay(self, cli_args):
        areal.extend_config()
        areal.extend_config()
        first, second = cli_args.TrackioConfig(), cli_args.TrackioConfig(mode="local", selection="all")
        assert first.tags == [] and first.tags is not second.tags
        assert (first.max_rollout_traces_per_step, first.chat_template_kwargs) == (32, None)
        assert (second.selection, second.private) == ("all", True)
        [tags] = [item for item in dataclasses.fields(cli_args.TrackioConfig) if item.name == "tags"]
        assert tags.metadata == {"help": "labels"}
        with pytest.raises(AssertionError):
            cli_args.TrackioConfig(mode="elsewhere")


class TestLookingForHookPoints:
    def found(self, points):
        return dataclasses.replace(integration_named("trl"), hook_points=points).missing_hook_points()

    def test_what_moved_and_what_cannot_be_imported_are_told_apart(self):
        assert self.found({"dataclasses": ("dataclass", "Field.gone")}) == [
            "dataclasses:Field.gone is not there"
        ]
        [said] = self.found({"no_such_trainer.loop": ("Trainer.step", "Trainer.log")})
        assert said.startswith("no_such_trainer.loop cannot be imported (ModuleNotFoundError: ")
