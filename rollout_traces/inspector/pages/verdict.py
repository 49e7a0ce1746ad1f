"""The Run page's first line: what is wrong, since when, or that nothing is known to be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollout_traces.analysis import RunReport
from rollout_traces.analysis.run_report import FEWEST_STEPS

WORDS = {"error": "{n} {things} wrong", "warn": "{n} {things} to look at"}


def verdict(report: RunReport, incidents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts what the diagnoses say; where they name nothing as severe, the open incidents.

    Args:
        report: the run's diagnoses.
        incidents: as `incidents_listed` returns them.

    Returns:
        `severity`: "error", "warn", "unknown" after too few steps, "" where nothing was found; `text`; and
        `since`, the first step that any of it began at, None where none is known.
    """
    opened = [each for each in incidents if each["closed"] is None]
    for severity, words in WORDS.items():
        steps = [d.step for d in report.diagnoses if d.severity == severity]
        what = "thing"
        if not steps:
            steps = [each["opened"] for each in opened if each["severity"] == severity]
            words, what = "{n} open {things}", "incident"
        if steps:
            known = [step for step in steps if step is not None]
            text = words.format(n=len(steps), things=what if len(steps) == 1 else f"{what}s")
            return {"severity": severity, "text": text, "since": min(known, default=None)}
    if report.n_steps < FEWEST_STEPS:
        return {"severity": "unknown", "text": "Too early to say", "since": None}
    return {"severity": "", "text": "Nothing stands out", "since": None}
