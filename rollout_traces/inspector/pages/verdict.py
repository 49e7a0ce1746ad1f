"""The Run page's first line: what is wrong, since when, or that nothing is known to be."""

from __future__ import annotations

from dataclasses import dataclass

from rollout_traces.analysis import RunReport
from rollout_traces.analysis.run_report import FEWEST_STEPS

WORDS = {"error": "{n} {things} wrong", "warn": "{n} {things} to look at"}


@dataclass(frozen=True)
class Verdict:
    """The line.

    Attributes:
        severity: "error", "warn", "unknown" after too few steps, "" where nothing was found.
        text: in words.
        since: the first step that any of it began at; None where none is known.
    """

    severity: str
    text: str
    since: int | None = None


def verdict(report: RunReport) -> Verdict:
    """Counts what the diagnoses say.

    Args:
        report: the run's diagnoses.
    """
    for severity, words in WORDS.items():
        steps = [d.step for d in report.diagnoses if d.severity == severity]
        if steps:
            text = words.format(n=len(steps), things="thing" if len(steps) == 1 else "things")
            return Verdict(severity, text, min(steps))
    if report.n_steps < FEWEST_STEPS:
        return Verdict("unknown", "Too early to say")
    return Verdict("", "Nothing stands out")
