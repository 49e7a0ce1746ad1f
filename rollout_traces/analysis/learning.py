"""Measures and parts that a policy can learn, so that slow change of it is no surprise."""

from __future__ import annotations

import numpy as np

from rollout_traces.analysis.curves import Part, is_size
from rollout_traces.analysis.group_shapes import OF_WHOLE_GROUPS
from rollout_traces.analysis.panel import Panel
from rollout_traces.analysis.run_rows import BY_OUTCOME, CUT_BY_OUTCOME, RunRows

OF_PROMPTS = 0.9
"""Part of the rollouts that have the value that their prompt has elsewhere, where a column is the prompt's."""

WHO_SAMPLED = ("engine",)
"""Columns that are no prompt's, though each prompt may have been asked of one alone ..."""
WHAT_IS_ASKED = ("source",)
"""... and that are a prompt's, though nobody knows which one was asked."""


def is_given(panel: Panel) -> bool:
    """Tells whether a measure is of what rollouts are given, so that no policy learns it: a source, an engine, a prompt's length, a group's size."""
    if panel.parents[0] == "reward":  # that all rewards of a group are equal is how they came out
        return False
    source, measure = panel.source, panel.measure
    if panel.names[0].column in OF_WHOLE_GROUPS:
        return True
    if source is None or measure is None:
        return False
    given = [column for column in source.parts if column not in CUT_BY_OUTCOME]
    is_part = any(f"/{panel.names[0].column}".endswith(f"/{column}") for column in given)
    return is_part or is_one_in_groups(source, measure.read())


def is_mix(panel: Panel) -> bool:
    """Tells whether a measure is the share of the rollouts whose prompts are of some kind, as of a source: what a curriculum or the data loader sets."""
    part = _part_shared(panel)
    return bool(part) and is_of_prompts(panel.source, part)  # type: ignore[arg-type]


def is_of_sampler(panel: Panel) -> bool:
    """Tells whether a measure is the share of the rollouts that an engine, a host or a worker has: what somebody sets, or what is lost."""
    return bool(_part_shared(panel)) and not is_mix(panel)


def _part_shared(panel: Panel) -> str:
    """Names the column that parts the rollouts and of a value of which a measure is the share, of an evaluation's too; "" where it is another measure."""
    rows, name = panel.source, panel.names[0]
    if rows is None or name.value is None:
        return ""
    given = (part for part in rows.parts if part not in CUT_BY_OUTCOME)
    return next((part for part in given if f"/{name.column}".endswith(f"/{part}")), "")


def may_be_learned(panel: Panel, part: Part | None) -> bool:
    """Tells whether a policy may learn otherwise in a part than elsewhere: by what a prompt is or how a rollout came out, but not by who sampled it.

    Args:
        panel: the series of a measure.
        part: all rows and those that cannot be told may always learn, but how many there are, and of which prompts, is no policy's.
    """
    if is_size(panel.names[0]) or panel.names[0].column in OF_WHOLE_GROUPS:
        return False
    if not part or panel.source is None:
        return True
    column = part[0][0]
    if column in BY_OUTCOME:
        return True
    # groups that a column cuts through are not parted by it: it is not the prompt's
    return column in panel.source.parts and is_of_prompts(panel.source, column)


def is_of_prompts(rows: RunRows, column: str) -> bool:
    """Tells whether a prompt has the same value of a column wherever it is asked, as it has of its source where prompts are not known; never of who sampled it."""
    if column in WHO_SAMPLED:
        return False
    if column not in rows.of_prompts:
        known = rows.prompt >= 0
        if not known.any():
            return column in WHAT_IS_ASKED
        prompt, codes = rows.prompt[known], rows.parts[column][0][known]
        same = np.full(int(prompt.max()) + 1, -1)
        same[prompt] = codes
        rows.of_prompts[column] = bool((same[prompt] == codes).mean() > OF_PROMPTS)
    return rows.of_prompts[column]


def is_one_in_groups(rows: RunRows, values: np.ndarray) -> bool:
    """Tells whether all rollouts of a group have one value and groups of a step several: the prompt's. Not where rows are groups.

    Args:
        rows: the rows.
        values: float [N].
    """
    known = np.isfinite(values)
    of_first = values[rows.first][rows.unit]
    if (known & np.isfinite(of_first) & (values != of_first)).any():
        return False
    order = np.argsort(rows.unit[known], kind="stable")
    unit, at, value = rows.unit[known][order], rows.at[known][order], values[known][order]
    together, same = unit[1:] == unit[:-1], value[1:] == value[:-1]
    others = ~same & (at[1:] == at[:-1])
    return bool(together.any() and same[together].all() and others.any())
