"""One JSON object that is a whole file."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Any

from rollout_traces.sources.base import ReadOptions
from rollout_traces.sources.lines import loads
from rollout_traces.sources.problems import Problems


def read_object(path: Path, problems: Problems, options: ReadOptions) -> dict[str, Any] | None:
    """Reads it; None, and a problem noted, where it is too large, cut off or no object.

    Args:
        path: the file.
        problems: where that is noted.
        options: how much may be read.
    """
    try:
        size = path.stat().st_size
        if size > options.max_bytes:
            problems.add(path, "overlong_records", f"has {size:,} bytes, more than {options.max_bytes:,}.")
            return None
        value = loads(path.read_bytes().removeprefix(codecs.BOM_UTF8))
    except OSError as error:
        problems.add(path, "unreadable_files", f"cannot be read ({error}).")
        return None
    except ValueError as error:
        text = (
            f"is no complete JSON ({error}); its writer may still be at it. It is read when it is complete."
        )
        problems.add(path, "unfinished_files", text)
        return None
    if not isinstance(value, dict):
        problems.add(path, "unreadable_files", f"holds a {type(value).__name__}. Expected a JSON object.")
        return None
    return value
