"""Named, explained observations about rollouts.

The names are loaded when they are first used: whoever reads stored flags needs no detector.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollout_traces.flags.base import Flag, Population, TracedRow
    from rollout_traces.flags.detect import FlagErrors, combine, flag_population, flag_row, off_flags
    from rollout_traces.flags.registry import REGISTRY as REGISTRY
    from rollout_traces.flags.registry import (
        FlagSpec,
        check_parameters,
        make_flag,
        needs_text,
        parameters_of_run,
        population_flag,
        row_flag,
    )
    from rollout_traces.flags.report import Alert, curves, describe_off, flag_metrics

_FAMILIES = ("mask", "text", "loops", "policy", "sampler", "rendering", "headers", "group")
_HOMES = {
    "REGISTRY": "registry",
    "Alert": "report",
    "Flag": "base",
    "FlagErrors": "detect",
    "FlagSpec": "registry",
    "Population": "base",
    "TracedRow": "base",
    "check_parameters": "registry",
    "combine": "detect",
    "curves": "report",
    "describe_off": "report",
    "flag_metrics": "report",
    "flag_population": "detect",
    "flag_row": "detect",
    "make_flag": "registry",
    "needs_text": "registry",
    "off_flags": "detect",
    "parameters_of_run": "registry",
    "population_flag": "registry",
    "row_flag": "registry",
}

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
    "row_flag",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _HOMES[name] != "base":
        for family in _FAMILIES:
            importlib.import_module(f"{__name__}.{family}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
