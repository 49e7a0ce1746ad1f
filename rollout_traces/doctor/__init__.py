"""Checks of an installation: what is there, what would work, what would not."""

import importlib
import pkgutil

from rollout_traces.doctor.base import CHECKS, CheckFinding, Examination, check, each_check

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["CHECKS", "CheckFinding", "Examination", "check", "each_check"]
