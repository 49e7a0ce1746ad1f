"""Two opinions side by side: what was compared, and what differs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

RELATIVE = 1e-5
ABSOLUTE = 1e-6
"""Two numbers agree within these: per-token arithmetic is float32 where it can be, the second opinion is float64."""


@dataclass
class Comparison:
    """What two opinions said.

    Attributes:
        n: values compared; a value that one side alone has counts.
        different: one line each for what differs.
    """

    n: int = 0
    different: list[str] = field(default_factory=list)

    def mappings(self, where: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
        """Compares values by key; a key with None is a key that is absent."""
        for key in sorted({*ours, *theirs}):
            self.values(f"{where}: {key}", ours.get(key), theirs.get(key))

    def values(self, where: str, ours: Any, theirs: Any) -> None:
        """Compares two values, None where one side has none."""
        if ours is None and theirs is None:
            return
        self.n += 1
        if not agree(ours, theirs):
            self.different.append(f"{where}: {ours!r}, second opinion {theirs!r}")

    def add(self, others: Iterable[Comparison]) -> Comparison:
        """Takes over what others compared."""
        for other in others:
            self.n += other.n
            self.different += other.different
        return self

    def check(self, at_least: int) -> None:
        """Fails when anything differs, or when too little was compared."""
        print(f"{self.n} values compared, {len(self.different)} differ")
        assert not self.different, "\n".join(self.different[:40])
        assert self.n >= at_least


def agree(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, (int, float)) and isinstance(theirs, (int, float)):
        if math.isnan(ours) or math.isnan(theirs):
            return math.isnan(ours) and math.isnan(theirs)
        return math.isclose(ours, theirs, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return type(ours) is type(theirs) and ours == theirs
