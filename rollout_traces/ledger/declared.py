"""What packed data says of its own size, held against limits before anything is allocated for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rollout_traces.errors import StoreError

MOST_ROWS = 2**20
"""Rollouts of one step."""
MOST_CELLS = 2**25
"""Rollouts of one step, times columns."""
_KINDS = frozenset(("float", "int", "text", "tags"))

MADE_UP = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    StopIteration,
    TypeError,
    ValueError,
)
"""What reading bytes that are not what they claim to be can raise."""


@contextmanager
def damaged_as(what: str) -> Iterator[None]:
    """Turns what goes wrong in unpacking into a StoreError.

    Args:
        what: how the message begins.

    Raises:
        StoreError: something went wrong.
    """
    try:
        yield
    except StoreError:
        raise
    except MADE_UP as error:
        raise StoreError(f"{what} ({type(error).__name__}: {error}).") from error


def check_ledger_head(head: Mapping[str, Any]) -> None:
    """Holds a ledger's head against the limits.

    Args:
        head: `schema`, `rows`, and `columns` with `name`, `kind`, `size` and, for texts, `values`.

    Raises:
        ValueError: a count is none, or too large.
    """
    rows, columns = head["rows"], head["columns"]
    if type(head["schema"]) is not int:
        raise ValueError(f"schema {str(head['schema'])[:20]}")
    if type(rows) is not int or not 0 <= rows <= MOST_ROWS:
        raise ValueError(f"{str(rows)[:20]} rows, expected 0 to {MOST_ROWS}")
    if rows * len(columns) > MOST_CELLS:
        raise ValueError(f"{rows} rows of {len(columns)} columns, expected {MOST_CELLS} values at most")
    for entry in columns:
        if entry["kind"] not in _KINDS or not isinstance(entry["name"], str):
            raise ValueError(f"column {str(entry['name'])[:40]!r} of kind {str(entry['kind'])[:20]!r}")
        if type(entry["size"]) is not int or entry["size"] < 0:
            raise ValueError(f"column {entry['name'][:40]!r} of {str(entry['size'])[:20]} bytes")
        if entry["kind"] == "int" and type(entry["low"]) is not int:
            raise ValueError(f"column {entry['name'][:40]!r} counts from {str(entry['low'])[:20]}")
        if entry["kind"] in ("text", "tags"):
            _check_values(entry["values"], entry["kind"])


def _check_values(values: Any, kind: str) -> None:
    """Raises ValueError where a column's values are of another kind."""
    for value in values:
        fits = value is None or isinstance(value, str)
        if kind == "tags":
            fits = value is None or (isinstance(value, list) and all(isinstance(name, str) for name in value))
        if not fits:
            raise ValueError(f"{str(value)[:40]!r} in a column of kind {kind}")
