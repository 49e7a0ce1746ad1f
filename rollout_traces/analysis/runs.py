"""Two runs: in which settings they differ, and their curves over steps, rollouts or tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollout_traces.analysis.relations import Relations, as_arrays, current, describe


@dataclass(frozen=True)
class ConfigDifference:
    """A setting that two runs do not share.

    Attributes:
        key: its name, nested ones joined by dots.
        a: A's value, None where it has none.
        b: B's value.
    """

    key: str
    a: Any
    b: Any


def config_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[ConfigDifference]:
    """The settings in which two configurations differ, by name.

    Args:
        a: one run's configuration.
        b: the other's.
    """
    flat_a, flat_b = dict(_flat(a)), dict(_flat(b))
    return [
        ConfigDifference(key, flat_a.get(key), flat_b.get(key))
        for key in sorted({*flat_a, *flat_b})
        if flat_a.get(key) != flat_b.get(key)
    ]


def chosen(differences: Iterable[ConfigDifference]) -> list[ConfigDifference]:
    """Those that someone chose: without what Trackio and an import write of themselves."""
    return [each for each in differences if not each.key.startswith(("_", "imported"))]


def _flat(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


@dataclass(frozen=True, eq=False)
class Progress:
    """How far a run had come at each of its steps.

    Attributes:
        steps: int [T], ascending.
        rollouts: float [T], rollouts seen up to and with the step.
        tokens: float [T], sampled tokens up to and with the step; NaN where unknown.
    """

    steps: np.ndarray
    rollouts: np.ndarray
    tokens: np.ndarray


def progress(relations: Relations, run: str, split: str = "rollout") -> Progress:
    """Rollouts and tokens seen by each step: the axes on which two runs compare.

    Args:
        relations: where to read.
        run: the run.
        split: the split.
    """
    c = describe(relations)
    query = (
        f"select step, count(*) as n, sum({c.expression('n_sampled')}) as tokens from rollouts "
        f"where run = ? and split = ? and {current(c)} and step is not null group by step order by step"
    )
    found = as_arrays(relations.sql(query, [run, split]))
    return Progress(
        found["step"].astype(np.int64),
        np.cumsum(found["n"].astype(float)),
        np.cumsum(found["tokens"].astype(float)),
    )


FIRST_OF_ATTEMPTS = (
    "select attempt, min(step) as first from rollouts where run = ? and split = ? and attempt is not null "
    "group by attempt order by attempt"
)
"""The first step of each attempt; takes run and split."""


def resumed(relations: Relations, run: str, split: str = "rollout") -> list[tuple[str, int]]:
    """The attempts of a run but the first, in order of time, each with the first step that it logged.

    Args:
        relations: where to read.
        run: the run.
        split: the split.
    """
    if not describe(relations).has("attempt"):
        return []
    found = as_arrays(relations.sql(FIRST_OF_ATTEMPTS, [run, split]))
    named = zip(found["attempt"].tolist(), found["first"].tolist(), strict=True)
    return [(str(name), int(first)) for name, first in named][1:]
