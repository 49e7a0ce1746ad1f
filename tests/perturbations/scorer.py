"""Whether what is said of a run is true, and whether it says what was planted.

An entry is **true** where, of a perturbation or of all of them together, every one of its series differs, on its
part and at its steps, by at least two standard errors and by a quarter of the largest effect there; and where
what it says of a part does not hold as well outside: a difference outside that three standard errors show and that is
over half of the one inside makes the part a false one.

An entry **hits** a perturbation with a series that differs at its steps by three standard errors or more, that shows
a third of the perturbation's size (or 8), at steps whose overlap with the effect is a half or more (a cosine), and on the
smallest part: rows whose Jaccard index with the touched ones is 0.8, or a part that shows the series as well (0.9) as
any single value of any column. Of a handful of rows (carriers) the part is all rows, or unknown.
A logged scalar hits what touches rows only if it shows at least half of its size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.perturbations.change import Part, Perturbation
from tests.perturbations.claims import Claim
from tests.perturbations.named import Series
from tests.perturbations.run import TRAIN
from tests.perturbations.series import figures, of_traces, split_of
from tests.perturbations.truth import Effect, Seen, Trial, largest

SHOWN, HIT = 2.0, 3.0
"""Standard errors at an entry's steps from which a series differs, and from which it stands for a perturbation."""
OF_PEAK = 0.25
"""Share of the largest effect that the entry's steps must have on average."""
OVERLAP = 0.5
"""Least cosine between an entry's steps and the effect."""
JACCARD, AS_WELL = 0.8, 0.9
"""When a part is the touched rows, and when it shows a series as well as the best part."""
ENOUGH = 8.0
"""Size from which a series stands for a perturbation whatever shows it better."""
POWER = 5.0
"""Size that the effect would have had outside, below which a part may be called unknown."""
PART_COLUMNS = ("source", "engine", "extra/host", "extra/worker", "extra/suite", "stop_reason")


@dataclass(frozen=True)
class Judged:
    """An entry beside the truth.

    Attributes:
        claim: the entry.
        true: whether all that it claims is so.
        reason: why not.
        hits: numbers of the perturbations that it names.
        of: number of the perturbation that makes it true; 0 for all together, None where it is false.
    """

    claim: Claim
    true: bool
    reason: str
    hits: frozenset[int]
    of: int | None


def judge(trial: Trial, claim: Claim) -> Judged:
    """Compares an entry with the truth."""
    steps = steps_of(claim, trial.spec.n_steps)
    reason = "no series that can be read"
    of: int | None = None
    if claim.series:
        for p in (*trial.perturbations, None):
            reasons = [_false(trial, claim, s, p, steps) for s in claim.series]
            wrong = next((r for r in reasons if r), "")
            if not wrong:
                reason, of = "", p.number if p else 0
                break
            reason = wrong if reason != "wrong part" else reason
    hits = frozenset(
        p.number for p in trial.perturbations if any(hits_it(trial, claim, s, p) for s in claim.series)
    )
    return Judged(claim, of is not None, reason, hits, of)


def steps_of(claim: Claim, n_steps: int) -> np.ndarray:
    """[n_steps] bool, the steps that an entry speaks of."""
    until = (
        claim.last if claim.last is not None else claim.step + 2 if claim.shape == "spike" else n_steps - 1
    )
    t = np.arange(n_steps)
    return (t >= claim.step) & (t <= max(until, claim.step))


def readings(series: Series) -> list[Series]:
    """What a claimed series may mean: the share of a column without a value is its mean, or what is unknown."""
    if series.statistic == "share" and series.value is None:
        return [series._replace(statistic="mean"), series._replace(value="unknown")]
    if series.statistic == "difference":
        return [series._replace(statistic="mean")]
    return [series]


def _parts(trial: Trial, claim: Claim, series: Series) -> list[Part]:
    """The parts at which a series is looked at: its own, or any that was touched where it is unknown."""
    if series.column in trial.run.logged:
        return [()]
    if claim.part is None:
        return [(), *(p.part for p in trial.perturbations)]
    return [claim.part]


def _false(trial: Trial, claim: Claim, series: Series, p: Perturbation | None, steps: np.ndarray) -> str:
    """Why a series did not do what an entry says, of one perturbation or of all; empty where it did."""
    reasons = [
        _false_at(trial, claim, reading, part, p, steps)
        for reading in readings(series)
        for part in _parts(trial, claim, series)
    ]
    return "" if "" in reasons else reasons[0]


def _false_at(
    trial: Trial, claim: Claim, series: Series, part: Part, p: Perturbation | None, steps: np.ndarray
) -> str:
    effect = trial.effect(series, part, p)
    if effect is None:
        return f"no such series: {series.column} {series.value or ''} {series.statistic}"
    if effect.size(steps) < SHOWN:
        return "no difference at its steps"
    if abs(effect.mean(steps)) < OF_PEAK * _peak(effect, steps, p):
        return "little of the difference is at its steps"
    if part and p is not None and p.carriers and part != p.part:
        return "wrong part"
    if part:
        outside = trial.effect(series, part, p, outside=True)
        there = outside and outside.size(steps) >= HIT
        if outside and there and abs(outside.mean(steps)) > 0.5 * abs(effect.mean(steps)):
            return "wrong part"
    return _wrong_direction(trial, claim, series, part, effect, steps)


