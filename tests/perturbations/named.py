"""How a series is named, and its figures."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Series(NamedTuple):
    """What is followed over the steps, named as an entry names it."""

    column: str
    value: str | None
    statistic: str


class Figures(NamedTuple):
    """A series over the steps of a run.

    Attributes:
        value: [n_steps] the figure, NaN where there is none.
        count: [n_steps] rows behind it.
    """

    value: np.ndarray
    count: np.ndarray
