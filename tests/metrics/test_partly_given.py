"""Steps of which only a part came with a column: what was not given is neither NaN nor zero."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rollout_traces.capture.host_copy import capture
from rollout_traces.ledger.build import build_ledger
from rollout_traces.metrics.registry import describe_told_apart
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.packed_batch import PackedBatch, concatenate
from rollout_traces.settings.run_settings import RunSettings
from tests.metrics.builders import of_batch

N, T, PROMPT = 4, 6, 2


def part(seed: int = 0, **columns: Any) -> RolloutBatch:
    """Four rollouts of two prompt and four sampled tokens, in two groups."""
    ids = np.random.default_rng(seed).integers(0, 1000, (N, T))
    ids[:, :PROMPT] = 5
    sampled = np.tile(np.arange(T) >= PROMPT, (N, 1)).astype(int)
    given = {"rewards": [1.0, 0.0, 1.0, 0.0], "group_ids": [2 * seed, 2 * seed, 2 * seed + 1, 2 * seed + 1]}
    given |= {"loss_mask": sampled, "response_mask": sampled}
    given = {key: value for key, value in (given | columns).items() if value is not None}
    return RolloutBatch(input_ids=ids, attention_mask=np.ones((N, T), int), **given)


def one_call(*parts: RolloutBatch) -> PackedBatch:
    return capture(list(parts), step=1, split="rollout")


def two_calls(*parts: RolloutBatch) -> PackedBatch:
    return concatenate([capture([each], step=1, split="rollout") for each in parts])


def tokens(value: float) -> np.ndarray:
    return np.full((N, T), value)


HALVES = np.concatenate([tokens(1.0)[:2], tokens(-1.0)[2:]])
together = pytest.mark.parametrize("step_of", [one_call, two_calls])


class TestNotGiven:
    @together
    def test_is_not_counted_as_not_finite(self, step_of):
        tracks = {
            "advantages": HALVES,
            "logprobs": tokens(-0.5),
            "prox_logprobs": tokens(-0.5),
            "new_logprobs": tokens(-0.5),
            "entropies": tokens(1.0),
            "ref_logprobs": tokens(-0.5),
        }
        found = of_batch(step_of(part(**tracks), part(1, discard_reasons=["max_async"] * N)))
        assert not [key for key in found if key.endswith("_nonfinite")]
        assert found["advantage/mean"] == 0.0 and found["group/zero_advantage_share"] == 0.0

    @together
    def test_what_was_given_as_nan_is_counted(self, step_of):
        broken = HALVES.copy()
        broken[0, 3] = math.nan
        found = of_batch(step_of(part(advantages=broken), part(1)))
        assert found["advantage_nonfinite"] == 1.0

    @together
    def test_components_and_sample_metrics_of_one_part_alone(self, step_of):
        named = {
            "reward_components": {"a": [1.0, 2.0, math.nan, 3.0]},
            "sample_metrics": {"m": [1.0, None, 3.0, 2.0]},
        }
        found = of_batch(step_of(part(**named), part(1)))
        assert found["reward/a/mean"] == 2.0 and found["reward/a_nonfinite"] == 1.0
        assert found["sample/m/mean"] == 2.0 and "sample/m_nonfinite" not in found

    def test_an_unknown_success_is_not_a_failed_one(self):
        found = of_batch(one_call(part(successes=[True, None, None, False])))
        assert found["success/mean"] == 0.5 and "success_nonfinite" not in found

    @together
    def test_rows_without_parsed_answers_are_not_rows_without_an_answer(self, step_of):
        found = of_batch(step_of(part(parsed_answers=["1", None, "2", "2"]), part(1)))
        assert found["format_share"] == 0.75

    @together
    def test_a_threshold_decides_for_rows_without_successes_alone(self, step_of):
        settings = RunSettings(success_threshold=0.5)
        batch = step_of(part(successes=[False, None, None, False]), part(1))
        assert build_ledger(batch, settings).row(1).get("success") is None
        assert of_batch(batch, settings=settings)["success/mean"] == pytest.approx(2 / 6)


class TestWhereKnown:
    @together
    def test_the_update_takes_each_rows_own_logprobs(self, step_of):
        batch = step_of(
            part(advantages=HALVES, logprobs=tokens(-0.5), prox_logprobs=tokens(-0.5)),
            part(1, advantages=HALVES, logprobs=tokens(-0.5)),
        )
        assert build_ledger(batch).get("update_share") == pytest.approx(np.full(2 * N, 1 / (2 * N)))
        assert of_batch(batch)["update/ess_rows"] == pytest.approx(2 * N)

    @together
    def test_a_row_in_the_update_without_logprobs_has_an_unknown_share(self, step_of):
        batch = step_of(part(advantages=HALVES, logprobs=tokens(-0.5)), part(1, advantages=HALVES))
        assert np.isnan(build_ledger(batch).get("update_share")).tolist() == [False] * N + [True] * N

    @together
    def test_the_reference_is_compared_with_each_rows_own_policy(self, step_of):
        batch = step_of(
            part(logprobs=tokens(-9.0), prox_logprobs=tokens(-0.5), ref_logprobs=tokens(-0.75)),
            part(1, logprobs=tokens(-0.5), ref_logprobs=tokens(-1.5)),
        )
        assert of_batch(batch)["ref/k1"] == pytest.approx((0.25 + 1.0) / 2)

    @together
    def test_advantages_a_token_in_one_part_and_a_row_in_the_other(self, step_of):
        found = of_batch(step_of(part(advantages=HALVES), part(1, advantages=np.full(N, 2.0))))
        assert found["advantage/mean"] == 1.0 and "advantage_nonfinite" not in found

    @together
    def test_loss_weights_that_a_part_lacks_are_one(self, step_of):
        shared = {"advantages": HALVES, "logprobs": tokens(-0.5)}
        batch = step_of(part(**shared, loss_weights=tokens(3.0)), part(1, **shared))
        assert build_ledger(batch).get("update_share")[[0, 4]] == pytest.approx([3 / 16, 1 / 16])

    @together
    def test_the_estimate_of_entropy_speaks_of_rows_without_entropies(self, step_of):
        found = of_batch(
            step_of(part(logprobs=tokens(-9.0), entropies=tokens(1.0)), part(1, logprobs=tokens(-0.5)))
        )
        assert found["entropy/mean"] == 1.0 and found["nll_estimate"] == 0.5

    @together
    def test_a_response_mask_of_one_part_holds_for_its_rows(self, step_of):
        loss = np.tile(np.arange(T) == PROMPT, (N, 1)).astype(int)
        versions = np.where(np.arange(T) >= PROMPT, 3, -1) * np.ones((N, 1), int)
        batch = step_of(
            part(loss_mask=loss),
            part(1, response_mask=None),
            part(2, loss_mask=loss, response_mask=None, versions=versions),
        )
        found = of_batch(batch)
        assert (found["tokens/completion/mean"], found["tokens/completion/min"]) == (4.0, 4.0)
        assert batch.response_mask_source == "given"
        assert batch.not_given["response_mask"].tolist() == [False] * N + [True] * N + [False] * N


class TestDenominators:
    def test_a_part_of_the_step_takes_the_steps_range(self):
        found = of_batch(
            one_call(
                part(),
                part(1, rewards=[0.0] * N, discard_reasons=["zero_advantage"] * N),
            )
        )
        assert found["discarded/group/tie_cause/all_worst_share"] == 1.0

    def test_a_ratio_that_is_unknown_is_neither_clipped_nor_not(self):
        new = tokens(-0.1)
        new[2:] = math.nan
        batch = one_call(part(advantages=tokens(1.0), prox_logprobs=tokens(-0.5), new_logprobs=new))
        settings = RunSettings.create(clip_low=0.2, clip_high=0.2)
        assert of_batch(batch, settings=settings)["clip_share_high"] == 1.0
        clipped = build_ledger(batch, settings).get("clip_share")
        assert clipped[:2].tolist() == [1.0, 1.0] and np.isnan(clipped[2:]).all()

    def test_tokens_ahead_of_the_trainer_have_negative_staleness(self):
        versions = np.where(np.arange(T) >= PROMPT, 5, -1) * np.ones((N, 1), int)
        versions[0, PROMPT:] = 7
        found = of_batch(one_call(part(versions=versions, train_version=5)))
        assert found["staleness/mean"] == -0.5 and found["staleness/max"] == 0.0
        assert found["staleness/ahead_share"] == 0.25 and found["staleness/lag_0_share"] == 0.75

    def test_rows_without_tokens_do_not_count_as_not_repeating(self):
        from rollout_traces.capture.host_copy import Capture
        from rollout_traces.spool.record import batch_from_record, decode

        long = np.full((2, 300), 7)
        ones = np.ones((2, 300), int)
        given = RolloutBatch(input_ids=long, attention_mask=ones, loss_mask=ones, group_ids=[0, 1])
        captured = Capture(max_bytes=300 * 8).take([given], step=1, split="rollout")
        batch = batch_from_record(decode(b"".join(bytes(buffer) for buffer in captured.buffers)))
        assert batch.has_tokens.sum() == 1
        assert of_batch(batch)["repetition_share"] == 1.0

    def test_pass_at_k_says_how_many_groups_are_behind_it(self):
        batch = one_call(part(group_ids=[0, 0, 0, 1], successes=[True, False, False, True]))
        found = of_batch(batch)
        assert found["group/pass@1"] == pytest.approx((1 / 3 + 1) / 2) and "group/pass_1_n" not in found
        assert found["group/pass@3"] == 1.0 and found["group/pass_3_n"] == 1.0


class TestNames:
    def test_names_that_cleaning_makes_equal_are_told_apart(self):
        batch = one_call(part(reward_components={"a b": [1.0] * N, "a_b": [0.0] * N}))
        found = of_batch(batch)
        [other] = [key for key in found if key.startswith("reward/a_b_") and key.endswith("/mean")]
        assert found["reward/a_b/mean"] == 0.0 and found[other] == 1.0

    def test_the_summary_of_the_step_says_which_is_which(self):
        batch = one_call(part(reward_components={"a b": [1.0] * N, "a_b": [0.0] * N}))
        assert describe_told_apart(build_ledger(batch)).startswith(
            "Names that are equal in keys but for their last digits: reward component 'a b' is a_b_"
        )
        assert describe_told_apart(build_ledger(one_call(part()))) == ""

    def test_reasons_that_cleaning_makes_equal_are_counted_apart(self):
        batch = one_call(part(stop_reasons=["a.b!", "a.b?", "a.b", "a.b"]))
        found = {key: value for key, value in of_batch(batch).items() if key.startswith("stop/a")}
        assert sorted(found.values()) == [0.25, 0.25, 0.5] and found["stop/a.b_share"] == 0.5
