"""Importing Gradio without the stub files that it writes of its components.

Every `import gradio` parses the source of each component and writes a `.pyi` beside it, for editors: a third of the
processor time of the import, and it writes into the installed package. It leaves classes alone that have no file.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any


def import_gradio() -> ModuleType:
    """Gradio, whose classes seem to have no file while it is imported.

    Raises:
        ImportError: it is not installed.
    """
    really = inspect.getfile

    def getfile(thing: Any) -> str:
        if isinstance(thing, type) and thing.__module__.startswith("gradio."):
            raise OSError("no stub is written of it")
        return really(thing)

    inspect.getfile = getfile  # type: ignore[assignment]
    try:
        import gradio
    finally:
        inspect.getfile = really
    return gradio
