"""The code that docs/trainers.md shows, so that it is run as it stands there."""

from __future__ import annotations

import os
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "trainers.md"


def example(contains: str) -> str:
    """The one Python example of the page that has these words."""
    [found] = [
        code
        for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
        if contains in code
    ]
    return found


def batch(step: int, rows: int = 4, group: int = 0) -> dict:
    """A batch as a loop of one's own has it."""
    import numpy as np

    ids = np.arange(rows * 6).reshape(rows, 6) + 100 * step
    mask = np.broadcast_to(np.asarray([0, 0, 1, 1, 1, 1], bool), ids.shape)
    return {
        "input_ids": ids,
        "attention_mask": np.ones_like(mask),
        "loss_mask": mask,
        "rewards": np.arange(rows) / rows,
        "group_ids": [group] * rows,
    }


def check(project: str, steps: list[int], rows: int) -> None:
    """Every step's rows are in the project."""
    from rollout_traces.trace.conversion import read_ledger
    from tests.trainers.areal_compare import rows_of

    kept = rows_of(Path(os.environ["TRACKIO_DIR"]), project, "rollout/steps")
    found = [step for step, record in kept for _ in range(read_ledger(record).n_rows)]
    assert {step: found.count(step) for step in steps} == dict.fromkeys(steps, rows), found
    assert len(found) == rows * len(steps), found
    print(f"{project}: the example of the page: {len(found)} rows of {len(steps)} steps")
