"""What a perturbation did: the run with it less the run without it, against the noise of the world's replicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tests.perturbations.change import Part, Perturbation
from tests.perturbations.drawn import draw_perturbations, resized
from tests.perturbations.equations import compute
from tests.perturbations.logged import SHARE
from tests.perturbations.named import Series
from tests.perturbations.run import TRAIN, Run, all_of
from tests.perturbations.series import figures, row_values, series_of, split_of, thinned
from tests.perturbations.spec import Spec, stream

REPLICATES = 12
SMALLEST, LARGEST = 2.0, 40.0
"""Sizes that perturbations are drawn for, on a logarithmic scale."""
LEAST = 0.1
"""Least noise of a mean, as a share of what it is between independent rows: advantages add up to 0 in every group."""
OF_LEVEL = 0.01
"""Least noise as a share of the level: a constant that moves by a hundredth is nothing to speak of."""
DRIFT = 2
"""Degree of the slow change over a run that nobody knows who has only the run."""
RARE = 0.5
"""Rows added to a share that never occurred before its noise is computed."""


@dataclass(frozen=True)
class Noise:
    """What a series does in the world when nothing happens.

    Attributes:
        mean: [n_steps] its mean over the replicates.
        sd: [n_steps] its standard deviation at each step.
        rho: the correlation of its deviations with those of the step before.
    """

    mean: np.ndarray
    sd: np.ndarray
    rho: float


@dataclass(frozen=True)
class Effect:
    """A perturbation's effect on a series.

    Attributes:
        difference: [n_steps] with less without; NaN where the series has no figure.
        sd: [n_steps] of the series' noise.
        rho: the noise's autocorrelation.
    """

    difference: np.ndarray
    sd: np.ndarray
    rho: float

    def size(self, template: np.ndarray) -> float:
        """The signal to noise of a filter that knows when, but neither how much nor the series' own level.

        Projecting on the template leaves out how single rows happened to fall, which nobody could look for.

        Args:
            template: [n_steps] the shape that is looked for, such as 1 at the steps of an entry and 0 elsewhere.
        """
        return self._size(template, 0)

    def size_beside_drift(self, template: np.ndarray) -> float:
        """As `size`, of a filter that does not know either how the series would drift without a perturbation: a parabola over the run."""
        return self._size(template, DRIFT)

    def _size(self, template: np.ndarray, degree: int) -> float:
        """The signal to noise of a filter of a template beside a polynomial over the steps."""
        shown = np.isfinite(self.difference)
        if shown.sum() < degree + 2:
            return 0.0
        drift = np.vander(np.linspace(-1, 1, len(template)), degree + 1)
        basis, wanted, y = (
            np.apply_along_axis(whitened, 0, (values[shown].T / self.sd[shown]).T, self.rho)
            for values in (drift, template, self.difference)
        )
        basis = np.linalg.qr(basis)[0]
        wanted = wanted - basis @ (basis.T @ wanted)
        length = np.sqrt(wanted @ wanted)
        return float(abs(y @ wanted) / length) if length > 1e-9 else 0.0

    def mean(self, steps: np.ndarray) -> float:
        """The mean difference over some steps."""
        values = self.difference[steps & np.isfinite(self.difference)]
        return float(values.mean()) if values.size else 0.0

    def overlap(self, steps: np.ndarray, template: np.ndarray) -> float:
        """The cosine between two courses over the steps at which the series has a figure."""
        shown = np.isfinite(self.difference)
        a, b = steps[shown].astype(float), template[shown].astype(float)
        length = np.sqrt((a @ a) * (b @ b))
        return float(a @ b / length) if length > 0 else 0.0


def whitened(values: np.ndarray, rho: float) -> np.ndarray:
    """Values whose first-order autocorrelation is taken out, with the variance they had."""
    return np.r_[values[:1], (values[1:] - rho * values[:-1]) / np.sqrt(1 - rho**2)]


class Seen(NamedTuple):
    """The series and the rows that show a perturbation best.

    Attributes:
        size: its size there.
        series: the series; None where nothing shows it.
        part: the rows.
        beside_drift: the largest size that it has in any series beside an unknown drift over the run.
    """

    size: float
    series: Series | None
    part: Part
    beside_drift: float = 0.0


@dataclass(eq=False)
class Trial:
    """A run of a seed with all that its truth needs.

    Attributes:
        spec: the world.
        perturbations: what was planted.
        run: the run with all of them.
        healthy: the run with none.
        without: perturbation number -> the run with all the others.
        replicates: healthy runs of the same world with other noise.
        memory: what was computed of it.
    """

    spec: Spec
    perturbations: tuple[Perturbation, ...]
    run: Run
    healthy: Run
    without: dict[int, Run]
    replicates: list[Run]
    memory: dict[object, object] = field(default_factory=dict)
    _noises: dict[object, Noise | None] = field(default_factory=dict)
    _effects: dict[object, Effect | None] = field(default_factory=dict)

    def noise(self, series: Series, part: Part, outside: bool = False) -> Noise | None:
        """The noise of a series over the replicates; None where it cannot be read."""
        key = (series, part, outside)
        if key not in self._noises:
            self._noises[key] = noise_of(self.replicates, series, part, outside)
        return self._noises[key]

    def effect(
        self, series: Series, part: Part, p: Perturbation | None, outside: bool = False
    ) -> Effect | None:
        """What a perturbation, or all of them (None), did to a series; None where it cannot be read."""
        key = (series, part, p.number if p else None, outside)
        if key not in self._effects:
            without = self.without[p.number] if p else self.healthy
            noise = self.noise(series, part, outside)
            self._effects[key] = effect_of(self.run, without, noise, series, part, outside)
        return self._effects[key]


def noise_of(replicates: Sequence[Run], series: Series, part: Part, outside: bool = False) -> Noise | None:
    """The noise of a series over healthy runs of the same world."""
    found = [figures(run, series, part, outside) for run in replicates]
    seen = [f for f in found if f is not None]
    n_steps = replicates[0].spec.n_steps
    if not seen:
        return Noise(np.zeros(n_steps), np.zeros(n_steps), 0.0)
    value, count = np.stack([f.value for f in seen]), np.stack([f.count for f in seen])
    shown = np.isfinite(value)
    mean = np.where(shown, value, 0).sum(axis=0) / np.maximum(shown.sum(axis=0), 1)
    usual = max(float(count[shown].mean()), 1.0) if shown.any() else 1.0
    off = np.where(shown, (value - mean) * np.sqrt(np.maximum(count, 1) / usual), 0.0)
    freedom = len(seen) / max(len(seen) - 1, 1)
    variance = float((off**2).sum() / max(shown.sum(), 1)) * freedom
    pairs = shown[:, 1:] & shown[:, :-1]
    after = float((off[:, 1:] * off[:, :-1])[pairs].mean()) if pairs.any() else 0.0
    rho = float(np.clip(after * freedom / variance, 0.0, 0.9)) if variance > 0 else 0.0
    rows = np.where(shown.any(axis=0), count.sum(axis=0) / np.maximum(shown.sum(axis=0), 1), usual)
    return Noise(mean, np.sqrt(variance * usual / np.maximum(rows, 1)), rho)


def effect_of(
    run: Run, without: Run, noise: Noise | None, series: Series, part: Part, outside: bool = False
) -> Effect | None:
    """The difference of a series between two runs, with its noise; None where it cannot be read in either."""
    here, there = figures(run, series, part, outside), figures(without, series, part, outside)
    if (here is None and there is None) or noise is None:
        return None
    n_steps = run.spec.n_steps
    absent = np.zeros(n_steps)
    a = here.value if here else absent
    b = there.value if there else absent
    count = here.count if here else there.count if there else absent
    difference = np.where(np.isfinite(a) & np.isfinite(b), a - b, np.nan)
    variance = noise.sd**2
    if run.kinds.get(series.column) == SHARE:
        count = np.bincount(run.c["step"], run.train & (run.c["sample"] == 0), n_steps)
    if (
        series.statistic in ("share", "text")
        or run.kinds.get(series.column) == SHARE
        or (series.column.endswith("_share") and series.column.startswith("group/"))
    ):
        p = np.nan_to_num((a + b) / 2)
        p = np.clip(p, RARE / (count + 1), 1 - RARE / (count + 1))
        variance = np.maximum(variance, p * (1 - p) / np.maximum(count, 1))
    variance = np.maximum(variance, LEAST**2 * _of_rows(run, series) / np.maximum(count, 1))
    level = np.nanmax(np.abs(b)) if np.isfinite(b).any() else 0.0
    sd = np.sqrt(variance / thinned(run, series) + (OF_LEVEL * level) ** 2) + 1e-12
    return Effect(difference, sd, noise.rho)


def _of_rows(run: Run, series: Series) -> float:
    """The variance of a series' rows, where it is a mean over rows."""
    split, column = split_of(series.column)
    values = row_values(run, series._replace(column=column)) if series.statistic == "mean" else None
    rows = run.kept & (run.train == (split == TRAIN))
    return 0.0 if values is None or not np.isfinite(values[rows]).any() else float(np.nanvar(values[rows]))


