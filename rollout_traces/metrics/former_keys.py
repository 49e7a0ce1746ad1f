"""The keys that metrics had before they were renamed, given beside the new ones for a release."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache

from rollout_traces.metrics.patterns import as_globs
from rollout_traces.metrics.registry import Family

_NESTED = re.compile(r"(?:discarded/|source/[^/]+/)?")
"""What stands before the key of a part of the step."""


def with_former_keys(values: Mapping[str, float], families: tuple[Family, ...]) -> dict[str, float]:
    """The values, and each renamed one once more under its former key.

    Args:
        values: by key, without the split.
        families: what declares the keys.
    """
    former = _former_key_by(families)
    result = dict(values)
    for key, value in values.items():
        before = former(key)
        if before is not None:
            result[before] = value
    return result


@lru_cache(16)
def _former_key_by(families: tuple[Family, ...]) -> Callable[[str], str | None]:
    """What gives the former name of a key; None where it has not changed."""
    renames = _renames(families)

    @lru_cache(4096)
    def former_key(key: str) -> str | None:
        nested = _NESTED.match(key)
        start = nested.end() if nested else 0
        for now, before in renames:
            match = now.fullmatch(key, start)
            if match:
                return key[:start] + before.format(*match.groups())
        return None

    return former_key


def _renames(families: tuple[Family, ...]) -> tuple[tuple[re.Pattern[str], str], ...]:
    """A pattern of the key and the format of its former one, for each renamed key."""
    found = []
    for spec in families:
        for key in spec.keys:
            if not key.formerly:
                continue
            for now, before in zip(as_globs(key.pattern), as_globs(key.formerly), strict=True):
                if now != before:
                    pattern = "(.+)".join(map(re.escape, now.split("*")))
                    found.append((re.compile(pattern), "{}".join(before.split("*"))))
    return tuple(found)
