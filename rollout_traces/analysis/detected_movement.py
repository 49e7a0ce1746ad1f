"""A movement that was found, and what it explains of the series of its measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollout_traces.analysis.noise import Noise
from rollout_traces.analysis.panel import Panel
from rollout_traces.analysis.parts import Chosen
from rollout_traces.analysis.scan import coefficients, whitened
from rollout_traces.analysis.templates import Located, Template

STILL = 3.5
"""Size that a movement keeps when all others of its series are known; else it was their shadow."""
UNEVEN = 0.5
"""A part whose share of the steps of a movement differs by more than this is not in each of them alike."""


@dataclass(frozen=True, eq=False)
class Moved:
    """A movement of a measure or a logged scalar.

    Attributes:
        panel: the series of the measure.
        basis: float [S, K, T], what each series does without it.
        noise: of the panel's series.
        located: the template and when.
        chosen: the part; of one series alone, that part.
        log_p: chance of it.
        drift: whether it is slow change over a large part of the run.
        n_carriers: rows that carry it; 0 where it is no handful's.
        is_sure: whether it is hardly chance; else it is one of those of which a stated part is.
    """

    panel: Panel
    basis: np.ndarray
    noise: Noise
    located: Located
    chosen: Chosen
    log_p: float
    drift: bool = False
    n_carriers: int = 0
    is_sure: bool = True

    @property
    def template(self) -> Template:
        """Its template."""
        return self.located.template


def constant_basis(panel: Panel) -> np.ndarray:
    """float [S, 1, T]."""
    return np.ones((len(panel.values), 1, len(panel.steps)))


def beside(basis: np.ndarray, further: np.ndarray) -> np.ndarray:
    """A basis, float [S, K, T], with the same rows, float [L, T], of each series."""
    return np.concatenate([basis, np.broadcast_to(further, (len(basis), *further.shape))], axis=1)


def rows_of_basis(found: Moved) -> np.ndarray:
    """float [1 or 2, T]: what a movement explains of any series: its template, and that by how much of each step its part is.

    Where sources take turns, a source's window is in every third step of all rows.
    """
    panel = found.panel
    own = found.template.over(len(panel.steps))
    if not found.chosen.values or panel.parts[0] != ():
        return own[None]
    share_T = panel.rows[list(found.chosen.members)].sum(axis=0) / np.maximum(panel.rows[0], 1.0)
    if np.ptp(share_T[own != 0]) < UNEVEN:
        return own[None]
    return np.stack([own, own * share_T])


def stands(found: Moved, basis: np.ndarray, rests: Sequence[np.ndarray]) -> bool:
    """Whether a movement is still there beside all others of its measure, but for what is left of it or of them."""
    own = [*rows_of_basis(found), *rests]
    at = np.asarray([found.chosen.at])
    others = np.stack([row for row in basis[at[0]] if not any(np.array_equal(row, each) for each in own)])
    one = whitened(found.panel.values[at], found.noise.at(at), others[None])
    size, _ = coefficients(one, own[0])
    return bool(abs(size[0]) >= STILL)
