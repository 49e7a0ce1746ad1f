"""The table's rows as a `Ledger`: numpy columns, with its own marks for the unknown or masked ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rollout_traces.errors import StoreError
from rollout_traces.ledger.columns import NULL_INT, Kind, Ledger, kind_of
from rollout_traces.store.asking import Asking
from rollout_traces.store.columns.schema import INTERNAL, quoted
from rollout_traces.store.scope import Scope

LARGE = frozenset({"timings"})
"""Columns of long texts that no figure is made of: they are asked for by name."""


@dataclass(frozen=True)
class MaskedLedger(Ledger):
    """A ledger whose whole numbers are masked arrays: what is unknown is masked, and counts in no figure.

    Unknown floats are NaN and unknown texts None, as in every ledger.
    """

    def get(self, name: str) -> np.ndarray:
        """A column, full of unknowns when it is absent."""
        return _masked(super().get(name))

    def take(self, rows: np.ndarray) -> MaskedLedger:
        """A ledger of the given rows, in their order."""
        return MaskedLedger(super().take(rows).columns)

    def row(self, b: int) -> dict[str, Any]:
        """Row b as plain Python values, None where unknown."""
        marked = {
            name: column.filled(NULL_INT) if isinstance(column, np.ma.MaskedArray) else column
            for name, column in self.take(np.asarray([b])).columns.items()
        }
        return Ledger(marked).row(0)


def masked_ledger(ledger: Ledger) -> MaskedLedger:
    """A ledger with its unknown whole numbers masked."""
    return MaskedLedger({name: _masked(column) for name, column in ledger.columns.items()})


def _masked(column: np.ndarray) -> np.ndarray:
    if column.dtype.kind != "i" or isinstance(column, np.ma.MaskedArray):
        return column
    return np.ma.masked_equal(column, NULL_INT)


def ledger_of(asking: Asking, scope: Scope, *, from_ledgers: bool) -> Ledger:
    """The rows of a scope that ledgers know, in the order of steps; superseded ones are left out.

    Args:
        asking: asks the table.
        scope: run, split and steps.
        from_ledgers: those; else the rows that traces alone know, as of trainers that keep no ledger.
    """
    asked = asking.asked(scope)
    names = [name for name in asking.shown_columns() if name not in LARGE and _is_ledgers(name)]
    found = asking.run(
        f"SELECT {', '.join(map(quoted, names))} FROM {asking.relation({*names, *asked.columns})}"
        f" WHERE {asked.condition.text} AND coalesce(from_ledger, false) = ? AND NOT superseded"
        ' ORDER BY run_no, step, split, "row"',
        (*asked.condition.parameters, from_ledgers),
    )
    if not found.num_rows:
        return Ledger({})
    return Ledger({name: _numpy(found[name], _kind_of(name, found[name])) for name in names})


def _kind_of(name: str, column: pa.ChunkedArray) -> Kind:
    """A column's kind; an extra is of numbers where it is stored as such, of whole ones where no float holds them."""
    if not name.startswith("extra/") or not (
        pa.types.is_floating(column.type) or pa.types.is_integer(column.type)
    ):
        return kind_of(name)
    whole = pa.types.is_integer(column.type)
    return (
        "int"
        if whole
        and not pc.all(
            pc.equal(column.cast(pa.float64(), safe=False).cast(pa.int64(), safe=False), column)
        ).as_py()
        else "float"
    )


def _is_ledgers(name: str) -> bool:
    if name in INTERNAL:
        return False
    try:
        kind_of(name)
    except StoreError:
        return False
    return True


def _numpy(column: pa.ChunkedArray, kind: Kind) -> np.ndarray:
    if kind == "float":
        return column.cast(pa.float64()).to_numpy()
    if kind == "int":
        return column.cast(pa.int64(), safe=False).fill_null(NULL_INT).to_numpy()
    found = np.empty(len(column), object)
    values = column.to_pylist()
    found[:] = [tuple(names or ()) for names in values] if kind == "tags" else values
    return found
