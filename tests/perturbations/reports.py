"""Reports made up from the truth: a perfect one, an empty one, ones that are wrong in a known way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.perturbations.change import Perturbation
from tests.perturbations.named import Series
from tests.perturbations.scorer import size_of
from tests.perturbations.truth import Trial


def entry(shown: Series, p: Perturbation, **other: Any) -> SimpleNamespace:
    """An entry that says of a series what a perturbation did."""
    given = {
        "severity": "warn",
        "sentence": f"{shown.column} {p.shape} from {p.onset}",
        "series": (SimpleNamespace(column=shown.column, value=shown.value, statistic=shown.statistic),),
        "part": p.part,
        "also": (),
        "shape": p.shape,
        "onset": (p.onset, p.onset),
        "step": p.onset,
        "end": (p.last, p.last) if p.shape in ("spike", "window") else None,
        "last": p.last if p.shape in ("spike", "window") else None,
        "before": None,
        "after": None,
        "consequences": (),
    }
    return SimpleNamespace(**(given | other))


def perfect_report(trial: Trial, least: float = 5.0, **other: Any) -> SimpleNamespace:
    """An entry for each perturbation of some size, of its most visible series, the largest first."""
    found = sorted(((size_of(trial, p), p) for p in trial.perturbations), key=lambda one: -one[0].size)
    entries = [
        entry(seen.series, p, **{"part": seen.part, **other})
        for seen, p in found
        if seen.series is not None and seen.size >= least
    ]
    return SimpleNamespace(diagnoses=tuple(entries), problems=())


def empty_report() -> SimpleNamespace:
    """A report without entries."""
    return SimpleNamespace(diagnoses=(), problems=())
