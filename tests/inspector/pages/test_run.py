"""The first line of the Run page."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rollout_traces.analysis.run_report import RunReport
from rollout_traces.analysis.selections import RunScope
from rollout_traces.inspector.pages.measures import MEASURES
from rollout_traces.inspector.pages.run import MATTERS, Verdict, _metrics, verdict
from tests.analysis.builders import steps, table


def report(*diagnoses: tuple[str, int], n_steps: int = 40) -> RunReport:
    found = [SimpleNamespace(severity=severity, step=step) for severity, step in diagnoses]
    return RunReport("run", "rollout", tuple(found), n_steps=n_steps)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (report(("error", 30), ("warn", 10)), ("error", "1 thing wrong", 30)),
        (report(("error", 30), ("error", 12)), ("error", "2 things wrong", 12)),
        (report(("warn", 10)), ("warn", "1 thing to look at", 10)),
        (report(("error", 1), n_steps=2), ("error", "1 thing wrong", 1)),
        (report(n_steps=2), ("unknown", "Too early to say", None)),
        (report(("info", 3)), ("", "No warning; 1 thing to know", None)),
        (report(), ("", "Nothing stands out", None)),
    ],
)
def test_the_worst_is_counted_and_dated(seen, said):
    assert verdict(seen) == Verdict(*said)


@pytest.mark.parametrize(("score", "unit"), [("success", "share"), ("reward", "number")])
def test_an_evaluation_has_the_unit_of_what_it_is_a_mean_of(score, unit):
    """Seen once: "Solved 48%" beside "Evaluation, success 0.651"."""
    rows = [*steps(4, **{score: 1}), *steps(2, split="eval-rollout", **{score: 0})]
    units = {chart.title: chart.unit for chart in _metrics(RunScope(table(rows), "run", "rollout"))}
    of_training = "Solved" if score == "success" else "Reward, mean"
    assert units[f"Evaluation, {score}"] == units[of_training] == unit


def test_what_health_shows_too_has_its_word() -> None:
    """Seen once: “Trainer against sampler, k3” here and “Mismatch of a token, k3” there."""
    [title] = [title for key, title, _ in MATTERS if key == "mismatch_k3"]
    [of_health] = [measure.title for measure in MEASURES if measure.key == "mismatch/k3"]
    assert title.split()[0] == of_health.split()[0]
