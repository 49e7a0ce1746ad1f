"""Rollouts that a Python program hands to `import_rollouts`, in the shapes that it may have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rollout_traces.errors import BatchError
from rollout_traces.model.batch import SPLITS, RolloutBatch
from rollout_traces.sources.fields import Fields
from rollout_traces.sources.formats.chat_jsonl import rows_of
from rollout_traces.sources.problems import Problems
from rollout_traces.sources.rows import RolloutRow


def rows_given(
    item: Any, n: int, problems: Problems
) -> Iterator[tuple[int, str, list[RolloutRow], RolloutBatch | None]]:
    """What one item of an iterator holds.

    Args:
        item: a `RolloutRow`; a mapping with `messages`; `(step, batch)` or `(step, split, batch)` with a
            `RolloutBatch` or a mapping of its arrays.
        n: its number in the iterator.
        problems: where values that cannot be understood are noted.

    Yields:
        Step, split, rows, and the batch where it is one.

    Raises:
        BatchError: it is something else; the text says what was seen.
    """
    if isinstance(item, RolloutRow):
        yield item.step, item.split, [item], None
    elif isinstance(item, Mapping):
        for row in rows_of(Fields(item, Path("given"), n, problems), None, SPLITS[0], n):
            yield row.step, row.split, [row], None
    elif isinstance(item, tuple) and len(item) in (2, 3) and isinstance(item[0], int):
        step, batch = item[0], item[-1]
        split = item[1] if len(item) == 3 else SPLITS[0]
        if split not in SPLITS:
            raise BatchError(f"split: seen {split!r}. Expected one of {', '.join(SPLITS)}.")
        for part in RolloutBatch.from_any(batch):
            yield step, split, [], part
    else:
        raise BatchError(
            f"rollouts: seen {type(item).__name__}. Expected (step, batch), (step, split, batch), a mapping with "
            "messages, or a RolloutRow."
        )
