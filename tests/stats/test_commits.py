"""Averages between two commits."""

from __future__ import annotations

import math

import pytest

from rollout_traces.stats.commits import WindowedAverages, is_averaged


@pytest.mark.parametrize(
    "key", ["loss", "reward/mean", "loss/avg", "maximum_entropy_bonus", "group/pass@8", "stop/length_share"]
)
def test_quantities_are_averaged(key):
    assert is_averaged(key)


@pytest.mark.parametrize(
    "key",
    ["loss/min", "reward/max", "grad_max", "reward/p95", "entropy/p10", "median", "global_step", "step", "count/samples",
     "discarded/too_long_count", "version", "rollout/count/tokens", "epoch"],
)  # fmt: skip
def test_counters_extremes_and_quantiles_are_not(key):
    assert not is_averaged(key)


def test_keys_have_counts_of_their_own():
    window = WindowedAverages()
    assert window.add({"a": 1.0, "b": 4.0, "step": 1}) == 0
    assert window.add({"a": 3.0, "b": math.nan, "step": 2}) == 1
    assert window.flush() == {"a": 2.0, "b": 4.0, "step": 2}
    assert window.flush() == {}


def test_a_key_that_was_never_finite_is_absent():
    window = WindowedAverages()
    window.add({"a": math.inf})
    assert window.flush() == {}
