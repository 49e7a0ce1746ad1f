"""One JSON object a line, UTF-8; unknown values are null, infinite ones "Infinity" and "-Infinity"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from rollout_traces.model.plain_values import finite_or_text

SUFFIX = ".jsonl"


def write(path: Path, records: Iterable[Mapping[str, Any]]) -> int:
    """Writes records.

    Args:
        path: the file.
        records: plain values.

    Returns:
        How many were written.
    """
    n = 0
    with path.open("wb") as file:
        for record in records:
            stated = {name: finite_or_text(value) for name, value in record.items()}
            file.write(orjson.dumps(stated, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY))
            n += 1
    return n
