"""Runs a function once a module has been imported. Light: this is loaded when Python starts."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

TRIGGERS: dict[str, tuple[str, str]] = {
    "areal.api.cli_args": ("rollout_traces.integrations.areal", "extend_config"),
    "areal.infra.workflow_executor": ("rollout_traces.integrations.areal_followed", "install"),
    "areal.trainer.rl_trainer": ("rollout_traces.integrations.areal", "install"),
    "trl.trainer.grpo_trainer": ("rollout_traces.integrations.trl", "install"),
    "trl.trainer.rloo_trainer": ("rollout_traces.integrations.trl", "install_rloo"),
    "trl.experimental.async_grpo.async_grpo_trainer": ("rollout_traces.integrations.trl_async", "install"),
    "unsloth": ("rollout_traces.integrations.trl", "install_recompiled"),
    "verl.experimental.agent_loop.agent_loop": ("rollout_traces.integrations.verl_observer", "install"),
    "verl.experimental.agent_loop.tool_agent_loop": (
        "rollout_traces.integrations.verl_observer",
        "install_tools",
    ),
    "verl.trainer.ppo.ray_trainer": ("rollout_traces.integrations.verl", "install"),
    "verl.trainer.ppo.v1.trainer_base": ("rollout_traces.integrations.verl_v1", "install"),
}
"""Module of a trainer -> which function is called once it has been imported.

Unsloth puts classes of its own, made of TRL's source, in the place of TRL's as it is imported: they are hooked then.
"""


class PostImport(importlib.abc.MetaPathFinder):
    """Finds modules as usual and calls a function after they were executed.

    Args:
        hooks: module name -> function of the imported module.
    """

    def __init__(self, hooks: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self.hooks = dict(hooks)
        self._looking: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The usual spec, its loader wrapped, for the modules that are waited for."""
        if fullname not in self.hooks or fullname in self._looking:
            return None
        self._looking.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.hooks[fullname])
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, after: Callable[[ModuleType], None]) -> None:
        self.loader = loader
        self.after = after

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        self.after(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


def install(prefix: str = "") -> PostImport:
    """Waits for the modules of every integration; those that are imported already are hooked now.

    Args:
        prefix: only modules whose name begins so.
    """
    hooks = {
        module: _caller(file, function)
        for module, (file, function) in TRIGGERS.items()
        if module.startswith(prefix)
    }
    finder = PostImport(hooks)
    sys.meta_path.insert(0, finder)
    for name, hook in hooks.items():
        if name in sys.modules:
            hook(sys.modules[name])
    return finder


def _caller(file: str, function: str) -> Callable[[ModuleType], None]:
    def call(module: ModuleType) -> None:
        try:
            getattr(importlib.import_module(file), function)()
        except Exception as error:  # noqa: BLE001  a hook never stops an import; said on stderr
            print(f"rollout-traces: {file}.{function} failed, training goes on: {error!r}", file=sys.stderr)

    return call
