"""The cursor behind a page's last row: what it is sorted by, as one word."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from rollout_traces.errors import StoreError


def encoded(values: Sequence[Any]) -> str:
    """The cursor of a row.

    Args:
        values: what it is sorted by, and its number.
    """
    return base64.urlsafe_b64encode(json.dumps(list(values)).encode()).decode().rstrip("=")


def decoded(cursor: str, n: int) -> list[Any]:
    """The values of a cursor.

    Args:
        cursor: what `encoded` made.
        n: how many values are expected.

    Raises:
        StoreError: it is none.
    """
    try:
        values = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError):
        values = None
    if isinstance(values, list) and len(values) == n and all(map(_is_value, values)) and _is_row(values[-1]):
        return values
    raise StoreError(f"after: {cursor[:40]!r} is no cursor of this query and sort. Start at the first page.")


def _is_value(value: Any) -> bool:
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return value is None or isinstance(value, str | float)


def _is_row(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
