"""An oracle: it knows a perturbation's series, part, shape and length, and what the world does; it finds the time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import norm

from tests.perturbations.change import Perturbation
from tests.perturbations.scorer import OVERLAP, size_of
from tests.perturbations.series import figures
from tests.perturbations.truth import Trial, whitened

CHANCE = 0.01
"""How often it may find something in a series without any perturbation."""


@dataclass(frozen=True)
class Found:
    """What the oracle finds of a perturbation.

    Attributes:
        hit: whether it is shown, at steps that overlap with the true ones.
        step: the best first step.
        onset: the 90 % interval of the first step.
    """

    hit: bool
    step: int
    onset: tuple[int, int]


def find(trial: Trial, p: Perturbation) -> Found:
    """Looks for a perturbation in its most visible series, over all first steps."""
    _, series, part, _ = size_of(trial, p)
    effect = trial.effect(series, part, p) if series else None
    noise = trial.noise(series, part) if series else None
    seen = figures(trial.run, series, part) if series else None
    if effect is None or noise is None or seen is None:
        return Found(False, 0, (0, p.n_steps - 1))
    shown = np.isfinite(seen.value) & np.isfinite(effect.difference)
    observed = whitened((seen.value - noise.mean)[shown] / effect.sd[shown], effect.rho)
    level = whitened(1 / effect.sd[shown], effect.rho)
    level = level / np.sqrt(level @ level)
    observed = observed - level * (observed @ level)
    starts = np.arange(1, p.n_steps - 1)
    z = np.zeros(len(starts))
    for i, start in enumerate(starts):
        template = whitened(replace(p, onset=int(start)).envelope()[shown] / effect.sd[shown], effect.rho)
        template = template - level * (template @ level)
        length = np.sqrt(template @ template)
        z[i] = (template @ observed) / length if length > 1e-6 else 0.0
    best = int(np.argmax(np.abs(z)))
    likely = np.exp((z**2 - z[best] ** 2) / 2)
    share = np.cumsum(likely) / likely.sum()
    low, high = np.searchsorted(share, [0.05, 0.95])
    steps = replace(p, onset=int(starts[best])).envelope() > 0
    clear = abs(z[best]) > norm.isf(CHANCE / 2 / len(starts))
    return Found(
        bool(clear and effect.overlap(steps, p.envelope()) >= OVERLAP),
        int(starts[best]),
        (int(starts[low]), int(starts[min(int(high), len(starts) - 1)])),
    )
