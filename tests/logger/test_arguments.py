"""What a caller gives a logger: understood, or refused with its name."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from rollout_traces.errors import BatchError, ConfigError
from rollout_traces.logger.arguments import (
    awaited_keys,
    batches_of_call,
    check_cap,
    check_choice,
    check_split,
    checked_options,
    naming,
    plain_step,
)
from rollout_traces.model.counted_warnings import Warnings
from rollout_traces.sink.webhook import ENVIRONMENT
from rollout_traces.steps.options import StepOptions
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer


def options(**given: object) -> StepOptions:
    return StepOptions.of(project="p", name="run", **given)


class TestSteps:
    @pytest.mark.parametrize("step", [0, -1, 7.0, np.int32(7), np.float64(3.0), 2**63 - 1, -(2**63)])
    def test_whole_numbers_are_steps(self, step) -> None:
        assert plain_step(step) == int(step) and type(plain_step(step)) is int

    @pytest.mark.parametrize(
        "step", [None, "x", "12", 1.5, True, 2**63, -(2**63) - 1, float("nan"), float("inf"), [1]]
    )
    def test_others_are_refused(self, step) -> None:
        with pytest.raises(BatchError, match=r"step: seen .*Expected the trainer's global step"):
            plain_step(step)

    def test_a_split_is_one_of_two(self) -> None:
        check_split("rollout"), check_split("eval-rollout")
        with pytest.raises(BatchError, match=r"split: seen 'train'\. Expected one of rollout, eval-rollout"):
            check_split("train")


class TestOptions:
    @pytest.mark.parametrize("cap", [True, 1.0, "3", None])
    def test_a_number_of_traces_is_an_int(self, cap) -> None:
        check_cap(0), check_cap(-1)
        with pytest.raises(ConfigError, match="max_rollout_traces_per_step: seen"):
            check_cap(cap)

    def test_one_of_some_choices_is_named_with_them(self) -> None:
        check_choice("worker", "thread", ("process", "thread"))
        with pytest.raises(ConfigError, match=r"worker: seen 'gpu'\. Expected one of process, thread"):
            check_choice("worker", "gpu", ("process", "thread"))

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"resume": "perhaps"}, "resume: seen 'perhaps'"),
            ({"worker": "gpu"}, "worker: seen 'gpu'"),
            ({"selection": "no such"}, "no such"),
            ({"flag_parameters": {"stale.limits": 3}}, "stale.limits"),
            ({"metric_keys": ("no such",)}, "no such"),
            ({"alert_webhook": "no address"}, "alert_webhook|webhook"),
        ],
    )
    def test_what_cannot_be_understood_is_refused_by_its_name(self, given, said, monkeypatch) -> None:
        monkeypatch.delenv(ENVIRONMENT, raising=False)
        with pytest.raises(ConfigError, match=said):
            checked_options(options(**given), None)

    def test_what_the_run_declares_is_read_from_its_config_and_its_options(
        self, monkeypatch, tmp_path
    ) -> None:
        monkeypatch.delenv(ENVIRONMENT, raising=False)
        monkeypatch.chdir(tmp_path)
        given = options(
            reward_range=(0.0, 1.0), all_rows_folder="rows", run_settings={"success_threshold": 0.5}
        )
        found = checked_options(given, {"rollout_traces": {"clip_low": 0.2}})
        assert (found.settings.reward_range.min, found.settings.reward_range.max) == (0.0, 1.0)
        assert (found.settings.success_threshold, found.settings.clip_low) == (0.5, 0.2)
        assert found.all_rows_folder == str(tmp_path / "rows") and found.alert_webhook is None

    def test_a_webhook_may_come_from_the_environment(self, monkeypatch) -> None:
        monkeypatch.setenv(ENVIRONMENT, "https://example.org/hook")
        assert checked_options(options(), None).alert_webhook == "https://example.org/hook"
        own = options(alert_webhook="https://example.org/own")
        assert checked_options(own, None).alert_webhook == "https://example.org/own"

    def test_an_error_of_something_else_is_named_and_one_of_our_own_stays(self) -> None:
        with pytest.raises(ConfigError, match="tokenizer: ValueError: no vocabulary"), naming("tokenizer"):
            raise ValueError("no vocabulary")
        with pytest.raises(BatchError, match=r"^as it is$"), naming("tokenizer"):
            raise BatchError("as it is")


class TestAwaitedKeys:
    def test_a_name_that_cannot_be_joined_is_left_out_and_counted(self) -> None:
        counters: Counter[str] = Counter()
        assert awaited_keys(["losses", "lossses"], Warnings(counters)) == ["losses"]
        assert counters == {"keys_misspelt": 1}

    @pytest.mark.parametrize(("given", "found"), [("losses", ["losses"]), (None, []), ((), [])])
    def test_one_or_none_may_be_given(self, given, found) -> None:
        counters: Counter[str] = Counter()
        assert awaited_keys(given, Warnings(counters)) == found and not counters


class TestBatches:
    def group(self, seed: int = 0) -> dict:
        arrays = batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=1, group_size=2, seed=seed))
        arrays.pop("group_ids")
        return arrays

    def test_each_dict_of_a_list_is_a_group(self) -> None:
        counters: Counter[str] = Counter()
        parts = batches_of_call([self.group(1), None, self.group(2)], "call", Warnings(counters))
        groups = [set(np.asarray(part.group_ids).tolist()) for part in parts]
        assert len(groups) == 2 and all(len(group) == 1 for group in groups) and groups[0] != groups[1]
        assert counters == {"trajectories_missing": 1}

    def test_one_that_is_odd_does_not_take_its_siblings(self) -> None:
        counters: Counter[str] = Counter()
        assert len(batches_of_call([{"input_ids": "x"}, self.group()], "call", Warnings(counters))) == 1
        assert counters["batches_refused"] == 1

    def test_keys_that_nobody_knows_are_counted_and_said_once(self, caplog) -> None:
        counters: Counter[str] = Counter()
        warnings = Warnings(counters)
        for _ in range(2):
            batches_of_call({**self.group(), "rewardz": [1.0, 0.0], "mine": 3}, "call", warnings)
            batches_of_call([{**self.group(), "rewardz": [1.0, 0.0], "mine": 3}], "call", warnings)
        assert counters["keys_left_out"] == 8
        assert caplog.text.count("rewardz, mine") == 1
