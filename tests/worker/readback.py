"""What a project holds, read without any of this package's own readers."""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import orjson

from rollout_traces.ledger.columns import Ledger
from rollout_traces.trace.conversion import TraceRecord, read_ledger


def rows(folder: Path, sql: str, *values: Any, project: str = "p") -> list[tuple]:
    """Rows of a query on a project's database; none when there is no database or table yet."""
    if not (folder / f"{project}.db").exists():
        return []
    with sqlite3.connect(folder / f"{project}.db") as db:
        if not db.execute("select 1 from sqlite_master where name = 'traces'").fetchone():
            return []
        return db.execute(sql, values).fetchall()


def trace_uids(folder: Path, key: str = "rollout/trajectories", project: str = "p") -> Counter[str]:
    """uid -> how often it is stored."""
    found = rows(folder, "select metadata from traces where key = ?", key, project=project)
    return Counter(orjson.loads(metadata)["uid"] for (metadata,) in found)


def trace_steps(folder: Path, key: str = "rollout/trajectories", project: str = "p") -> Counter[int]:
    """step -> how many traces are stored at it."""
    return Counter(
        step for (step,) in rows(folder, "select step from traces where key = ?", key, project=project)
    )


def ledgers(folder: Path, key: str = "rollout/steps", project: str = "p") -> list[tuple[int, Ledger]]:
    """(step, ledger) of every step summary."""
    found = rows(
        folder,
        "select step, messages, metadata, spans from traces where key = ? order by step",
        key,
        project=project,
    )
    return [
        (step, read_ledger(TraceRecord(*(orjson.loads(part) for part in parts)))) for step, *parts in found
    ]


def ledger_uids(folder: Path, key: str = "rollout/steps", project: str = "p") -> Counter[str]:
    """uid -> how many ledger rows have it."""
    return Counter(uid for _, ledger in ledgers(folder, key, project) for uid in ledger.get("uid").tolist())


def scalar_steps(folder: Path, key: str, project: str = "p") -> Counter[int]:
    """step -> how often a scalar is stored at it."""
    found = rows(folder, "select step, metrics from metrics", project=project)
    return Counter(step for step, metrics in found if key in orjson.loads(metrics))
