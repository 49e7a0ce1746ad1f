"""Named, explained observations about rollouts.

The names are loaded when they are first used: a logger whose worker is another process needs no detector.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollout_traces.flags.detect import (
        FlagErrors,
        Population,
        TracedRow,
        combine,
        curves,
        describe_off,
        flag_metrics,
        flag_population,
        flag_row,
        off_flags,
        row_detectors,
    )
    from rollout_traces.flags.registry import (
        REGISTRY,
        FlagSpec,
        check_parameters,
        make_flag,
        needs_text,
        parameters_of_run,
        population_flag,
        row_flag,
    )
    from rollout_traces.model.transcript import Alert, Flag

_HOMES = ("mask", "text", "policy", "rendering", "group", "registry", "detect")
"""The families, which register their flags, and what speaks of all of them."""

__all__ = [
    "REGISTRY",
    "Alert",
    "Flag",
    "FlagErrors",
    "FlagSpec",
    "Population",
    "TracedRow",
    "check_parameters",
    "combine",
    "curves",
    "describe_off",
    "flag_metrics",
    "flag_population",
    "flag_row",
    "make_flag",
    "needs_text",
    "off_flags",
    "parameters_of_run",
    "population_flag",
    "row_detectors",
    "row_flag",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in [importlib.import_module(f"{__name__}.{home}") for home in _HOMES]:
            if name in vars(module):
                return vars(module)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
