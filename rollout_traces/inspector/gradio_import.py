"""Importing Gradio without the stub files that it writes of its components.

Every `import gradio` parses the source of each component and writes a `.pyi` beside it, for editors. That is a third
of the processor time of the import, and it writes into the installed package.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

MODULE, WRITER = "gradio.component_meta", "create_or_modify_pyi"


def import_gradio() -> ModuleType:
    """Gradio; without its stub writer where it was not imported before.

    Raises:
        ImportError: it is not installed.
    """
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        import gradio
    finally:
        sys.meta_path.remove(finder)
    return gradio


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the one module that writes stubs; the others are found as always."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname == MODULE else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Quiet(spec.loader)
        return spec


class _Quiet(importlib.abc.Loader):
    """Loads the module and takes its writer out.

    Args:
        loader: what loads it.
    """

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if hasattr(module, WRITER):
            setattr(module, WRITER, lambda *given: None)