def largest(trial: Trial, p: Perturbation, rows_only: bool = False) -> Seen:
    """A perturbation's size: that of the series that shows it best, over its own rows or over all.

    Args:
        trial: the run.
        p: the perturbation.
        rows_only: leave logged scalars out.
    """
    best, beside_drift = Seen(0.0, None, ()), 0.0
    for series in dict.fromkeys([*series_of(trial.run), *series_of(trial.without[p.number])]):
        logged = series.column in trial.run.logged
        if rows_only and logged:
            continue
        for part in [()] if logged or not p.part else [p.part, ()]:
            effect = _quick_effect(trial, series, part, p)
            if effect is None:
                continue
            size = effect.size(p.envelope())
            if size > beside_drift:
                beside_drift = max(beside_drift, effect.size_beside_drift(p.envelope()))
            if size > best.size:
                best = Seen(size, series, part)
    return best._replace(beside_drift=beside_drift)


def _quick_effect(trial: Trial, series: Series, part: Part, p: Perturbation) -> Effect | None:
    """As `Trial.effect`, without any noise where nothing differs."""
    here, there = figures(trial.run, series, part), figures(trial.without[p.number], series, part)
    if here and there and np.array_equal(here.value, there.value, equal_nan=True):
        return None
    return trial.effect(series, part, p)


