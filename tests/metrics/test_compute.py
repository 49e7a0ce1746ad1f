"""What is asked for, what is missing, what is declared."""

from __future__ import annotations

import logging
from fnmatch import fnmatchcase

import numpy as np
import pytest

import rollout_traces.metrics as metrics
from rollout_traces.capture.host_copy import capture
from rollout_traces.errors import BatchError, ConfigError
from rollout_traces.metrics import (
    FAMILIES,
    Key,
    check_keys,
    missing_inputs,
    rollout_metrics,
    step_histograms,
    tool_use,
)
from rollout_traces.metrics.registry import (
    as_globs,
    describe,
    family,
    key_part,
    key_parts,
    may_overlap,
    renamed,
)
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.settings.run_settings import Range, RunSettings
from tests.builders import make_packed_batch, make_transcript
from tests.metrics.builders import make_ledger

SETTINGS = RunSettings(
    clip_low=0.2,
    clip_high=0.2,
    importance_cap=2.0,
    importance_band=Range(0.5, 2.0),
    tools=("search",),
    samples_per_prompt=8,
    component_weights={"a": 1.0},
)


@pytest.fixture(scope="module")
def full_batch() -> RolloutBatch:
    """A step that has every input."""
    rng = np.random.default_rng(0)
    B, T = 32, 40
    loss = np.zeros((B, T), bool)
    loss[:, 5:15] = loss[:, 20:] = True
    logprobs = -rng.exponential(0.3, (B, T))
    return RolloutBatch(
        input_ids=rng.integers(0, 50, (B, T)),
        attention_mask=np.ones((B, T), bool),
        loss_mask=loss,
        versions=np.where(loss, rng.integers(1, 4, (B, 1)), -1),
        logprobs=logprobs,
        prox_logprobs=logprobs + rng.normal(0, 0.1, (B, T)),
        new_logprobs=logprobs,
        ref_logprobs=logprobs - 0.1,
        entropies=rng.random((B, T)),
        values=rng.random((B, T)),
        extras=[{"trajectory": b // 2, "call": b % 2} for b in range(B)],
        advantages=rng.normal(size=(B, T)),
        rewards=rng.integers(0, 2, B).astype(float),
        reward_components={"a": rng.random(B)},
        sample_metrics={"calls": rng.random(B)},
        group_ids=np.arange(B) // 8,
        sources=["math", "code"] * (B // 2),
        successes=[bool(b % 3) for b in range(B)],
        parsed_answers=[None if b % 5 == 0 else str(b % 4) for b in range(B)],
        reward_statuses=["ok"] * (B - 1) + ["timeout"],
        stop_reasons=["eos", "length"] * (B // 2),
        discard_reasons=[None] * (B - 2) + ["too_long", "max_async"],
        train_version=3,
    )


@pytest.fixture(scope="module")
def uses() -> dict:
    transcript = make_transcript([("user", "a"), ("assistant", "b"), ("tool", "12")], calls=[("search", {})])
    return dict.fromkeys(range(32), tool_use(transcript))


class TestAlone:
    def test_it_works_on_what_a_trainer_holds(self, full_batch):
        found = rollout_metrics(full_batch)
        assert all(key.startswith("rollout/") for key in found)
        assert found["rollout/count/samples"] == 32.0
        assert all(type(value) is float and np.isfinite(value) for value in found.values())

    def test_evaluation_has_keys_of_its_own(self, full_batch):
        assert "eval-rollout/reward/mean" in rollout_metrics(full_batch, split="eval-rollout")

    def test_an_empty_step_gives_no_key(self):
        empty = make_packed_batch([], [], group_ids=np.zeros(0, np.int64))
        assert rollout_metrics(empty, keys="full") == {}

    def test_a_wrong_shape_names_the_key_and_both_shapes(self):
        ids = np.zeros((2, 4), int)
        with pytest.raises(BatchError, match=r"logprobs.*\(2, 3\).*\(2, 4\)"):
            rollout_metrics(
                {"input_ids": ids, "attention_mask": ids, "loss_mask": ids, "logprobs": np.zeros((2, 3))}
            )

    def test_the_ledger_alone_gives_what_needs_no_tokens(self):
        found = rollout_metrics(None, make_ledger(reward=[1, 0]), keys="full")
        assert found["rollout/reward/mean"] == 0.5
        assert not [key for key in found if "diversity" in key]


class TestKeys:
    def test_the_default_set_stays_readable(self, full_batch):
        found = rollout_metrics(full_batch, settings=SETTINGS)
        own = [key for key in found if "/source/" not in key]
        assert 35 <= len(own) <= 60

    def test_default_keys_are_part_of_the_full_set_with_the_same_values(self, full_batch):
        full = rollout_metrics(full_batch, keys="full", settings=SETTINGS)
        default = rollout_metrics(full_batch, settings=SETTINGS)
        assert default.items() <= full.items() and len(full) > 2 * len(default)

    def test_patterns_add_to_the_default_or_stand_alone(self, full_batch):
        only = rollout_metrics(full_batch, keys=["group/pass@*"])
        assert set(only) == {f"rollout/group/pass@{k}" for k in (1, 2, 4, 8)}
        assert set(only) < set(rollout_metrics(full_batch, keys=["default", "rollout/group/pass@*"]))

    def test_a_pattern_with_an_exclamation_mark_takes_keys_away(self, full_batch):
        found = rollout_metrics(full_batch, keys=["default", "!reward/*"])
        assert (
            not [key for key in found if key.startswith("rollout/reward/")] and "rollout/turns/mean" in found
        )

    @pytest.mark.parametrize(
        "pattern",
        ["default", "full", "!reward/*", "rollout/group/pass@*", "reward/format/mean", "reward/f*", "*/mean",
         "source/math/reward/*", "discarded/share", "stop/length_share", "*"],
    )  # fmt: skip
    def test_patterns_that_may_match_are_taken(self, pattern):
        check_keys(pattern)

    @pytest.mark.parametrize("pattern", ["rewrd/*", "nope", "!rewards/mean", "group/pas@1", "entropy/median"])
    def test_patterns_that_match_nothing_are_refused_by_name(self, pattern):
        with pytest.raises(ConfigError, match="matches no metric") as refused:
            check_keys(["default", pattern])
        assert repr(pattern) in str(refused.value)

    def test_a_refused_pattern_is_given_keys_that_are_written_alike(self):
        with pytest.raises(ConfigError, match=r"such as .*reward/mean"):
            check_keys("rewards/mean")

    def test_every_declared_key_may_be_asked_for(self):
        check_keys(
            [glob for spec in FAMILIES.values() for key in spec.keys for glob in as_globs(key.pattern)]
        )

    def test_declared_patterns_expand(self):
        assert as_globs("a/{b,c}[_x]/<name>") == ("a/b/*", "a/b_x/*", "a/c/*", "a/c_x/*")
        assert as_globs("{a,b}") == ("a", "b") and as_globs("[x_]<name>s") == ("*s", "x_*s")

    @pytest.mark.parametrize(
        ("one", "other", "may"),
        [
            ("a/b", "a/b", True),
            ("a/b", "a/c", False),
            ("a/*", "a/c", True),
            ("a/*", "b/*", False),
            ("a/*", "*/c", True),
            ("*/mean", "a/std", False),
            ("a*x", "ab*yx", True),
            ("a*x", "ab*y", False),
            ("*", "anything", True),
            ("a[bc]d", "a?d", True),
        ],
    )
    def test_two_patterns_may_overlap_or_cannot(self, one, other, may):
        assert may_overlap(one, other) == may_overlap(other, one) == may


class TestEachFamilySeesItsRows:
    def test_pass_rates_count_an_episode_once_and_rewards_count_each_row(self):
        ledger = make_ledger(
            episode=["a", "a", "b"], success=[1, 1, 0], reward=[1, 1, 0], n_sampled=[4, 6, 8]
        )
        found = rollout_metrics(None, ledger, keys="full")
        assert found["rollout/success/mean"] == 0.5
        assert found["rollout/reward/mean"] == pytest.approx(2 / 3)
        assert found["rollout/tokens/completion/mean"] == 6.0

    def test_a_source_has_the_metrics_of_its_own_rows(self):
        ledger = make_ledger(source=["math", "code", "math", None], reward=[1.0, 0.25, 0.5, 9.0])
        found = rollout_metrics(None, ledger, keys="full")
        assert found["rollout/source/math/reward/mean"] == 0.75
        assert found["rollout/source/code/reward/mean"] == 0.25
        assert not [key for key in found if "source/" in key and "discarded" in key]

    @pytest.mark.parametrize("keys", ["default", ("default", "!stop/*")])
    def test_by_default_a_source_has_the_means_of_its_rewards_and_successes_alone(self, keys):
        ledger = make_ledger(source=["math", "code"] * 2, reward=[1.0, 0.25, 0.5, 9.0], success=[1, 0, 1, 1])
        found = rollout_metrics(None, ledger, keys=keys)
        of_source = {key.split("source/")[1] for key in found if "source/" in key}
        assert of_source == {f"{name}/{of}/mean" for name in ("math", "code") for of in ("reward", "success")}

    def test_one_source_alone_has_none_of_its_own(self):
        found = rollout_metrics(None, make_ledger(source=["math"] * 2, reward=[1.0, 0.5]), keys="full")
        assert not [key for key in found if "source/" in key]

    def test_the_split_is_that_of_the_rows_where_they_agree(self):
        of_eval = make_ledger(split=["eval-rollout"] * 2, reward=[1.0, 0.0])
        assert set(rollout_metrics(None, of_eval, keys="reward/mean")) == {"eval-rollout/reward/mean"}
        mixed = make_ledger(split=["eval-rollout", "rollout"], reward=[1.0, 0.0])
        assert set(rollout_metrics(None, mixed, keys="reward/mean")) == {"rollout/reward/mean"}

    def test_of_nothing_nothing_is_computed(self):
        with pytest.raises(ValueError, match="neither a batch nor a ledger"):
            rollout_metrics(None)


class TestWhatFamiliesSay:
    def test_statistics_are_of_the_finite_values_and_the_others_are_counted(self):
        found = describe("x", np.arange(101), ("mean", "min", "max", "p05", "p95"))
        assert found == {"x/mean": 50.0, "x/min": 0.0, "x/max": 100.0, "x/p05": 5.0, "x/p95": 95.0}
        some = np.asarray([[np.nan, 2.0], [4.0, np.inf]])
        assert describe("x", some, ("mean", "std")) == {"x_nonfinite": 2.0, "x/mean": 3.0, "x/std": 1.0}
        assert describe("x", np.asarray([np.nan])) == {"x_nonfinite": 1.0}
        assert describe("x", np.zeros(0)) == {}

    def test_only_the_beginning_of_a_key_is_renamed(self):
        assert renamed({"a/a/b": 1.0, "c": 2.0}, "a/", "x_") == {"x_a/b": 1.0, "c": 2.0}

    def test_a_name_of_the_data_is_one_part_of_a_key(self):
        assert key_part(" a b/c<d> ") == "a_b_c_d" and key_part("//") == "unnamed"
        assert key_part("x" * 100) == "x" * 48
        parts = key_parts(["y" * 60, "y" * 61, "z"])
        assert parts["z"] == "z" and len(set(parts.values())) == 3
        assert all(len(part) == 48 and part[43] == "_" for name, part in parts.items() if name != "z")


class TestGroupsOfOne:
    def test_what_compares_the_samples_of_a_prompt_is_off_and_says_so(self):
        alone = make_ledger(reward=[1, 0], n_sampled=[3, 4], group=[0, 1])
        together = make_ledger(reward=[1, 0], n_sampled=[3, 4], group=[0, 0])
        assert missing_inputs(None, alone)["group_ties"] == ("group_ids",)
        assert "group_ids" in missing_inputs(None, alone)["group_lengths"]
        assert "group_ties" not in missing_inputs(None, together)
        assert rollout_metrics(None, alone, keys="full")["rollout/group/single_share"] == 1.0


class TestRegistry:
    def test_every_family_runs_on_a_step_that_has_everything_and_gives_only_declared_keys(
        self, full_batch, uses
    ):
        from rollout_traces.metrics.compute import step_view
        from rollout_traces.metrics.registry import families_off

        view = step_view(full_batch, None, "rollout", SETTINGS, uses, {"own": [1.0] * 4})
        view = type(view)(
            view.ledger.with_columns(n_thinking=np.arange(32)), view.batch, SETTINGS, uses, {"own": [1.0] * 4}
        )
        for spec in FAMILIES.values():
            if spec.name in ("nll_estimate", "compression"):  # no row is without entropies, or long enough
                continue
            assert not families_off((spec,), view), spec.name
            found = spec.function(view)
            assert found, spec.name
            globs = [glob for key in spec.keys for glob in as_globs(key.pattern)]
            for key in found:
                assert any(fnmatchcase(key, glob) for glob in globs), (spec.name, key)

    def test_a_name_cannot_be_taken_twice(self):
        with pytest.raises(ValueError, match="'reward'"):
            family("reward", reads="ledger", source="", keys=())(lambda view: {})

    def test_a_family_of_ones_own_is_one_function(self, full_batch, monkeypatch):
        monkeypatch.setattr(metrics.registry, "FAMILIES", dict(FAMILIES))
        monkeypatch.setattr(metrics.compute, "FAMILIES", metrics.registry.FAMILIES)

        @family("mine", reads="ledger", source="ours", keys=(Key("mine/even_share", "even rewards"),))
        def mine(view):
            return {"mine/even_share": float((view.rewards % 2 == 0).mean())}

        assert "rollout/mine/even_share" in rollout_metrics(full_batch, keys=["mine/*"])

    def test_a_family_that_fails_costs_only_its_own_keys_and_says_so(self, full_batch, monkeypatch, caplog):
        monkeypatch.setattr(metrics.compute, "FAMILIES", dict(FAMILIES))
        broken = FAMILIES["reward"].__class__(
            "broken", "ledger", (), (Key("x", "x", default=True),), "", lambda view: 1 / 0
        )
        metrics.compute.FAMILIES["broken"] = broken
        with caplog.at_level(logging.WARNING):
            found = rollout_metrics(full_batch)
        assert found["rollout/metrics_failed"] == 1.0 and "rollout/reward/mean" in found
        assert "broken" in caplog.text and "ZeroDivisionError" in caplog.text

    def test_a_family_that_gives_no_key_that_was_asked_for_is_not_run(self, full_batch, monkeypatch):
        monkeypatch.setattr(metrics.compute, "FAMILIES", dict(FAMILIES))
        broken = FAMILIES["reward"].__class__(
            "broken", "ledger", (), (Key("broken/<name>_share", "x"),), "", lambda view: 1 / 0
        )
        metrics.compute.FAMILIES["broken"] = broken
        for keys in (["reward/mean"], ["reward/mean", "group/*"], "default"):
            found = rollout_metrics(full_batch, keys=keys)
            assert "rollout/reward/mean" in found and "rollout/metrics_failed" not in found
        for keys in (["broken/mine_share"], ["*_share"], ["default", "broken/*"], "full"):
            assert rollout_metrics(full_batch, keys=keys)["rollout/metrics_failed"] == 1.0


class TestMissingInputs:
    def test_what_is_off_and_why(self):
        batch = make_packed_batch([[1, 2]], [[0, 1]], row_floats={"rewards": np.ones(1)})
        off = missing_inputs(batch)
        assert off["mismatch"] == ("logprobs", "prox_logprobs")
        assert off["clip_share"] == ("new_logprobs", "prox_logprobs", "advantages", "clip_low", "clip_high")
        assert "reward" not in off and "diversity" not in off

    def test_a_ledger_alone_lacks_the_tokens(self):
        assert missing_inputs(None, make_ledger(reward=[1]))["diversity"] == ("the population's tokens",)

    def test_nothing_is_reported_that_was_not_asked_for(self):
        batch = make_packed_batch([[1, 2]], [[0, 1]])
        assert "ppo_ratio" in missing_inputs(batch) and "ppo_ratio" not in missing_inputs(
            batch, keys="default"
        )


class TestHistograms:
    def test_rewards_and_lengths_as_plain_arrays(self):
        ledger = make_ledger(
            reward=[1, 0, None, 5], reward_status=["ok", "ok", "ok", "error"], n_sampled=[3, 4, None, 6]
        )
        arrays = step_histograms(ledger, "eval-rollout")
        assert arrays["eval-rollout/reward/histogram"].tolist() == [1.0, 0.0]
        assert arrays["eval-rollout/tokens/completion/histogram"].tolist() == [3.0, 4.0, 6.0]

    def test_nothing_known_gives_no_histogram(self):
        assert step_histograms(make_ledger(n_turns=[1])) == {}


def test_metrics_of_a_step_of_two_parts_equal_those_of_the_whole(full_batch):
    from rollout_traces.model import packed_batch

    whole = capture([full_batch], step=1, split="rollout")
    doubled = packed_batch.concatenate([whole, whole])
    once, twice = rollout_metrics(whole), rollout_metrics(doubled)
    same = ("reward/mean", "reward/std", "mismatch/k3", "group/tie_share", "tokens/completion/p95")
    for key in same:
        assert twice[f"rollout/{key}"] == pytest.approx(once[f"rollout/{key}"]), key


def test_a_key_is_computed_or_the_trainer_s_own():
    for key in ("rollout/reward/mean", "eval-rollout/success/mean", "rollout/source/math/reward/mean"):
        assert metrics.is_computed(key)
    for key in ("rollout/queue_size", "reward/mean", "train/loss", "eval-rollout/seconds"):
        assert not metrics.is_computed(key)
