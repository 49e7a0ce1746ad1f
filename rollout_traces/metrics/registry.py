"""The interface of a metric family, and the registry of families.

Adding a metric is one function under `@family` in a file of this folder (or of the user's own), with its
keys declared beside it, and a test against a value computed by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
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
        pattern: the key; `<name>` stands for what the data names, `{a,b}` for alternatives, `[x]` for x or nothing.
        meaning: one sentence with the unit.
        default: part of the default set.
    """

    pattern: str
    meaning: str
    default: bool = False

    @cached_property
    def globs(self) -> tuple[str, ...]:
        """The keys as patterns for `fnmatch`."""
        return as_globs(self.pattern)


@dataclass(frozen=True, eq=False)
class Family:
    """A registered family of metrics.

    Attributes:
        name: unique.
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


def families_off(families: Iterable[Family], view: StepView) -> dict[str, tuple[str, ...]]:
    """Names the families that are off, and what each needs and the step does not have."""
    off: dict[str, tuple[str, ...]] = {}
    for spec in families:
        missing = [need for need in spec.needs if view.inputs.isdisjoint(need.split(OR))]
        if spec.reads == "tokens" and view.batch is None:
            missing.append("the population's tokens")
        if missing:
            off[spec.name] = tuple(missing)
    return off


def as_globs(pattern: str) -> tuple[str, ...]:
    """Expands a declared key into patterns for `fnmatch`, see `Key.pattern`."""
    for opener, closer in ("{}", "[]"):
        start = pattern.find(opener)
        if start >= 0:
            stop = pattern.index(closer, start)
            inside = pattern[start + 1 : stop]
            choices = inside.split(",") if opener == "{" else ["", inside]
            before, after = pattern[:start], pattern[stop + 1 :]
            return tuple(glob for choice in choices for glob in as_globs(before + choice + after))
    return (re.sub(r"<[^>]*>", "*", pattern),)


def may_overlap(first: str, second: str) -> bool:
    """Tells whether some text may match both of two `fnmatch` patterns; False only where none can.

    What stands before the first wildcard of either is compared, and what stands after the last.
    """
    heads = [re.split(r"[*?[]", pattern, maxsplit=1)[0] for pattern in (first, second)]
    if heads == [first, second]:
        return first == second
    tails = [re.split(r"[*?\]]", pattern)[-1] for pattern in (first, second)]
    short, long = sorted(heads, key=len)
    end, longer_end = sorted(tails, key=len)
    return long.startswith(short) and longer_end.endswith(end)
