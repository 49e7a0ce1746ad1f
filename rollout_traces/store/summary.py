"""One line a step: what the ledger, or where there is none the traces, say of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollout_traces.ledger.columns import NULL_INT, Ledger, concatenate, kind_of
from rollout_traces.store.rows import TraceRow
from rollout_traces.store.steps import tied
from rollout_traces.store.store import EVERYTHING, Steps, Store

_NEEDED = ("step", "group", "reward", "stop_reason", "n_sampled", "staleness_max", "flags")


@dataclass(frozen=True)
class StepSummary:
    """A step of a split in figures.

    Attributes:
        run: the run's name.
        split: the split.
        step: the step.
        rollouts: rollouts that the figures speak of: all of the step, or the traced ones without a ledger.
        traced: rollouts kept as traces.
        reward_mean: mean of the known rewards; None when there are none.
        reward_std: their population standard deviation.
        tied_groups: share of groups of two or more whose rewards are all equal.
        truncated: share of rollouts that were cut by length, of those with a stop reason.
        sampled_mean: mean sampled tokens.
        staleness_max: the stalest token's staleness.
        flags: how many rollouts have each flag, most frequent first.
    """

    run: str
    split: str
    step: int
    rollouts: int
    traced: int
    reward_mean: float | None
    reward_std: float | None
    tied_groups: float | None
    truncated: float | None
    sampled_mean: float | None
    staleness_max: int | None
    flags: Mapping[str, int]


def summarise_steps(
    store: Store, run: str | None = None, split: str | None = None, steps: Steps = EVERYTHING
) -> list[StepSummary]:
    """Every step of a run, or of all runs.

    Args:
        store: the store.
        run: id or name of a run.
        split: a split.
        steps: first and last step, both included.
    """
    found = []
    for info in [store.run(run)] if run is not None else store.runs():
        for name in [split] if split is not None else info.splits:
            traced = {step.step: step.n_traces for step in store.steps(info.id, name)}
            ledger = store.ledger(info.id, name, steps)
            missing = {step for step in traced if within(step, steps)} - {*ledger.get("step").tolist()}
            if missing:
                ledger = concatenate([ledger, _from_traces(store, info.id, name, missing)])
            found += [
                _summary((info.name, name, step), rows, traced.get(step, 0))
                for step, rows in _by_value(ledger, "step")
            ]
    return found


def within(step: int, steps: Steps) -> bool:
    """True when a step lies between two, both included, None for an open end."""
    return (steps[0] is None or step >= steps[0]) and (steps[1] is None or step <= steps[1])


def _from_traces(store: Store, run_id: str, split: str, steps: set[int]) -> Ledger:
    """The columns that the summary needs, of traces without a ledger."""
    rows: list[TraceRow] = []
    after = None
    while True:
        page = store.query(run_id, split, limit=10_000, after=after)
        rows += [row for row in page.rows if row.step in steps]
        after = page.next
        if after is None:
            return Ledger({name: _column(name, [row[name] for row in rows]) for name in _NEEDED})


def _column(name: str, values: list[Any]) -> np.ndarray:
    kind = kind_of(name)
    if kind == "float":
        return np.asarray([v if isinstance(v, int | float) else np.nan for v in values], np.float64)
    if kind == "int":
        return np.asarray([v if isinstance(v, int) else NULL_INT for v in values], np.int64)
    column = np.empty(len(values), object)
    column[:] = [() if v is None and kind == "tags" else v for v in values]
    return column


def _summary(place: tuple[str, str, int], rows: Ledger, traced: int) -> StepSummary:
    rewards = rows.get("reward")
    known = rewards[np.isfinite(rewards)]
    groups = [group.get("reward") for _, group in _by_value(rows, "group") if group.n_rows > 1]
    reasons = [reason for reason in rows.get("stop_reason").tolist() if reason is not None]
    sampled = rows.get("n_sampled")
    stale = rows.get("staleness_max")
    return StepSummary(
        run=place[0],
        split=place[1],
        step=place[2],
        rollouts=rows.n_rows,
        traced=traced,
        reward_mean=float(known.mean()) if len(known) else None,
        reward_std=float(known.std()) if len(known) else None,
        tied_groups=sum(tied(group.tolist()) for group in groups) / len(groups) if groups else None,
        truncated=sum(reason == "length" for reason in reasons) / len(reasons) if reasons else None,
        sampled_mean=float(sampled[sampled != NULL_INT].mean()) if (sampled != NULL_INT).any() else None,
        staleness_max=int(stale.max()) if (stale != NULL_INT).any() else None,
        flags=dict(
            Counter(flag for flags in rows.get("flags").tolist() for flag in flags or ()).most_common()
        ),
    )


def _by_value(ledger: Ledger, name: str) -> Iterator[tuple[int, Ledger]]:
    """Rows that share a known integer, in its order."""
    values = ledger.get(name)
    order = np.argsort(values, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(values[order])) + 1) if len(order) else ():
        if values[rows[0]] != NULL_INT:
            yield int(values[rows[0]]), ledger.take(rows)
