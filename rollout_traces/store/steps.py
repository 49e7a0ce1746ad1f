"""Runs, splits, steps and groups of an index."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rollout_traces.errors import StoreError
from rollout_traces.ledger.groups import ZERO_ADVANTAGE, GroupIndex, tied_groups
from rollout_traces.store.asking import Asking
from rollout_traces.store.rollout_table import TRAINING
from rollout_traces.store.rows import Group, RunInfo, StepGroups, StepInfo, TraceRow, number_of

Place = tuple[str, str, int]
NO_PLACE = -1
"""The number of a place of which nothing was logged."""


def list_runs(connection: sqlite3.Connection) -> list[RunInfo]:
    """The project's runs, oldest first."""
    splits: dict[int, dict[str, tuple[int, int]]] = {}
    for run, split, n_traces, n_ledger in connection.execute(
        "SELECT run, split, sum(n_traces), sum(n_ledger) FROM parts JOIN places USING (place) WHERE NOT dead"
        " GROUP BY run, split"
    ):
        splits.setdefault(run, {})[split] = (n_traces, n_ledger)
    attempts: dict[int, list[tuple[str, int]]] = {}
    for run, attempt, first in connection.execute(
        "SELECT run, attempt, first_step FROM attempts WHERE split = ? ORDER BY attempt", (TRAINING,)
    ):
        attempts.setdefault(run, []).append((attempt, first))
    return [
        RunInfo(
            id=run_id,
            name=name,
            started=started or "",
            last_step=last_step or 0,
            n_traces=sum(n for n, _ in splits.get(run, {}).values()),
            n_rollouts=sum(n for _, n in splits.get(run, {}).values()),
            splits=tuple(sorted(splits.get(run, {}), key=lambda split: (split != TRAINING, split))),
            attempts=tuple(attempts.get(run, ())),
        )
        for run, run_id, name, started, last_step in connection.execute(
            "SELECT run, run_id, name, started, last_step FROM runs ORDER BY started, run"
        ).fetchall()
    ]


def find_run_id(connection: sqlite3.Connection, wanted: str) -> str:
    """The id of the run of that id or name, or the only one whose id or name begins so.

    Raises:
        StoreError: there is none, or several share the name or beginning.
    """
    runs = connection.execute("SELECT run_id, name, started FROM runs ORDER BY started, run").fetchall()
    found = (
        [run for run in runs if run[0] == wanted]
        or [run for run in runs if run[1] == wanted]
        or [run for run in runs if wanted and (run[0].startswith(wanted) or run[1].startswith(wanted))]
    )
    if not found:
        raise StoreError(f"no run {wanted!r}. Runs: {', '.join(name for _, name, _ in runs) or 'none'}.")
    if len(found) > 1:
        ids = ", ".join(f"{run_id} ({name}, started {started})" for run_id, name, started in found)
        raise StoreError(f"{len(found)} runs are meant by {wanted!r}; give the id of one: {ids}.")
    return str(found[0][0])


def find_trace(connection: sqlite3.Connection, wanted: str) -> str:
    """The id of the trace with an id or uid, or the only one that begins so.

    Args:
        wanted: the id, uid, or beginning of either.

    Raises:
        StoreError: there is none, or there are several.
    """
    tests = ("?2 IS NOT NULL AND (id = ?1 OR uid = ?1)", "id >= ?1 AND id < ?2 OR uid >= ?1 AND uid < ?2")
    for test in tests:
        stored = connection.execute(
            f"SELECT id, uid, place FROM docs WHERE kind <> 'digest' AND ({test}) ORDER BY doc DESC LIMIT 8",
            (wanted, wanted + "\U0010ffff"),
        ).fetchall()
        newest: dict[Any, tuple[str, Any]] = {}
        for trace_id, uid, place in stored:
            newest.setdefault(trace_id if uid is None else (uid, place), (trace_id, uid))
        found = sorted(newest.values(), key=lambda each: str(each[1]))[:4]
        if len(found) == 1 and wanted:
            return str(found[0][0])
        if len(found) > 1:
            some = ", ".join(str(trace_id if uid is None else uid) for trace_id, uid in found)
            raise StoreError(f"more than one rollout begins with {wanted!r}: {some}. Give more of it.")
    raise StoreError(f"no trace {wanted!r}. `rollout-traces list` shows what there is.")


def is_resumed(connection: sqlite3.Connection, run_id: str) -> bool:
    """Tells whether a run has several attempts."""
    query = "SELECT count(DISTINCT attempt) > 1 FROM attempts JOIN runs USING (run) WHERE run_id = ?"
    return bool(connection.execute(query, (run_id,)).fetchone()[0])


