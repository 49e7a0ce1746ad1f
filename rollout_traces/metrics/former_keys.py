"""The keys that metrics had before they were renamed, given beside the new ones for a release."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from rollout_traces.metrics.patterns import as_globs
from rollout_traces.metrics.registry import Family

_NESTED = re.compile(r"(?:discarded/|source/[^/]+/)?")
"""What stands before the key of a part of the step."""


def with_former_keys(values: Mapping[str, float], families: Iterable[Family]) -> dict[str, float]:
    """The values, and each renamed one once more under its former key.

    Args:
        values: by key, without the split.
        families: what declares the keys.
    """
    renames = list(_renames(families))
    result = dict(values)
    for key, value in values.items():
        nested = _NESTED.match(key)
        start = nested.end() if nested else 0
        for now, before in renames:
            match = now.fullmatch(key, start)
            if match:
                result[key[:start] + before.format(*match.groups())] = value
                break
    return result


def _renames(families: Iterable[Family]) -> Iterator[tuple[re.Pattern[str], str]]:
    """A pattern of the key and the format of its former one, for each renamed key."""
    for spec in families:
        for key in spec.keys:
            if not key.formerly:
                continue
            for now, before in zip(as_globs(key.pattern), as_globs(key.formerly), strict=True):
                if now != before:
                    pattern = "(.+)".join(map(re.escape, now.split("*")))
                    yield re.compile(pattern), "{}".join(before.split("*"))
