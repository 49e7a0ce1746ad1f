"""Processes that do one thing and end: what they leave out."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder

COLLECT_EVERY = 100_000
"""Objects between two collections, 700 by default: starting makes some 90,000 that all stay."""


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is left out of this process", name=fullname)


def leave_pandas_out() -> None:
    """Keeps this process without pandas, as on a machine that has none."""
    sys.meta_path.insert(0, _NoPandas())


@contextmanager
def ending_soon() -> Iterator[None]:
    """Collects garbage seldom; a `SystemExit` in it ends the process after what is registered with `atexit`.

    The interpreter would free some 240,000 blocks of memory one by one, a seventh of what a short command takes.
    """
    gc.set_threshold(COLLECT_EVERY, *gc.get_threshold()[1:])
    try:
        yield
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        with suppress(BrokenPipeError):  # a reader that has read enough
            sys.stdout.flush()
        atexit._run_exitfuncs()
        sys.stderr.flush()
        os._exit(end.code or 0)
