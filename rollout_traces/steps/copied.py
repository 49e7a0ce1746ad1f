"""Rows that are copied with their ledger: what was stored of them holds, not what their new step says of them.

A copy may lack the tokens of some rows, and a row's share of an update, or its flags, speak of all rows of a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rollout_traces.flags import REGISTRY, Flag
from rollout_traces.ledger.columns import COLUMNS, NULL_INT, Ledger, any_known
from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.steps.selection import Selected

UNSEEN = "Raised when the rollout was logged; what it was raised for is not in the copy."
OF_THE_WHOLE_STEP = ("update_share", "equal_to")
"""Columns that other rows' tokens decide: unknown where the stored row does not have them."""
_PLACE = ("step", "group", "sample", "selected_probability")
_NUMBERS = {c.name for c in COLUMNS if c.kind in ("float", "int") and "/" not in c.name} - {*_PLACE}


class CopiedRows:
    """The rows of a batch that came with their ledger's rows; for all others everything stays as it is found.

    Args:
        batch: B rollouts.
    """

    def __init__(self, batch: PackedBatch) -> None:
        given = enumerate(batch.row_lists.get("ledger_rows") or ())
        self._stored: dict[int, Mapping[str, Any]] = {n: row for n, row in given if isinstance(row, Mapping)}

    def ledger(self, ledger: Ledger) -> Ledger:
        """Puts the stored numbers into a ledger; what no copied row knows stays as it was computed."""
        names = {name for row in self._stored.values() for name in row if name in _NUMBERS}
        changed = {}
        for name in sorted(names | {*OF_THE_WHOLE_STEP}) if self._stored else ():
            column = ledger.get(name).copy()
            unknown = NULL_INT if column.dtype == np.int64 else np.nan
            for row, stored in self._stored.items():
                value = stored.get(name)
                if isinstance(value, (int, float)) and np.isfinite(value):
                    column[row] = value
                elif name in OF_THE_WHOLE_STEP:
                    column[row] = unknown
            if name in ledger.columns or any_known(name, column):
                changed[name] = column
        return ledger.with_columns(**changed)

    def flags(self, found: Mapping[int, Sequence[Flag]]) -> dict[int, Sequence[Flag]]:
        """Gives each copied row the flags that it had, with the sentences that were found anew."""
        kept = dict(found)
        for row, stored in self._stored.items():
            names = stored.get("flags")
            if isinstance(names, (list, tuple)) and (names or row in found):
                kept[row] = [flag for name in names for flag in _named(str(name), found.get(row, ()))]
        return kept

    def chosen(self, item: Selected) -> Selected:
        """Tells how a row was chosen when it was logged, where the copy takes every row that it can read."""
        stored = self._stored.get(item.row, {})
        if item.selected_by != "all" or not isinstance(stored.get("selected_by"), str):
            return item
        probability = stored.get("selected_probability")
        known = float(probability) if isinstance(probability, (int, float)) else float("nan")
        return replace(item, selected_by=stored["selected_by"], probability=known)


def _named(name: str, found: Sequence[Flag]) -> list[Flag]:
    severity = REGISTRY[name].severity if name in REGISTRY else "info"
    return [flag for flag in found if flag.name == name] or [Flag(name, severity, UNSEEN)]