def list_steps(
    connection: sqlite3.Connection, run_id: str, split: str, lost: Mapping[int, tuple[int, int]]
) -> list[StepInfo]:
    """The steps of a split that have traces or a ledger, in order.

    Args:
        lost: step -> traces and rows of ledgers that are not counted, see `superseded`.
    """
    found = connection.execute(
        "SELECT p.step, coalesce(sum(a.n_traces), 0), coalesce(sum(a.n_ledger), 0),"
        " (SELECT d.id FROM docs d WHERE d.place = p.place AND d.kind = 'digest' ORDER BY d.doc DESC LIMIT 1) AS digest"
        " FROM places p LEFT JOIN parts a ON a.place = p.place AND NOT a.dead"
        " WHERE p.run = (SELECT run FROM runs WHERE run_id = ?) AND p.split = ?"
        " GROUP BY p.place HAVING count(a.place) > 0 OR digest IS NOT NULL ORDER BY p.step",
        (run_id, split),
    ).fetchall()
    none = (0, 0)
    return [
        StepInfo(
            step, n_traces - lost.get(step, none)[0], (n_ledger - lost.get(step, none)[1]) or None, digest
        )
        for step, n_traces, n_ledger, digest in found
    ]


def list_summaries(connection: sqlite3.Connection, place: Place) -> list[str]:
    """The ids of the summaries of a step, in order of arrival."""
    found = connection.execute(
        "SELECT d.id FROM docs d JOIN places USING (place) JOIN runs USING (run)"
        " WHERE run_id = ? AND split = ? AND step = ? AND d.kind = 'digest' ORDER BY d.doc",
        place,
    )
    return [digest for (digest,) in found]


def superseded(asking: Asking, run_id: str, split: str) -> dict[int, tuple[int, int]]:
    """Step -> traces and rows of ledgers that a later attempt superseded."""
    found = asking.run(
        "SELECT step, count(doc), count(from_ledger) FROM rows WHERE run_id = ? AND split = ? AND superseded"
        " GROUP BY step",
        (run_id, split),
    )
    return {row[0]: (row[1], row[2]) for row in zip(*found.to_pydict().values(), strict=True)}


def list_groups(asking: Asking, place: Place) -> StepGroups:
    """The groups of one step; rows that a later attempt superseded are left out where it wrote the step too.

    Args:
        asking: asks the table.
        place: run id, split and step.
    """
    run_id, split, step = place
    number = asking.connection.execute(
        "SELECT place FROM places WHERE run = (SELECT run FROM runs WHERE run_id = ?) AND split = ? AND step = ?",
        place,
    ).fetchone() or (NO_PLACE,)
    in_place = 'place = ? ORDER BY "row"'
    rows = asking.rows(in_place, asking.shown_columns(), number)
    from_ledger = asking.run(f"SELECT from_ledger FROM rows WHERE {in_place}", number)[
        "from_ledger"
    ].to_pylist()
    both = [*zip(rows, from_ledger, strict=True)]
    by_group: dict[int | None, tuple[list[TraceRow], list[TraceRow]]] = {}
    for row, known in [each for each in both if not each[0].values["superseded"]] or both:
        traced, ledger = by_group.setdefault(row.values.get("group"), ([], []))
        if row.id is not None:
            traced.append(row)
        if known:
            ledger.append(row)
    ties = _ties([ledger or traced for traced, ledger in by_group.values()])
    groups = [_group(group, *rows, tie) for (group, rows), tie in zip(by_group.items(), ties, strict=True)]
    groups.sort(key=lambda group: (group.group is None, group.group))
    traces = [row for group in groups for row in group.traces]
    chosen = Counter(str(row.values["selected_by"]) for row in traces if "selected_by" in row.values)
    summaries = list_summaries(asking.connection, place)
    return StepGroups(
        run_id=run_id,
        split=split,
        step=step,
        groups=tuple(groups),
        n_rollouts=sum(len(ledger) for _, ledger in by_group.values()) or None,
        n_traces=len(traces),
        digest_id=summaries[-1] if summaries else None,
        selected_by=dict(chosen.most_common()),
    )


def _ties(groups: Sequence[Sequence[TraceRow]]) -> list[bool]:
    """Tells of each group whether its rewards are tied."""
    known = [row.values for rows in groups for row in rows]
    rewards = np.array([number_of(row.get("reward")) for row in known], np.float64)
    failed = np.array([row.get("reward_status", "ok") != "ok" for row in known], bool)
    codes = np.repeat(np.arange(len(groups)), [len(rows) for rows in groups])
    ties = np.zeros(len(groups), bool)
    if len(codes):
        ties[np.unique(codes)] = tied_groups(GroupIndex.of(codes), np.where(failed, np.nan, rewards), failed)
    return ties.tolist()


def _group(group: int | None, traced: list[TraceRow], ledger: list[TraceRow], tied: bool) -> Group:
    rows = ledger or traced
    advantages = [number_of(row["advantage"]) for row in rows]
    return Group(
        group=group,
        prompt_key=next((key for row in rows if (key := row["prompt_key"]) is not None), None),
        prompt=next((row.values["prompt"] for row in traced if row.values.get("prompt")), ""),
        traces=tuple(sorted(traced, key=_best_first)),
        rows=tuple(rows),
        tied=tied,
        zero_advantage=all(a is not None and abs(a) <= ZERO_ADVANTAGE for a in advantages),
        from_ledger=bool(ledger),
    )


def _best_first(row: TraceRow) -> tuple[bool, float, int]:
    reward = number_of(row["reward"])
    return reward is None, -(reward or 0.0), row.values.get("sample") or 0
