"""Aggregates in which empty input gives no key and non-finite values are left out and counted."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

SPREAD = ("mean", "std", "min", "max")
QUANTILES = (0, 5, 25, 50, 75, 95, 100)

_FUNCTIONS: dict[str, Callable[[np.ndarray], Any]] = {
    "mean": lambda values: np.mean(values, dtype=np.float64),
    "std": lambda values: np.std(values, dtype=np.float64),
    "min": np.min,
    "max": np.max,
}


def describe(prefix: str, values: np.ndarray, stats: Sequence[str] = SPREAD) -> dict[str, float]:
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
    if not len(finite):
        return result
    if len(finite) == 1:
        value = float(finite[0])
        return result | {f"{prefix}/{stat}": 0.0 if stat == "std" else value for stat in stats}
    quantiles = [stat for stat in stats if stat not in _FUNCTIONS]
    found = np.quantile(finite, [int(stat[1:]) / 100 for stat in quantiles]) if quantiles else ()
    by_quantile = dict(zip(quantiles, found, strict=True))
    for stat in stats:
        value = by_quantile[stat] if stat in by_quantile else _FUNCTIONS[stat](finite)
        result[f"{prefix}/{stat}"] = float(value)
    return result


def finite_of(values: np.ndarray) -> tuple[np.ndarray, int]:
    """The finite values, flat, and how many others there were."""
    flat = np.asarray(values).reshape(-1)
    if flat.dtype.kind != "f":
        return flat, 0
    finite = np.isfinite(flat)
    n = np.count_nonzero(finite)
    if n == len(flat):
        return flat, 0
    return flat[finite], len(flat) - int(n)


def known(key: str, value: float | np.floating | None) -> dict[str, float]:
    """`{key: value}`, or nothing when the value is None or not finite."""
    return {} if value is None or not np.isfinite(value) else {key: float(value)}


def share(key: str, where: np.ndarray, among: np.ndarray | None = None) -> dict[str, float]:
    """The share of rows for which a mask holds, among those of another mask; nothing when it is empty."""
    total = len(where) if among is None else int(among.sum())
    held = int((where if among is None else where & among).sum())
    return {key: held / total} if total else {}


def key_part(name: object) -> str:
    """A name from the data as one part of a key: no slash, no space, 48 characters at most."""
    return re.sub(r"[^\w.@^+=-]+", "_", str(name)).strip("_")[:48] or "unnamed"


def key_parts(names: Iterable[object]) -> dict[str, str]:
    """Names from the data as parts of keys, distinguished where cleaning makes them equal.

    Args:
        names: the names of one kind in a step.

    Returns:
        Name -> its part: `key_part` of it, with four hex digits of the name behind where another name has the
        same part and the name is not that part itself.
    """
    parts = {str(name): key_part(name) for name in names}
    shared = Counter(parts.values())
    return {
        name: part if shared[part] == 1 or part == name else f"{part[:43]}_{_digest(name)}"
        for name, part in parts.items()
    }


def told_apart(names: Iterable[object]) -> dict[str, str]:
    """The names whose part of a key is another than their own cleaned name: name -> part, see `key_parts`."""
    return {name: part for name, part in key_parts(names).items() if part != key_part(name)}


def _digest(name: str) -> str:
    return hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=2).hexdigest()


def under(prefix: str, values: Mapping[str, float]) -> dict[str, float]:
    """Values with a prefix before every key."""
    return {f"{prefix}/{key}": value for key, value in values.items()}
