"""The incidents of a run: what `explain` says of it as a warning or an error, and whether it is in force."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollout_traces.alarms.alerts import entry_may_alert, sentence_of
from rollout_traces.analysis.diagnosis import Severity
from rollout_traces.analysis.in_words import part_text, series_text

if TYPE_CHECKING:
    from rollout_traces.analysis.run_report import RunReport


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
