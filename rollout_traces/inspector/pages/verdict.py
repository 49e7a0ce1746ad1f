"""The Run page's first line: what is wrong, since when, or that nothing is known to be."""

from __future__ import annotations

from typing import Any

from rollout_traces.analysis import RunReport
from rollout_traces.analysis.run_report import FEWEST_STEPS

WORDS = {"error": "{n} {things} wrong", "warn": "{n} {things} to look at"}


def verdict(report: RunReport) -> dict[str, Any]:
    """Counts what the diagnoses say.

    Args:
        report: the run's diagnoses.

    Returns:
        `severity`: "error", "warn", "unknown" after too few steps, "" where nothing was found; `text`; and
        `since`, the first step that any of it began at, None where none is known.
    """
    for severity, words in WORDS.items():
        steps = [d.step for d in report.diagnoses if d.severity == severity]
        if steps:
            text = words.format(n=len(steps), things="thing" if len(steps) == 1 else "things")
            return {"severity": severity, "text": text, "since": min(steps)}
    if report.n_steps < FEWEST_STEPS:
        return {"severity": "unknown", "text": "Too early to say", "since": None}
    return {"severity": "", "text": "Nothing stands out", "since": None}
