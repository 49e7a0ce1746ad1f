"""Commands that print need no pandas, and pyarrow imports it for every array that it makes of plain values.

That is more than half of the processor time of a command on a small project.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder

LEAN = frozenset({"delete", "events", "explain", "flips", "get", "label", "last", "list", "prompts", "stats"})
"""The commands that never need it."""


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is left out of this process", name=fullname)


def leave_pandas_out(command: str) -> None:
    """Keeps this process without pandas, as on a machine that has none, where the command needs none."""
    if command in LEAN:
        sys.meta_path.insert(0, _NoPandas())
