"""Named, explained observations about rollouts."""

import importlib

from rollout_traces.flags.detect import Population, TracedRow
from rollout_traces.flags.registry import (
    REGISTRY,
    FlagSpec,
    make_flag,
    needs_text,
    parameters_of_run,
    population_flag,
    row_flag,
)
from rollout_traces.model.transcript import Flag

__all__ = [
    "REGISTRY",
    "Flag",
    "FlagSpec",
    "Population",
    "TracedRow",
    "make_flag",
    "needs_text",
    "parameters_of_run",
    "population_flag",
    "row_flag",
]

for _family in ("mask", "text", "policy", "rendering", "group"):
    importlib.import_module(f"{__name__}.{_family}")  # registers its flags, in this order
