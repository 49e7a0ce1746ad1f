"""When each value of each text column, flag, tool and error was first and last seen, and its share since.

A value counts as seen in a step with at least max(3 rollouts, 1 % of the step). Error signatures have digits,
hashes, quoted strings and paths replaced by placeholders, so that one fault is one value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rollout_traces.analysis.relations import (
    Relations,
    RolloutColumns,
    as_arrays,
    current,
    describe,
    quoted,
    sql_text,
)
from rollout_traces.analysis.scope import RunScope
from rollout_traces.flags import needs_text

RARE_TEXTS = frozenset(("answer",))
"""Text columns with too many values to follow each over the steps."""
FEWEST_ROWS = 3
SMALLEST_SHARE = 0.01
MOST_VALUES = 5_000
"""Distinct values of one column that are followed, the most frequent first; how many more there are is said."""
_PLACEHOLDERS = (
    (re.compile(r"https?://\S+"), "<url>"),
    (re.compile(r"(?:[A-Za-z]:)?(?:[/\\][\w.\-~]+){2,}"), "<path>"),
    (re.compile(r"\"[^\"\n]{1,200}\"|'[^'\n]{1,200}'|`[^`\n]{1,200}`"), "<text>"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b|\b(?=[0-9a-f]*\d)[0-9a-f]{7,64}\b", re.IGNORECASE), "<hash>"),
    (re.compile(r"\d+(?:\.\d+)?"), "<n>"),
)


@dataclass(frozen=True)
class FirstSeen:
    """When a value came and went.

    Attributes:
        column: text or tag column.
        value: the value.
        first: first step in which it was seen.
        last: last step in which it was seen.
        n_rows: rollouts that have it, over the run.
        n_steps: steps in which it was seen.
        share_since: its share of the rollouts of the steps from `first` on, of those that know the column.
        rows_before: rollouts that knew the column before `first`.
        new: whether steps before `first` knew the column and had no such rollout at all.
        stopped: whether at least three later steps, and a tenth of the run, no longer have it.
        traced_only: whether only traced rollouts can have it.
        spellings: the stored values that are counted as this one; itself alone where none are named.
    """

    column: str
    value: str
    first: int
    last: int
    n_rows: int
    n_steps: int
    share_since: float
    rows_before: int
    new: bool
    stopped: bool
    traced_only: bool
    spellings: tuple[str, ...] = ()


def seen_query(run: RunScope, seen: FirstSeen) -> str:
    """A SELECT that gives first and last step, rollouts and share of a value again.

    Args:
        run: where it was seen.
        seen: what was seen.
    """
    c, name = run.columns, quoted(seen.column)
    spelt = f"[{', '.join(map(sql_text, seen.spellings or (seen.value,)))}]"
    hits = (
        f"len(list_intersect(list_distinct({name}), {spelt}))"
        if seen.column in c.tags
        else f"cast(list_contains({spelt}, {name}) as int)"
    )
    text_flag = seen.column == "flags" and needs_text(seen.value)
    of = "count(*) filter (traced)" if text_flag and c.has("traced") else "count(*)"
    return (
        f"with by_step as (select step, sum({hits}) as n, {of} as of from rollouts where "
        f"{run.with_values(run.scope)} and {name} is not null group by step), "
        f"seen as (select min(step) as first, max(step) as last from by_step where n >= greatest({FEWEST_ROWS}, {SMALLEST_SHARE}*of)) "
        "select any_value(first) as first, any_value(last) as last, sum(n) as rollouts, sum(n) / sum(of) as share_since "
        "from by_step, seen where step >= first"
    )


def signature(text: str) -> str:
    """An error message with what differs between two of its kind replaced: numbers, hashes, paths, quotations."""
    for pattern, placeholder in _PLACEHOLDERS:
        text = pattern.sub(placeholder, text)
    return text


def first_seen(
    relations: Relations, run: str, split: str = "rollout", columns: RolloutColumns | None = None
) -> list[FirstSeen]:
    """First and last step of every value of every text column, flag, tool and error of a run.

    Args:
        relations: where to read.
        run: the run.
        split: the split.
        columns: what `rollouts` has; looked up where it is not given.

    Returns:
        In order of first step; values that were never seen in enough rollouts of a step are left out.
    """
    known = columns or describe(relations)
    found: list[FirstSeen] = []
    for name in (*known.texts, *known.tags):
        if name not in RARE_TEXTS:
            found += _of_column(relations, known, run, split, name)
    return sorted(found, key=lambda each: (each.first, -each.n_rows, each.column, each.value))


def _of_column(
    relations: Relations, columns: RolloutColumns, run: str, split: str, name: str
) -> list[FirstSeen]:
    scope = (
        f"run = ? and split = ? and {current(columns)} and step is not null and {quoted(name)} is not null"
    )
    params = [run, split]
    base = as_arrays(
        relations.sql(
            f"select step, count(*) as n from rollouts where {scope} group by step order by step", params
        )
    )
    steps, totals = base["step"].astype(np.int64), base["n"].astype(float)
    if not len(steps):
        return []
    value = f"unnest(list_distinct({quoted(name)}))" if name in columns.tags else quoted(name)
    inner = f"select step, {value} as v from rollouts where {scope}"
    counted = as_arrays(
        relations.sql(
            f"select v, step, count(*) as n from ({inner}) where v is not null group by v, step order by v, step",
            params,
        )
    )
    spelt: dict[str, list[str]] = {}
    if name == "error_signatures":
        for raw in dict.fromkeys(counted["v"].tolist()):
            spelt.setdefault(signature(raw), []).append(raw)
        counted = _merged(counted)
    texts = [f for f in set(counted["v"].tolist()) if name == "flags" and needs_text(f)]
    traced = _traced(relations, columns, scope, params, steps) if texts else totals
    out = []
    for v, at, n in _by_value(counted, steps):
        of = traced if v in texts else totals
        entry = _entry(name, v, steps, at, n, of, v in texts or name in ("tool_names", "error_signatures"))
        if entry is not None:
            out.append(replace(entry, spellings=tuple(spelt.get(v, ()))))
    return out


def _entry(
    column: str,
    value: str,
    steps: np.ndarray,
    at: np.ndarray,
    n: np.ndarray,
    totals: np.ndarray,
    traced: bool,
) -> FirstSeen | None:
    enough = n >= np.maximum(FEWEST_ROWS, SMALLEST_SHARE * totals[at])
    if not enough.any():
        return None
    seen = at[enough]
    first, last = int(seen[0]), int(seen[-1])
    since = totals[first:].sum()
    later = len(steps) - 1 - last
    return FirstSeen(
        column=column,
        value=value,
        first=int(steps[first]),
        last=int(steps[last]),
        n_rows=int(n.sum()),
        n_steps=int(enough.sum()),
        share_since=float(n[at >= first].sum() / since) if since else 0.0,
        rows_before=int(totals[:first].sum()),
        new=bool(first > 0 and totals[:first].sum() > 0 and at[0] == first),
        stopped=later >= max(3, len(steps) // 10),
        traced_only=traced,
    )


def _traced(
    relations: Relations, columns: RolloutColumns, scope: str, params: Sequence[str], steps: np.ndarray
) -> np.ndarray:
    """float [T]: traced rollouts of each step, which are those that can carry a flag of the text."""
    if not columns.has("traced"):
        return np.zeros(len(steps))
    found = as_arrays(
        relations.sql(
            f"select step, count(*) as n from rollouts where {scope} and traced group by step", params
        )
    )
    totals = np.zeros(len(steps))
    totals[np.searchsorted(steps, found["step"].astype(np.int64))] = found["n"]
    return totals


def _merged(counted: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Counts of messages as counts of their signatures."""
    sums: dict[tuple[str, int], float] = {}
    for v, step, n in zip(
        counted["v"].tolist(), counted["step"].tolist(), counted["n"].tolist(), strict=True
    ):
        key = (signature(v), int(step))
        sums[key] = sums.get(key, 0) + n
    ordered = sorted(sums)
    return {
        "v": np.asarray([key[0] for key in ordered], object),
        "step": np.asarray([key[1] for key in ordered], np.int64),
        "n": np.asarray([sums[key] for key in ordered], float),
    }


def _by_value(counted: dict[str, np.ndarray], steps: np.ndarray) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Value, positions of its steps and counts there, for the most frequent values."""
    v, n = counted["v"], counted["n"].astype(float)
    if not len(v):
        return []
    at = np.searchsorted(steps, counted["step"].astype(np.int64))
    starts = np.flatnonzero(np.r_[True, v[1:] != v[:-1]])
    stops = np.r_[starts[1:], len(v)]
    parts = [(str(v[a]), at[a:b], n[a:b]) for a, b in zip(starts, stops, strict=True)]
    parts.sort(key=lambda part: -float(part[2].sum()))
    return parts[:MOST_VALUES]
