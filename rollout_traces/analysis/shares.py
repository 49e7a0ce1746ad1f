"""The size of a change in a share from the counts themselves: a rare value has no normal distribution."""

from __future__ import annotations

import numpy as np

from rollout_traces.analysis.panel import Panel
from rollout_traces.analysis.templates import Template


def share_sizes(panel: Panel, at: int, template: Template, basis: np.ndarray) -> float:
    """The signed root of twice the log likelihood ratio between two binomial shares, rows divided by what groups share.

    Args:
        panel: the series.
        at: which of them.
        template: where the share may differ.
        basis: float [K, T], the movements beside it, whose steps are left out.
    """
    share, n, error = panel.levels[at], panel.rows[at], panel.errors[at]
    there = np.isfinite(share) & (n > 0)
    inside = template.inside(len(panel.steps)) & there
    busy = np.zeros(len(panel.steps), bool)
    for known in basis:
        busy |= (known != 0) & ((known == 0) | (known == 1)).all()
    outside = there & ~inside & ~busy
    if not outside.any():
        outside = there & ~inside
    if not inside.any() or not outside.any():
        return 0.0
    share = np.where(there, share, 0.0)
    overall = float((share * n)[there].sum() / n[there].sum())
    plain = overall * (1 - overall) / n[there]
    with np.errstate(invalid="ignore", divide="ignore"):
        clustered = float(np.nanmedian(error[there] / plain)) if overall not in (0.0, 1.0) else 1.0
    clustered = max(1.0, clustered) if np.isfinite(clustered) else 1.0
    counts = [float(n[steps].sum() / clustered) for steps in (inside, outside)]
    shares = [float((share * n)[steps].sum() / n[steps].sum()) for steps in (inside, outside)]
    pooled = float(np.average(shares, weights=counts))
    ratio = sum(
        c * (_term(s, pooled) + _term(1 - s, 1 - pooled)) for c, s in zip(counts, shares, strict=True)
    )
    return float(np.sqrt(2 * max(ratio, 0.0)) * np.sign(shares[0] - shares[1]))


def _term(share: float, pooled: float) -> float:
    return share * float(np.log(share / pooled)) if share > 0 and pooled > 0 else 0.0
