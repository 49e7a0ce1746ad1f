"""Values as a histogram: what `np.histogram` gives, which takes a tenth of a millisecond however few they are."""

from __future__ import annotations

import math

import numpy as np

BINS = 32
_PLACES = np.arange(BINS + 1, dtype=np.float64)
"""Where the bins begin and end, in widths of a bin."""


def binned(values: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Counts values in `BINS` bins of one width from the smallest to the largest.

    Args:
        values: [N], numbers.

    Returns:
        int64 [BINS] counts and float64 [BINS + 1] edges, the last bin with its upper edge; None where a value is not
        finite, where there is none, or where they are so large and so close together that no bins part them.
    """
    wide = np.asarray(values, np.float64)
    if not len(wide) or not np.isfinite(wide).all():
        return None
    low, high = float(wide.min()), float(wide.max())
    if low == high:
        low, high = low - 0.5, high + 0.5
    width = (high - low) / BINS
    if not math.isfinite(width):
        return None
    edges = _PLACES * width + low
    edges[-1] = high
    if not (edges[1:] > edges[:-1]).all():
        return None
    bins = np.minimum(edges.searchsorted(wide, side="right") - 1, BINS - 1)
    return np.bincount(bins, minlength=BINS), edges
