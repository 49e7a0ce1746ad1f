"""Steps of a run as the alarms see them, made by hand."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rollout_traces.ledger.columns import Ledger

GROUPS, SIZE = 16, 8


def ledger(
    flags: Mapping[str, float] | None = None,
    *,
    n_groups: int = GROUPS,
    size: int = SIZE,
    seed: int = 0,
    sources: tuple[str, ...] = (),
    flags_of_source: Mapping[str, Mapping[str, float]] | None = None,
    kept_at_random: int | None = None,
    **columns: np.ndarray,
) -> Ledger:
    """A step's ledger.

    Args:
        flags: flag -> share of the rows that carry it.
        n_groups: groups.
        size: rollouts of each.
        seed: of what is drawn.
        sources: groups take turns in them.
        flags_of_source: source -> flags of its rows, beside `flags`.
        kept_at_random: rows that were kept, all at random; all rows when None.
        **columns: further columns [B].
    """
    rng = np.random.default_rng(seed)
    B = n_groups * size
    group = np.repeat(np.arange(n_groups), size)
    source = np.array([sources[g % len(sources)] if sources else None for g in group], object)
    names = np.empty(B, object)
    for row in range(B):
        shares = {**(flags or {}), **(flags_of_source or {}).get(source[row] or "", {})}
        names[row] = tuple(name for name, share in shares.items() if rng.random() < share)
    kept = np.zeros(B, bool)
    kept[rng.permutation(B)[: B if kept_at_random is None else kept_at_random]] = True
    return Ledger(
        {
            "group": group,
            "source": source,
            "flags": names,
            "trace_uid": np.array([f"t{row}" if kept[row] else None for row in range(B)], object),
            "selected_by": np.array(["random" if kept[row] else None for row in range(B)], object),
            **columns,
        }
    )
