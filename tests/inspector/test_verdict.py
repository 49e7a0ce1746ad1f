"""The first line of the Run page."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rollout_traces.inspector.pages.verdict import verdict


def report(*diagnoses: tuple[str, int | None], n_steps: int = 40) -> SimpleNamespace:
    found = [SimpleNamespace(severity=severity, step=step) for severity, step in diagnoses]
    return SimpleNamespace(diagnoses=found, n_steps=n_steps)


def incident(severity: str, opened: int, closed: int | None = None) -> dict:
    return {"severity": severity, "opened": opened, "closed": closed}


@pytest.mark.parametrize(
    ("seen", "incidents", "said"),
    [
        (report(("error", 30), ("warn", 10)), [], ("error", "1 thing wrong", 30)),
        (report(("error", None), ("error", 12)), [], ("error", "2 things wrong", 12)),
        (report(("warn", 10)), [], ("warn", "1 thing to look at", 10)),
        (report(("warn", 10)), [incident("error", 4)], ("error", "1 open incident", 4)),
        (report(n_steps=2), [incident("error", 1)], ("error", "1 open incident", 1)),
        (report(), [incident("warn", 9), incident("warn", 7)], ("warn", "2 open incidents", 7)),
        (report(), [incident("error", 9, closed=14)], ("", "Nothing stands out", None)),
        (report(n_steps=2), [], ("unknown", "Too early to say", None)),
        (report(("info", 3)), [], ("", "Nothing stands out", None)),
    ],
)
def test_the_worst_is_counted_and_dated(seen, incidents, said):
    assert tuple(verdict(seen, incidents).values()) == said
