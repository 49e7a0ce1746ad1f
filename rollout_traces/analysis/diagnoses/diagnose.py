"""All rules over one run, in causal order, and what is unobserved."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rollout_traces.analysis.diagnoses import (
    creeping,
    data,
    environment,
    evaluation_alone,
    lost_values,
    outcomes,
    policy,
    reward_values,
    suddenly_frequent,
    update,
)
from rollout_traces.analysis.diagnoses.base import (
    OTHER,
    Diagnosis,
    Evidence,
    Severity,
    change_text,
    figures,
    filter_of,
)
from rollout_traces.analysis.diagnoses.data import severity_of
from rollout_traces.analysis.diagnoses.order import in_causal_order
from rollout_traces.analysis.diagnoses.unobserved import Unobserved, unobserved
from rollout_traces.analysis.diagnoses.values_moved import values_moved
from rollout_traces.analysis.movement import Moved
from rollout_traces.analysis.recomputed import level_query
from rollout_traces.analysis.relations import Relations
from rollout_traces.analysis.series import RunSeries

RULES = (
    *lost_values.RULES,
    *suddenly_frequent.RULES,
    *evaluation_alone.RULES,
    *data.RULES,
    *environment.RULES,
    *reward_values.RULES,
    *policy.RULES,
    *update.RULES,
    *outcomes.RULES,
    *creeping.RULES,
)
"""Every rule, in the order of the tiers. A new one is a function of a tier's file and an entry in its `RULES`."""
FEWEST_STEPS = 10
SURE = 0.01
"""An error has at most this chance over all series of the run; what is less sure is a warning."""


@dataclass(frozen=True, eq=False)
class RunReport:
    """What is to be said of a run.

    Attributes:
        run: its name.
        split: the split.
        diagnoses: in causal order, consequences nested.
        unobserved: what cannot be known.
        remarks: what limits the answer, in words.
        n_steps: steps.
        n_rows: rollouts.
        evidence: what it was made from.
    """

    run: str
    split: str
    diagnoses: tuple[Diagnosis, ...]
    unobserved: tuple[Unobserved, ...]
    remarks: tuple[str, ...]
    n_steps: int
    n_rows: int
    evidence: Evidence


def diagnose(relations: Relations, run: str, split: str = "rollout") -> RunReport:
    """What is wrong with a run, since when and for whom.

    Args:
        relations: where to read.
        run: the run as `rollouts` names it.
        split: the split.
    """
    return diagnose_series(RunSeries(relations, run, split))


def diagnose_series(series: RunSeries) -> RunReport:
    """What is wrong with a run and split that are at hand as series."""
    e, run, split = Evidence(series), series.run, series.split
    n_steps, n_rows = len(e.run.steps), int(e.run.row_counts.sum()) if len(e.run.steps) else 0
    remarks = []
    if not n_rows:
        return RunReport(run, split, (), (), (f"No rollouts of split {split!r} in run {run!r}.",), 0, 0, e)
    if n_steps < FEWEST_STEPS:
        remarks.append(f"{n_steps} steps are too few to look for changes; {FEWEST_STEPS} are needed.")
    found = [diagnosis for rule in RULES for diagnosis in rule(e)]
    found += values_moved(e, found)
    found += _rest(e, found)
    diagnoses = tuple(in_causal_order([_as_sure(d, e) for d in _once(found)]))
    return RunReport(run, split, diagnoses, tuple(unobserved(e)), tuple(remarks), n_steps, n_rows, e)


BETTER_LOW = ("mismatch_k3", "mismatch_abs_max")
"""Columns that say nothing bad when they fall."""


def _rest(e: Evidence, entries: list[Diagnosis]) -> list[Diagnosis]:
    """What moved and no rule speaks of."""
    spoken = " ".join(d.sentence for d in entries)
    return [
        Diagnosis("moved", f"{m.name} moved: {change_text(m)}.", _severity(m), OTHER, m.step, m.last, m.part,
                  figures(m), filter_of(m), (level_query(e.run, m),), "")
        for m in e.moved
        if not _spoken_of(m, spoken) and m.column not in ("source", "engine", "reward_status", "stop_reason")
        and not (m.value is not None and not m.rises)
        and not m.column.startswith(("group/", "reward/", "component/", "prompts/", "update/", "advantage/"))
    ]  # fmt: skip


def _spoken_of(m: Moved, spoken: str) -> bool:
    """Whether a sentence names a movement: by column and value, or a flag by its name."""
    return m.name in spoken or (m.column == "flags" and m.value is not None and m.value in spoken)


def _severity(m: Moved) -> Severity:
    """A flag that is only reported is no warning, nor engines that share the work otherwise, nor a mismatch that falls."""
    if m.column == "flags":
        return "info" if severity_of(m.value) in (None, "info") else "warn"
    falls = m.column in BETTER_LOW and not m.rises
    return "info" if falls or m.column == "engine" else "warn"


def _as_sure(d: Diagnosis, e: Evidence) -> Diagnosis:
    """A diagnosis whose severity is no graver than its evidence is sure."""
    unsure = d.figures.get("p", 0.0) * e.movements.n_series > SURE
    return replace(d, severity="warn") if d.severity == "error" and unsure else d


def _once(found: list[Diagnosis]) -> list[Diagnosis]:
    """Each statement once."""
    return list({d.sentence: d for d in found}.values())
