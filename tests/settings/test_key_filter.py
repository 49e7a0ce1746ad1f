"""Patterns of keys to keep and to leave out."""

from __future__ import annotations

import pytest

from rollout_traces.errors import ConfigError
from rollout_traces.settings.key_filter import FULL, NAMED, SLIM, KeyFilter

KEYS = {"loss/mean": 1.0, "loss/max": 2.0, "reward": 3.0}


@pytest.mark.parametrize(
    ("keys", "kept"),
    [
        ("loss/*", ["loss/mean", "loss/max"]),
        (["loss/*", "!*/max"], ["loss/mean"]),
        (["!loss/*"], ["reward"]),
        (["reward", "loss/max"], ["loss/max", "reward"]),
        ("*", list(KEYS)),
        (FULL, list(KEYS)),
        ("Loss/*", []),
    ],
)
def test_a_key_is_kept_where_a_pattern_keeps_it_and_none_leaves_it_out(keys, kept):
    assert list(KeyFilter(keys).keep(KEYS)) == kept


def test_a_name_stands_for_its_patterns():
    named = {"few": ("loss/*", "!*/max")}
    assert list(KeyFilter("few", named).keep(KEYS)) == ["loss/mean"]
    assert list(KeyFilter(["few", "reward"], named).keep(KEYS)) == ["loss/mean", "reward"]
    denied = next(pattern[1:] for pattern in NAMED[SLIM] if pattern.startswith("!")).replace("*", "x")
    assert KeyFilter(FULL)(denied) and not KeyFilter(SLIM)(denied) and KeyFilter(SLIM)("reward")


@pytest.mark.parametrize("keys", ["", [], [""], [3], ["a", None]])
def test_what_is_no_pattern_is_refused_with_the_settings_name(keys):
    with pytest.raises(ConfigError, match=r"metric_keys: seen .* Expected .*, or patterns such as 'loss/\*'"):
        KeyFilter(keys, setting="metric_keys")
