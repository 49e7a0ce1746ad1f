"""Versions, mismatch, identities, PPO, entropy, reference."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rollout_traces.metrics import identity_checks, missing_inputs
from rollout_traces.metrics.policy import effective_share
from rollout_traces.settings.run_settings import RunSettings
from tests.builders import make_packed_batch
from tests.metrics.builders import make_ledger, of_batch, of_ledger, sampled_rows

ROLLOUT = [-1.0, -2.0, -0.5, -0.5]
TRAIN = [-1.5, -1.0, -0.5, -1.0]
D = np.asarray(TRAIN) - np.asarray(ROLLOUT)


def two_policies(**more):
    """Two rows of two sampled tokens."""
    tracks = {"logprobs": ROLLOUT, "prox_logprobs": TRAIN, **more.pop("tracks", {})}
    return sampled_rows([1, 2], [3, 4], tracks=tracks, **more)


class TestVersions:
    def test_a_rollout_of_two_versions_is_mixed(self):
        found = of_ledger(make_ledger(version_min=[3, 4, 6, None], version_max=[4, 4, 6, None]))
        assert found["staleness/mixed_share"] == pytest.approx(1 / 3)
        assert (found["version/min"], found["version/max"]) == (3.0, 6.0)

    def test_staleness_is_over_sampled_tokens(self):
        batch = make_packed_batch(
            [[1, 2, 3, 4]],
            [[0, 1, 1, 1]],
            tracks={"versions": np.asarray([-1, 5, 5, 3], np.int32)},
            train_version=6,
        )
        found = of_batch(batch)
        assert found["staleness/mean"] == pytest.approx(5 / 3) and found["staleness/max"] == 3.0

    def test_each_lag_has_its_share_and_what_is_older_the_last_one(self):
        versions = [9, 8, 8, 7, 6, 6, 6, 5, 4, -1]
        found = of_batch(sampled_rows([1] * 10, tracks={"versions": versions}, train_version=9))
        lags = {key: 9 * value for key, value in found.items() if "lag_" in key or "ahead" in key}
        assert lags == pytest.approx(
            {
                "staleness/lag_0_share": 1,
                "staleness/lag_1_share": 2,
                "staleness/lag_2_share": 1,
                "staleness/lag_3_share": 3,
                "staleness/lag_4_plus_share": 2,
            }
        )

    def test_tokens_ahead_of_the_trainer_share_one_key(self):
        found = of_batch(sampled_rows([1] * 4, tracks={"versions": [10, 12, 9, 8]}, train_version=9))
        assert found["staleness/ahead_share"] == 0.5 and found["staleness/lag_1_share"] == 0.25
        assert found["staleness/mean"] == -0.75 and found["staleness/max"] == 1.0

    def test_tokens_of_unknown_version_give_no_staleness_and_fail_nothing(self):
        tracks = {name: [math.nan] * 2 for name in ("logprobs", "prox_logprobs", "ref_logprobs", "entropies")}
        found = of_batch(sampled_rows([1, 2], tracks={"versions": [-1, -1], **tracks}, train_version=9))
        assert not [key for key in found if key.startswith(("staleness", "version", "identity", "ref/"))]
        assert not [key for key in found if key.startswith("mismatch/")]
        assert found["mismatch_nonfinite"] == found["entropy_nonfinite"] == 2.0
        assert "metrics_failed" not in found


class TestMismatch:
    def test_every_measure_by_its_formula(self):
        found = of_batch(two_policies())
        w = np.exp(D)
        assert found["mismatch/k1"] == pytest.approx(-D.mean(), rel=1e-6)
        assert found["mismatch/k3"] == pytest.approx(np.mean(w - D - 1), rel=1e-6)
        assert found["mismatch/prob_abs_diff"] == pytest.approx(
            np.mean(np.abs(np.exp(TRAIN) - np.exp(ROLLOUT)))
        )
        assert found["mismatch/mult_prob_error"] == pytest.approx(np.mean(np.exp(np.abs(D))))
        assert found["mismatch/sequence_log_ratio_mean"] == pytest.approx(0.0)
        assert found["mismatch/sequence_log_ratio_max"] == pytest.approx(0.5)
        assert found["mismatch/ess_share"] == pytest.approx(w.sum() ** 2 / (4 * (w**2).sum()))
        s = np.exp([0.5, -0.5])
        assert found["mismatch/ess_share_sequence"] == pytest.approx(s.sum() ** 2 / (2 * (s**2).sum()))
        assert found["mismatch/chi2"] == pytest.approx(np.mean(w**2) - 1)

    def test_the_published_example_of_rollout_less_train(self):
        batch = sampled_rows(
            [1], tracks={"logprobs": [-0.17456013709306717], "prox_logprobs": [-0.2500366196036339]}
        )
        assert of_batch(batch)["mismatch/k1"] == pytest.approx(0.07547648251056671, abs=1e-7)

    def test_tiny_differences_are_not_lost_to_rounding(self):
        batch = sampled_rows([1] * 4, tracks={"logprobs": [-1.0] * 4, "prox_logprobs": [-1.0 + 2**-12] * 4})
        assert of_batch(batch)["mismatch/k3"] == pytest.approx(2**-25, rel=1e-3)

    def test_prompt_tokens_and_tokens_without_a_finite_logprob_do_not_count(self):
        batch = make_packed_batch(
            [[1, 2, 3]],
            [[0, 1, 1]],
            tracks={
                "logprobs": np.asarray([0, -1, -math.inf], np.float32),
                "prox_logprobs": np.asarray([-9, -2, -1], np.float32),
            },
        )
        found = of_batch(batch)
        assert found["mismatch/k1"] == 1.0 and found["mismatch_nonfinite"] == 1.0

    def test_by_staleness(self):
        found = of_batch(two_policies(tracks={"versions": [5, 4, 5, 1]}, train_version=5))
        assert found["mismatch/staleness_0/k1"] == pytest.approx(-(D[0] + D[2]) / 2)
        assert found["mismatch/staleness_1/k1"] == pytest.approx(-D[1])
        assert found["mismatch/staleness_2_plus/k1"] == pytest.approx(-D[3])

    def test_the_largest_of_a_step_and_the_largest_of_the_ledger_are_one(self):
        found = of_ledger(make_ledger(mismatch_abs_max=[0.25, 1.5, None]))
        assert found["mismatch/abs_max"] == 1.5
        assert of_batch(two_policies())["mismatch/abs_max"] == 1.0

    def test_of_probabilities(self):
        found = of_batch(two_policies())
        p, q = np.exp(TRAIN), np.exp(ROLLOUT)
        assert found["mismatch/prob_abs_diff_max"] == pytest.approx(np.abs(p - q).max())
        assert found["mismatch/prob_abs_diff_std"] == pytest.approx(np.abs(p - q).std())
        assert found["mismatch/prob_correlation"] == pytest.approx(np.corrcoef(p, q)[0, 1])
        assert found["mismatch/perplexity_ratio"] == pytest.approx(
            np.mean([np.exp(-D[:2].mean()), np.exp(-D[2:].mean())])
        )

    def test_probabilities_that_never_change_have_no_correlation(self):
        batch = sampled_rows([1, 2], tracks={"logprobs": [-1.0, -1.0], "prox_logprobs": TRAIN[:2]})
        found = of_batch(batch)
        assert "mismatch/prob_correlation" not in found and found["mismatch/prob_abs_diff_max"] > 0

    def test_of_whole_rollouts(self):
        tracks = {"logprobs": [-1.0, -2.0, -3.0, -1.0], "prox_logprobs": [-0.5, -1.0, -5.0, -1.25]}
        found = of_batch(sampled_rows([1, 2], [3, 4], tracks=tracks))
        assert found["mismatch/sequence_log_ratio_min"] == pytest.approx(-2.25)
        assert found["mismatch/sequence_log_ratio_max"] == pytest.approx(1.5)
        assert found["mismatch/sequence_log_ratio_abs_max"] == pytest.approx(2.25)
        assert found["mismatch/sequence_chi2"] == pytest.approx(np.mean(np.exp([3.0, -4.5])) - 1)

    def test_the_sum_of_a_rollout_is_clamped_before_it_is_squared(self):
        batch = sampled_rows([1] * 3, tracks={"logprobs": [-16.0] * 3, "prox_logprobs": [-1.0] * 3})
        found = of_batch(batch)
        assert found["mismatch/sequence_log_ratio_max"] == pytest.approx(45)
        assert found["mismatch/sequence_chi2"] == pytest.approx(math.exp(40), rel=1e-6)

    def test_by_tenths_of_probability(self):
        logprobs = np.log([0.05, 0.15, 0.17, 0.95, 1.0])
        tracks = {"logprobs": logprobs, "prox_logprobs": logprobs - [1.0, 2.0, 4.0, 0.5, 0.25]}
        found = of_batch(sampled_rows([1] * 5, tracks=tracks))
        tenths = {key.split("_")[1][0]: v for key, v in found.items() if "/probability_" in key}
        assert tenths == pytest.approx({"0": 1.0, "1": 3.0, "9": 0.375}, rel=1e-5)

    def test_effective_share_of_huge_weights_does_not_overflow(self):
        assert effective_share(np.asarray([5000.0, 5000.0])) == pytest.approx(1.0)
        assert effective_share(np.asarray([5000.0, 0.0])) == pytest.approx(0.5)


class TestIdentities:
    def test_mean_ratio_and_nll_minus_entropy_at_staleness_zero(self):
        found = of_batch(
            two_policies(tracks={"versions": [5, 4, 5, 4], "entropies": [0.5, 9, 0.75, 9]}, train_version=5)
        )
        assert found["identity/mean_ratio"] == pytest.approx((math.exp(-0.5) + 1) / 2)
        assert found["identity/nll_minus_entropy"] == pytest.approx(0.75 - 0.625)

    def test_tokens_without_a_finite_entropy_are_left_out_of_the_identity(self):
        tracks = {"versions": [5, 5, 5], "logprobs": [-1.0, -2.0, -9.0], "entropies": [0.5, 1.0, math.inf]}
        found = of_batch(sampled_rows([1, 2, 3], tracks=tracks, train_version=5))
        assert found["identity/nll_minus_entropy"] == pytest.approx(1.5 - 0.75)
        assert found["entropy_nonfinite"] == 1.0

    def test_a_sampler_at_another_temperature_is_found(self):
        """Tokens are drawn at temperature 1, and the engine logs logprobs scaled by temperature 2."""
        rng = np.random.default_rng(0)
        logits = rng.normal(0, 2, 50)
        p = np.exp(logits) / np.exp(logits).sum()
        scaled = np.exp(logits / 2) / np.exp(logits / 2).sum()
        tokens = rng.choice(50, 20_000, p=p)
        common = {"versions": [1] * 20_000}
        honest = {"logprobs": np.log(p)[tokens], "prox_logprobs": np.log(p)[tokens], **common}
        wrong = {"logprobs": np.log(scaled)[tokens], "prox_logprobs": np.log(p)[tokens], **common}
        row = [0] * 20_000
        assert of_batch(sampled_rows(row, tracks=honest, train_version=1))["identity/mean_ratio"] == 1.0
        found = of_batch(sampled_rows(row, tracks=wrong, train_version=1))
        assert found["identity/mean_ratio"] > 1.2 and found["mismatch/k1"] < 0


class TestPPO:
    batch = sampled_rows(
        [1, 2, 3, 4],
        tracks={
            "prox_logprobs": [-3.0] * 4,
            "new_logprobs": np.log([1.5, 1.5, 0.5, 0.5]) - 3,
            "advantages": [1, -1, 1, -1],
        },
    )

    def test_ratio_is_new_over_prox(self):
        found = of_batch(self.batch)
        assert found["ppo_ratio/mean"] == pytest.approx(1.0, rel=1e-6)
        assert found["ppo_ratio/max"] == pytest.approx(1.5, rel=1e-6)

    def test_clipping_is_gated_by_the_sign_of_the_advantage(self):
        found = of_batch(self.batch, settings=RunSettings(clip_low=0.2, clip_high=0.2))
        assert (found["clip_share_low"], found["clip_share_high"]) == (0.25, 0.25)

    def test_without_declared_bounds_there_is_no_clip_share(self):
        assert not [key for key in of_batch(self.batch) if key.startswith("clip_share")]


class TestEntropy:
    def test_mean_and_quantiles(self):
        found = of_batch(sampled_rows([1] * 11, tracks={"entropies": np.arange(11) / 10}))
        assert found["entropy/mean"] == pytest.approx(0.5)
        assert found["entropy/p10"] == pytest.approx(0.1) and found["entropy/p90"] == pytest.approx(0.9)

    def test_without_entropies_the_nll_stands_in(self):
        assert of_batch(sampled_rows([1, 2], tracks={"logprobs": [-1, -3]}))["nll_estimate"] == 2.0
        both = sampled_rows([1, 2], tracks={"logprobs": [-1, -3], "entropies": [1, 1]})
        assert "nll_estimate" not in of_batch(both)


class TestReference:
    def test_kl_from_the_reference_of_the_trained_policy(self):
        found = of_batch(two_policies(tracks={"ref_logprobs": [-2.0, -1.0, -1.0, -1.0]}))
        d = np.asarray([-0.5, 0.0, -0.5, 0.0])
        assert found["ref/k1"] == pytest.approx(0.25)
        assert found["ref/k3"] == pytest.approx(np.mean(np.exp(d) - d - 1))

    def test_it_needs_the_logprobs_of_one_engine_only(self):
        reference = {"ref_logprobs": [-2.0, -1.0]}
        assert of_batch(sampled_rows([1, 2], tracks={**reference, "prox_logprobs": [-1.0, -1.0]}))[
            "ref/k1"
        ] == pytest.approx(0.5)
        assert "ref/k1" in of_batch(sampled_rows([1, 2], tracks={**reference, "logprobs": [-1.0, -1.0]}))
        off = missing_inputs(sampled_rows([1, 2], tracks=reference))
        assert off["reference"] == ("prox_logprobs or logprobs",)


class TestByTurn:
    def test_turns_are_numbered_inside_their_rollout(self):
        batch = make_packed_batch(
            [[1, 2, 3, 4, 5], [1, 2]],
            [[1, 1, 0, 1, 1], [0, 1]],
            tracks={"entropies": np.asarray([1, 3, 0, 5, 7, 0, 8], np.float32)},
        )
        found = of_batch(batch)
        assert found["turn/0/tokens_mean"] == 1.5 and found["turn/1/tokens_mean"] == 2.0
        assert found["turn/0/entropy_mean"] == 4.0 and found["turn/1/entropy_mean"] == 6.0

    def test_late_turns_share_one_key(self):
        n = 12
        batch = make_packed_batch([[1] * 2 * n], [[0, 1] * n])
        turns = {key.split("/")[1] for key in of_batch(batch) if key.startswith("turn/")}
        assert turns == {*map(str, range(7)), "7_plus"}


def test_identities_that_hold_say_nothing():
    assert (
        identity_checks({"rollout/identity/mean_ratio": 1.01, "rollout/identity/nll_minus_entropy": -0.02})
        == []
    )
    assert identity_checks({}) == []
    assert identity_checks({"rollout/identity/nll_minus_entropy": 0.1}) == []


def test_a_mean_ratio_away_from_one_with_a_negative_k1_names_temperature_and_top_p():
    (said,) = identity_checks({"rollout/identity/mean_ratio": 1.3, "rollout/mismatch/k1": -0.2})
    assert "1.300" in said and "temperature or top-p" in said


@pytest.mark.parametrize("k1", [{"rollout/mismatch/k1": 0.2}, {"rollout/mismatch/k1": 0.0}, {}])
def test_without_a_negative_k1_the_engines_differ(k1):
    (said,) = identity_checks({"rollout/identity/mean_ratio": 0.8, **k1})
    assert "temperature" not in said and "engines differ" in said


def test_splits_are_looked_at_apart():
    scalars = {"eval-rollout/identity/nll_minus_entropy": 0.5}
    assert identity_checks(scalars) == []
    assert "+0.500 nats" in identity_checks(scalars, "eval-rollout")[0]
