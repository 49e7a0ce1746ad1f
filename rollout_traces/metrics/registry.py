"""The interface of a metric family, the registry of families, and the aggregates that they give.

Adding a metric is one function under `@family` in a file of this folder (or of the user's own), with its
keys declared beside it, and a test against a value computed by hand. An aggregate of empty input gives no key;
values that are not finite are left out and counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from rollout_traces.ledger.columns import Ledger
from rollout_traces.metrics.view import StepView, Values
from rollout_traces.model.text import short_hash

Reads = Literal["ledger", "tokens"]
"""`ledger`: one row per rollout is enough. `tokens`: the population's per-token arrays are needed."""

MetricFunction = Callable[[StepView], Mapping[str, float]]

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
    name: str = "",
    *,
    keys: tuple[Key, ...],
    reads: Reads = "ledger",
    source: str = "practice",
    needs: tuple[str, ...] = (),
) -> Callable[[MetricFunction], MetricFunction]:
    """Registers a function as a family of metrics, of its own name unless one is given.

    Raises:
        ValueError: the name is taken.
    """

    def register(function: MetricFunction) -> MetricFunction:
        own = name or function.__name__
        if own in FAMILIES:
            raise ValueError(f"metric family {own!r} is registered already. Expected a name of its own.")
        FAMILIES[own] = Family(own, reads, needs, keys, source, function)
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


SPREAD = ("mean", "std", "min", "max")
TINY = 1e-12
"""What differs from 0 by rounding alone is below it."""
KEY_LENGTH = 48
"""Characters of a name from the data that a key holds."""
_DIGITS = 2
"""Bytes of a name's hash that distinguish its part of a key, two digits each."""
QUANTILES = (0, 5, 25, 50, 75, 95, 100)
_TEXTS = {"source": "source", "stop reason": "stop_reason", "discard reason": "discard_reason"}
_PREFIXES = {"reward component": "component/", "sample metric": "sample/"}


def describe(prefix: str, values: np.ndarray, stats: Sequence[str] = SPREAD) -> Values:
    """Aggregates of the finite values under `<prefix>/<stat>`.

    Args:
        prefix: key of the quantity.
        values: numbers of any shape.
        stats: `mean`, `std` (population), `min`, `max`, or `pXX`: the quantile XX/100 by linear
            interpolation at `q(n - 1)`.

    Returns:
        One value a stat, nothing when no value is finite. NaN and infinities are counted under
        `<prefix>_nonfinite` where there are any.
    """
    finite, lost = finite_of(values)
    result = {f"{prefix}_nonfinite": float(lost)} if lost else {}
    if len(finite):
        exact = finite.astype(np.float64)
        result |= {f"{prefix}/{stat}": _statistic(exact, stat) for stat in stats}
    return result


def _statistic(values: np.ndarray, stat: str) -> float:
    if stat.startswith("p"):
        return float(np.percentile(values, int(stat[1:])))
    return float(getattr(values, stat)())


def finite_of(values: np.ndarray) -> tuple[np.ndarray, int]:
    """Gives the finite values, flat, and how many others there were."""
    flat = np.asarray(values).reshape(-1)
    finite = flat[np.isfinite(flat)]
    return finite, len(flat) - len(finite)


def mean_of(key: str, values: np.ndarray) -> Values:
    """The mean of the finite values under a key, nothing where there are none."""
    finite, _ = finite_of(values)
    return {key: float(finite.mean(dtype=np.float64))} if len(finite) else {}


def known(key: str, value: float | np.floating) -> Values:
    """`{key: value}`, or nothing when the value is not finite."""
    return {key: float(value)} if np.isfinite(value) else {}


def share(key: str, where: np.ndarray, among: np.ndarray | None = None) -> Values:
    """The share of rows for which a mask holds, among those of another mask; nothing when it is empty."""
    return mean_of(key, where if among is None else where[among])


def key_part(name: object) -> str:
    """A name from the data as one part of a key: no slash, no space, `KEY_LENGTH` characters at most."""
    return re.sub(r"[^\w.@^+=-]+", "_", str(name)).strip("_")[:KEY_LENGTH] or "unnamed"


def key_parts(names: Iterable[object]) -> dict[str, str]:
    """Makes parts of keys of names from the data, distinguished where cleaning makes them equal.

    Args:
        names: the names of one kind in a step.

    Returns:
        Name -> its part: `key_part` of it, with four hex digits of the name behind where another name has the
        same part and the name is not that part itself.
    """
    parts = {str(name): key_part(name) for name in names}
    shared = Counter(parts.values())
    return {
        name: part
        if shared[part] == 1 or part == name
        else f"{part[: KEY_LENGTH - 1 - 2 * _DIGITS]}_{short_hash(name, _DIGITS).hex()}"
        for name, part in parts.items()
    }


def under(prefix: str, values: Mapping[str, float]) -> Values:
    """Values with a prefix before every key."""
    return {f"{prefix}/{key}": value for key, value in values.items()}


def renamed(values: Mapping[str, float], start: str, other: str) -> Values:
    """Values with another beginning of each key."""
    return {key.replace(start, other, 1): value for key, value in values.items()}


def describe_told_apart(ledger: Ledger) -> str:
    """Says under which part of a key a name of the data is, where it is not its own; empty where none is.

    Args:
        ledger: every row of the step.
    """
    names: dict[str, Iterable[str]] = {
        kind: [column.removeprefix(prefix) for column in ledger.columns if column.startswith(prefix)]
        for kind, prefix in _PREFIXES.items()
    }
    names |= {
        kind: {value for value in ledger.get(column).tolist() if value is not None}
        for kind, column in _TEXTS.items()
    }
    said = [
        f"{kind} {name!r} is {part}"
        for kind, of_kind in names.items()
        for name, part in key_parts(sorted(of_kind)).items()
        if part != key_part(name)
    ]
    return f"Names that are equal in keys but for their last digits: {'; '.join(said)}." if said else ""
