"""The ledgers of many steps as one."""

from __future__ import annotations

import sqlite3

import numpy as np

from rollout_traces.ledger import columns as ledgers
from rollout_traces.ledger.columns import Ledger
from rollout_traces.store.damage import damage_said
from rollout_traces.store.scope import Scope


def read_ledgers(connection: sqlite3.Connection, scope: Scope) -> Ledger:
    """All rows of the scope's steps; where a row was handed over again, the newer one.

    Args:
        connection: the index.
        scope: run, split and steps.
    """
    place, parameters = scope.place()
    found = connection.execute(
        f"SELECT packed, run, split, step, n_rows FROM digests t WHERE packed IS NOT NULL AND n_rows > 0 AND {place}"
        " ORDER BY run, step, split, digest",
        parameters,
    ).fetchall()
    parts = []
    runs: list[int] = []
    for packed, run, split, step, _ in found:
        with damage_said(f"the ledger of step {step}"):
            ledger = ledgers.unpack(packed)
        n = ledger.n_rows
        parts.append(ledger.with_columns(step=np.full(n, step, np.int64), split=np.full(n, split, object)))
        runs += [run] * n
    if not parts:
        return Ledger({})
    joined = ledgers.concatenate(parts)
    return _newest(joined, runs)


def _newest(ledger: Ledger, runs: list[int]) -> Ledger:
    last: dict[tuple[int, object], int] = {}
    for row, (run, uid) in enumerate(zip(runs, ledger.get("uid").tolist(), strict=True)):
        last[(run, row if uid is None else uid)] = row
    return ledger if len(last) == ledger.n_rows else ledger.take(np.asarray(sorted(last.values())))
