"""Alerts and incidents: what a step raised and what a run is in, in the sentences of `explain`. Names and numbers, never a rollout's text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollout_traces.alarms.online import Judged
from rollout_traces.analysis.diagnosis import SEVERITIES, Diagnosis, Severity
from rollout_traces.analysis.faults import LOST_ADVICE, lost_text
from rollout_traces.analysis.in_words import part_text, series_text, since
from rollout_traces.flags import REGISTRY
from rollout_traces.flags.registry import ALERT_ABOVE
from rollout_traces.model.text import quoted
from rollout_traces.model.transcript import Alert

if TYPE_CHECKING:
    from rollout_traces.analysis.run_report import RunReport


def alerts_of(
    judged: Judged, step: int, n_rows: int, split: str, parameters: Mapping[str, Any]
) -> list[Alert]:
    """Lists what a step raises, the worst first.

    Args:
        judged: what it says.
        step: the step.
        n_rows: its rollouts.
        split: `rollout` or `eval-rollout`; "" for what the trainer logged.
        parameters: `<flag>.alert_above`, see `may_alert`.
    """
    where = f" on {split}" if split else ""
    found = [
        Alert(f"{name}{where}", fault_sentence(name, n, step), "error")
        for name, n in judged.faults.items()
        if may_alert(name, n / max(n_rows, 1), parameters)
    ]
    if judged.lost:
        said = f"{lost_text(judged.lost)}, {since(step, None)}. {LOST_ADVICE}"
        found.append(Alert(f"{', '.join(map(quoted, judged.lost))}{where}", said, "error"))
    found += [
        Alert(
            f"{diagnosis.name or series_text(diagnosis.series[0])}{where}",
            sentence_of(diagnosis),
            diagnosis.severity,
        )
        for diagnosis in judged.found
        if entry_may_alert(diagnosis, parameters)
    ]
    return sorted(found, key=lambda alert: SEVERITIES.index(alert.level))


def sentence_of(diagnosis: Diagnosis) -> str:
    """Says what was seen, and what to do next."""
    return f"{diagnosis.sentence} {diagnosis.advice}".strip()


def fault_sentence(name: str, n: int, step: int) -> str:
    """Says what a flag of severity error means for a step."""
    rows = "1 rollout carries" if n == 1 else f"{n:,} rollouts carry"
    return f"{rows} {name} at step {step}: {REGISTRY[name].meaning}."


def entry_may_alert(diagnosis: Diagnosis, parameters: Mapping[str, Any]) -> bool:
    """Tells whether an entry is an alert: not where all that moved are flags whose threshold is not passed."""
    moved = [(m.name, m.after) for m in diagnosis.movements]
    if not moved:
        moved = [(name, diagnosis.after) for name in diagnosis.series[:1]]
    return not moved or any(
        name.column.rsplit("/", 1)[-1] != "flags"
        or name.value is None
        or may_alert(name.value, after or 0.0, parameters)
        for name, after in moved
    )


def may_alert(flag: str, share: float, parameters: Mapping[str, Any]) -> bool:
    """Tells whether a flag's share is above its `<flag>.alert_above`; where that is None it never is."""
    above = parameters.get(f"{flag}.{ALERT_ABOVE}", 0.0)
    return above is not None and share > above


@dataclass(frozen=True)
class Incident:
    """Something that is abnormal for a run.

    Attributes:
        name: what distinguishes it from all others of its run and split: its series, the how many it is of them, its part.
        signal: the series that its sentence is of, in words.
        part: whose it is, in words; "" for all rollouts.
        severity: `error` or `warn`.
        sentence: what was seen, with its figures, and what to do next.
        opened: its first step.
        closed: its last step; None while it is in force.
        where: a filter in the query language that finds its rollouts.
        children: what moved with it or follows from it.
    """

    name: str
    signal: str
    part: str
    severity: Severity
    sentence: str
    opened: int
    closed: int | None
    where: str
    children: tuple[str, ...] = ()


def incidents_of(report: RunReport, parameters: Mapping[str, Any]) -> list[Incident]:
    """The incidents of a run's split, in the order in which they began.

    Args:
        report: what moved in it.
        parameters: `<flag>.alert_above` of the run.
    """
    found: list[Incident] = []
    n_of: Counter[tuple[str, str]] = Counter()
    listed = [each for each in report.diagnoses if each.severity != "info" and each.series]
    for each in sorted(listed, key=lambda each: each.step):
        if not entry_may_alert(each, parameters):
            continue
        signal, part = series_text(each.series[0]), part_text(each.part) if each.part else ""
        n_of[signal, part] += 1
        over = each.last is not None and report.last_step is not None and each.last < report.last_step
        further = (*each.series[1:], *(one.series[0] for one in each.consequences if one.series))
        found.append(
            Incident(
                f"{signal}@{n_of[signal, part]}" + (f"@{part}" if part else ""),
                signal,
                part,
                each.severity,
                sentence_of(each),
                each.step,
                each.last if over else None,
                each.where,
                tuple(dict.fromkeys(map(series_text, further))),
            )
        )
    return found
