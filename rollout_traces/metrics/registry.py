"""What a metric family is, and the registry of families.

Adding a metric is one function under `@family` in a file of this folder (or of the user's own), with its
keys declared beside it, and a test against a value computed by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from rollout_traces.metrics.view import StepView

Reads = Literal["ledger", "tokens"]
"""`ledger`: one row per rollout is enough. `tokens`: the population's per-token arrays are needed."""

MetricFunction = Callable[[StepView], Mapping[str, float]]
"""Gives values by key, without the split in front. A key that cannot be computed is absent, never 0."""


OR = " or "
"""Between names of which one is enough."""


@dataclass(frozen=True)
class Key:
    """One key, or a pattern of keys, that a family gives.

    Attributes:
        pattern: the key; `<name>` stands for what the data names, `{a,b}` for alternatives.
        meaning: one sentence with the unit.
        default: part of the default set.
        formerly: the pattern that the key had until the release before this one; given beside the new one for
            a release.
    """

    pattern: str
    meaning: str
    default: bool = False


@dataclass(frozen=True, eq=False)
class Family:
    """A registered family of metrics.

    Attributes:
        name: its name.
        reads: what it is computed from.
        needs: ledger columns, tracks or settings without which it is off; of `a or b` one is enough.
        keys: what it gives.
        source: where the definition comes from.
        function: computes it.
    """

    name: str
    reads: Reads
    needs: tuple[str, ...]
    keys: tuple[Key, ...]
    source: str
    function: MetricFunction


FAMILIES: dict[str, Family] = {}


def family(
    name: str, *, reads: Reads, source: str, keys: tuple[Key, ...], needs: tuple[str, ...] = ()
) -> Callable[[MetricFunction], MetricFunction]:
    """Registers a function as a family of metrics.

    Raises:
        ValueError: the name is taken.
    """

    def register(function: MetricFunction) -> MetricFunction:
        if name in FAMILIES:
            raise ValueError(f"metric family {name!r} is registered already. Expected a name of its own.")
        FAMILIES[name] = Family(name, reads, needs, keys, source, function)
        return function

    return register


def families_off(families: tuple[Family, ...], view: StepView) -> Mapping[str, tuple[str, ...]]:
    """The families that are off, by name, and what each needs and the step does not have."""
    present = view.inputs & _names_needed(families)
    return _off(families, present, view.batch is not None)


@lru_cache(16)
def _names_needed(families: tuple[Family, ...]) -> frozenset[str]:
    return frozenset(name for spec in families for need in spec.needs for name in need.split(OR))


@lru_cache(64)
def _off(
    families: tuple[Family, ...], present: frozenset[str], has_tokens: bool
) -> Mapping[str, tuple[str, ...]]:
    """A run's steps mostly have the same inputs: what is off is found out once."""
    off: dict[str, tuple[str, ...]] = {}
    for spec in families:
        missing = [need for need in spec.needs if present.isdisjoint(need.split(OR))]
        if spec.reads == "tokens" and not has_tokens:
            missing.append("the population's tokens")
        if missing:
            off[spec.name] = tuple(missing)
    return off
