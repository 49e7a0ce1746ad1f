"""Never all or nothing: a part of an answer that raises is said in a line, and the others remain."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rollout_traces.model.text import quoted

T = TypeVar("T")


@dataclass(eq=False)
class Contained:
    """Runs parts of an answer, and says in a line what raised.

    Attributes:
        problems: a line for each.
    """

    problems: list[str] = field(default_factory=list)

    def __call__(self, what: str, compute: Callable[..., T], *arguments: Any) -> T | None:
        """Returns what a part computes; None where it raises."""
        try:
            return compute(*arguments)
        except Exception as error:  # noqa: BLE001  counted and said
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{place.name}, line {place.lineno}"
            self.problems.append(f"{what}: {type(error).__name__}: {quoted(error, 200)} ({where})")
            return None