def make_trial(
    spec: Spec,
    perturbations: Sequence[Perturbation],
    replicates: list[Run] | None = None,
    healthy: Run | None = None,
) -> Trial:
    """Runs a world with and without each perturbation, on the same random numbers."""
    given = tuple(perturbations)
    healthy = healthy or compute(Run(spec, 0, ()))
    return Trial(
        spec=spec,
        perturbations=given,
        run=compute(Run(spec, 0, given)),
        healthy=healthy,
        without={
            p.number: compute(Run(spec, 0, others)) if (others := all_of(given, p.number)) else healthy
            for p in given
        },
        replicates=replicates or [compute(Run(spec, n, ())) for n in range(1, REPLICATES + 1)],
    )


def draw_trial(spec: Spec, how_many: int) -> Trial:
    """Draws perturbations for a world, each made about as large as a size that is drawn for it.

    Args:
        spec: the world.
        how_many: perturbations at once; 0 for a healthy run.
    """
    rng = stream(spec.seed, spec.world, "perturbations")
    replicates = [compute(Run(spec, n, ())) for n in range(1, REPLICATES + 1)] if how_many else []
    healthy = compute(Run(spec, 0, ()))
    drawn = draw_perturbations(healthy, rng, how_many)
    wanted = np.exp(rng.uniform(np.log(SMALLEST), np.log(LARGEST), len(drawn)))
    fitted = []
    for p, size in zip(drawn, wanted, strict=True):
        for _ in range(2):
            found = largest(make_trial(spec, [p], replicates, healthy), p).size
            if found > 0:
                p = resized(p, float(np.clip(size / found, 0.05, 6.0)))
        fitted.append(p)
    return make_trial(spec, fitted, replicates, healthy)
