"""Importing this lets trainers be imported that import packages which need a GPU or serve the web.

Where they are not installed, empty modules stand in; what a trainer calls of them is not run. Agent Lightning's entry
point is one of them, since it wants an older verl. SkyRL's config needs `typing_extensions`' TypedDict below Python 3.12.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
import typing
from importlib.util import find_spec
from typing import Any

import typing_extensions
from transformers.utils import import_utils

NAMES = ("vllm", "flash_attn", "deepspeed", "litellm", "agentops")


class _Anything(type):
    """Every attribute of the class is there and does nothing."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


class _Module(types.ModuleType):
    """A package in which every name is a class of its own."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {"__init__": lambda self, *args, **kwargs: None})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.partition(".")[0] not in self.names:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


sys.meta_path.insert(0, _Finder(tuple(name for name in NAMES if find_spec(name) is None)))
sys.modules["agentlightning.verl.entrypoint"] = types.ModuleType("agentlightning.verl.entrypoint")
import_utils.PACKAGE_DISTRIBUTION_MAPPING.setdefault("flash_attn", ["none"])  # not available to transformers
if sys.version_info < (3, 12):
    typing.TypedDict = typing_extensions.TypedDict  # type: ignore[assignment]
