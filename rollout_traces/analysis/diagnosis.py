"""Diagnoses: what a series did, and what is said of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rollout_traces.analysis.curves import Part, SeriesName

Severity = Literal["error", "warn", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warn", "info")
"""Severities, the worst first."""
Shape = Literal["spike", "window", "level", "ramp", "came", "went", "standing", "recurring"]
TIERS = ("data and masks", "environment and reward", "sampler and weights", "update", "outcome", "other")
"""Tiers; one can cause those after it, and it decides which series gives an entry its sentence."""
DATA, ENVIRONMENT, *_, OTHER = range(len(TIERS))


@dataclass(frozen=True)
class Carrier:
    """A row that carries a spike.

    Attributes:
        uid: the rollout.
        step: the step.
        share: its part of the step's summed absolute contributions.
    """

    uid: str
    step: int
    share: float


@dataclass(frozen=True)
class Movement:
    """Change of one series at some of its steps.

    Attributes:
        name: the series.
        part: the rows: () for all, None where they cannot be told apart.
        shape: what it is.
        onset: 90 % interval of the first step.
        step: the best estimate of it.
        end: interval of the last step, None where it lasts.
        last: the best estimate of it, None where it lasts.
        before: level before, of a window on both sides; None where there is none.
        after: level at its steps.
        z: size in standard errors of it.
        p: chance of such a size anywhere in the series without a movement.
        elsewhere: level at its steps outside of the part; None without an outside.
        also: other ways of cutting that do equally well.
        carriers: rows that carry a spike.
        drift: whether it is slow change over a large part of the run.
        is_set: whether somebody set it.
        figures_of: the part whose levels these are, where the part cannot be told; () where they are its own.
    """

    name: SeriesName
    part: Part | None
    shape: Shape
    onset: tuple[int, int]
    step: int
    end: tuple[int, int] | None
    last: int | None
    before: float | None
    after: float | None
    z: float
    p: float
    elsewhere: float | None = None
    also: tuple[Part, ...] = ()
    carriers: tuple[Carrier, ...] = ()
    drift: bool = False
    is_set: bool = False
    figures_of: Part = ()


@dataclass(frozen=True)
class Diagnosis:
    """A statement about a run.

    Attributes:
        severity: error, warn or info.
        sentence: what was seen, with its figures.
        advice: what to do next.
        tier: index of `TIERS`.
        series: the series that moved alike, the one of the sentence first; none for a setting.
        part: the rows: () for all, None for "part unknown".
        also: other ways of cutting that do equally well.
        shape: what it is, by the series that shows it best; so too what follows, unless it says otherwise.
        onset: 90 % interval of the first step.
        step: the best estimate of it.
        end: interval of the last step, None where it lasts.
        last: the best estimate of it.
        carriers: rows that carry a spike.
        before: level before, of the first series.
        after: level at its steps, of the first series.
        elsewhere: level at its steps outside of the part, of the first series.
        p: chance of its size.
        cost: share of the run's rollouts that it touches, times its size.
        where: a filter in the query language that finds the rollouts.
        name: what the table of names calls it; "" without one.
        queries: SELECTs over `rollouts` and `metrics` that give the levels again.
        consequences: what follows from it.
        movements: one a series, in the order of `series`.
        flips: of an evaluation that fell: its split and the two steps whose prompts to compare.
        is_sure: whether it is hardly chance.
    """

    severity: Severity
    sentence: str
    advice: str
    tier: int
    series: tuple[SeriesName, ...]
    part: Part | None
    shape: Shape
    onset: tuple[int, int]
    step: int
    end: tuple[int, int] | None = None
    last: int | None = None
    also: tuple[Part, ...] = ()
    carriers: tuple[Carrier, ...] = ()
    before: float | None = None
    after: float | None = None
    elsewhere: float | None = None
    p: float = 0.0
    cost: float = 0.0
    where: str = ""
    name: str = ""
    queries: tuple[str, ...] = ()
    consequences: tuple[Diagnosis, ...] = ()
    movements: tuple[Movement, ...] = field(default=(), repr=False)
    flips: tuple[str, int, int] | None = None
    is_sure: bool = True

    def touches(self, first: int | None, last: int | None) -> bool:
        """Tells whether it is in force at some step of a range; None at an end is open."""
        ended = self.last is not None and first is not None and self.last < first
        return not ended and (last is None or self.step <= last)
