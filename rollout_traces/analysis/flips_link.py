"""From an evaluation that fell to the prompts that it lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rollout_traces.analysis.diagnosis import Diagnosis
from rollout_traces.analysis.relations import Relations, current, describe


def with_flips(relations: Relations, run: str, found: Sequence[Diagnosis]) -> list[Diagnosis]:
    """Entries, where an evaluation fell with its split and the two steps between which prompts were lost."""
    return [_linked(relations, run, entry) for entry in found]


def _linked(relations: Relations, run: str, entry: Diagnosis) -> Diagnosis:
    name = next((s.column for s in entry.series if s.column.startswith("eval") and "/" in s.column), "")
    if not name or entry.before is None or entry.after is None or entry.after >= entry.before:
        return entry
    split = name.split("/", 1)[0]
    query = f"select distinct step from rollouts where run = ? and split = ? and {current(describe(relations))} order by step"
    steps = relations.sql(query, [run, split]).column("step").to_pylist()
    before = [step for step in steps if step is not None and step < entry.step]
    if not before or entry.step not in steps:
        return entry
    return replace(entry, flips=(split, int(before[-1]), entry.step))
