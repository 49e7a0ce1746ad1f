"""Identities that do not hold, with their usual cause."""

from __future__ import annotations

from rollout_traces.metrics import identity_checks


def test_identities_that_hold_say_nothing():
    assert (
        identity_checks({"rollout/identity/mean_ratio": 1.01, "rollout/identity/nll_minus_entropy": -0.02})
        == []
    )
    assert identity_checks({}) == []


def test_a_mean_ratio_away_from_one_with_a_negative_k1_names_temperature_and_top_p():
    (said,) = identity_checks({"rollout/identity/mean_ratio": 1.3, "rollout/mismatch/k1": -0.2})
    assert "1.300" in said and "temperature or top-p" in said


def test_with_a_positive_k1_the_engines_differ():
    (said,) = identity_checks({"rollout/identity/mean_ratio": 0.8, "rollout/mismatch/k1": 0.2})
    assert "temperature" not in said and "engines differ" in said


def test_splits_are_looked_at_apart():
    scalars = {"eval-rollout/identity/nll_minus_entropy": 0.5}
    assert identity_checks(scalars) == []
    assert "+0.500 nats" in identity_checks(scalars, "eval-rollout")[0]
