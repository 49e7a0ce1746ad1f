"""Curves of a run for a notebook, with matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from rollout_traces.errors import StoreError, extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DEFAULT = "reward/mean"


def draw_curves(series: Mapping[str, Any], run: str, keys: Sequence[str], ax: Axes | None) -> Axes:
    """Draws scalars over steps.

    Args:
        series: name -> steps and values.
        run: what stands above.
        keys: which of them; all mean rewards when there are none.
        ax: where; a new figure when None.

    Raises:
        MissingExtra: matplotlib is not installed.
        StoreError: a name that is not there.
    """
    with extra("plot", "store.plot"):
        import matplotlib.pyplot as plt
    wanted = list(keys) or [key for key in series if key.partition("/")[2] == DEFAULT]
    unknown = [key for key in wanted if key not in series]
    if unknown or not wanted:
        near = [each for key in unknown for each in get_close_matches(key, series, n=3, cutoff=0.3)]
        raise StoreError(
            f"no scalar {', '.join(map(repr, unknown)) or 'of a mean reward'}; there is, among {len(series)}: "
            f"{', '.join(near or sorted(series)[:5]) or 'none'}."
        )
    axes = plt.subplots()[1] if ax is None else ax
    for key in wanted:
        steps, values = series[key]
        axes.plot(steps, values, marker=".", label=key)
    axes.set_xlabel("step")
    axes.set_title(run)
    axes.legend()
    return axes