def _peak(effect: Effect, steps: np.ndarray, p: Perturbation | None) -> float:
    """The largest mean difference over as many steps as the entry has, or the perturbation where it is shorter."""
    shown = np.isfinite(effect.difference)
    values = effect.difference[shown]
    lasts = p.last - p.onset + 1 if p else int(steps.sum())
    width = int(min(max(steps[shown].sum(), 1), lasts, len(values)))
    return float(np.abs(np.convolve(values, np.full(width, 1 / width), "valid")).max())


def _wrong_direction(
    trial: Trial, claim: Claim, series: Series, part: Part, effect: Effect, steps: np.ndarray
) -> str:
    """Whether an entry's first series is said to go where neither it nor the effect went."""
    if claim.before is None or claim.after is None or series not in readings(claim.series[0]):
        return ""
    said = claim.after - claim.before
    found = figures(trial.run, series, part)
    if found is None or not np.isfinite(said) or said == 0:
        return ""
    before = (np.arange(trial.spec.n_steps) < claim.step) & np.isfinite(found.value)
    during = steps & np.isfinite(found.value)
    went = found.value[during].mean() - found.value[before].mean() if before.any() and during.any() else 0.0
    return "wrong direction" if said * effect.mean(steps) < 0 and said * went < 0 else ""


def hits_it(trial: Trial, claim: Claim, series: Series, p: Perturbation) -> bool:
    """Whether an entry names a perturbation by one of its series."""
    steps = steps_of(claim, trial.spec.n_steps)
    size = size_of(trial, p).size
    for reading in readings(series):
        logged = reading.column in trial.run.logged
        for part in [()] if logged else [p.part if claim.part is None else claim.part, *claim.also]:
            effect = trial.effect(reading, part, p)
            if effect is None or effect.size(steps) < HIT or effect.overlap(steps, p.envelope()) < OVERLAP:
                continue
            least = min(ENOUGH, size / 3)
            if logged and not _of_scalars(p):
                least = max(least, size_of(trial, p, rows_only=True).size / 2)
            if effect.size(p.envelope()) >= least and (
                logged or _right_part(trial, claim, reading, part, p, steps)
            ):
                return True
    return False


def size_of(trial: Trial, p: Perturbation, rows_only: bool = False) -> Seen:
    """A perturbation's size, with the series and the rows that show it best, remembered."""
    key = ("size", p.number, rows_only)
    memory = trial.memory
    if key not in memory:
        memory[key] = largest(trial, p, rows_only)
    return memory[key]  # type: ignore[return-value]


def _of_scalars(p: Perturbation) -> bool:
    return all(change.node.startswith("logged ") or change.node == "attempt" for change in p.changes)


def _right_part(
    trial: Trial, claim: Claim, series: Series, part: Part, p: Perturbation, steps: np.ndarray
) -> bool:
    if claim.part is None:
        return p.carriers > 0 or _few_outside(trial, series, p)
    if p.carriers:
        return part in ((), p.part)
    split = split_of(series.column)[0]
    when = (p.envelope() > 0) & steps
    rows = trial.run.kept & when[trial.run.c["step"]] & (trial.run.train == (split == TRAIN))
    said, touched = rows & trial.run.rows_of(part), rows & trial.run.rows_of(p.part)
    if (said & touched).sum() >= JACCARD * max((said | touched).sum(), 1):
        return True
    own = trial.effect(series, part, p)
    best = max(
        (e.size(p.envelope()) for e in (trial.effect(series, c, p) for c in _candidates(trial, p)) if e),
        default=0.0,
    )
    return own is not None and own.size(p.envelope()) >= AS_WELL * best


def _candidates(trial: Trial, p: Perturbation) -> list[Part]:
    columns = [c for c in PART_COLUMNS if c in trial.run.values and c in trial.run.c]
    return [(), p.part, *(((c, v),) for c in columns for v in trial.run.values[c])]


def _few_outside(trial: Trial, series: Series, p: Perturbation) -> bool:
    """Whether the rows outside a part were too few to show that the effect is not there."""
    inside, outside = trial.effect(series, p.part, p), trial.noise(series, p.part, outside=True)
    if inside is None or outside is None or not p.part:
        return False
    with np.errstate(invalid="ignore"):
        sd = np.where(outside.sd > 0, outside.sd, np.inf)
    return Effect(inside.difference, sd, outside.rho).size(p.envelope()) < POWER


def onset_of(trial: Trial, claim: Claim, p: Perturbation) -> tuple[int, int]:
    """The first steps between which a perturbation's onset lies, where a series has no figure at some steps."""
    series = next((s for s in claim.series if hits_it(trial, claim, s, p)), None)
    found = None
    if series is not None:
        part = () if series.column in trial.run.logged else claim.part if claim.part is not None else p.part
        found = figures(trial.run, readings(series)[0], part)
    if found is None:
        return p.onset, p.onset
    shown = np.flatnonzero(np.isfinite(found.value))
    before, after = shown[shown < p.onset], shown[shown >= p.onset]
    return (int(before[-1]) + 1 if before.size else 0, int(after[0]) if after.size else p.onset)


def of_population(claim: Claim) -> bool:
    """Whether an entry speaks of ledger columns alone that are known of every row, kept or not."""
    return bool(claim.series) and not any(of_traces(s) for s in claim.series)
