"""Processes that print or answer need no pandas, and pyarrow imports it for every array that it makes of plain values.

That is more than half of the processor time of a command, or of a statement, on a small project.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is left out of this process", name=fullname)


def leave_pandas_out() -> None:
    """Keeps this process without pandas, as on a machine that has none."""
    sys.meta_path.insert(0, _NoPandas())
