"""Token ids -> conversations: the detokenizer, the chat template's dialect, turns and their content."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollout_traces.decode.decoder import TranscriptDecoder
    from rollout_traces.decode.markers import Closer, Opener, TemplateMarkers

__all__ = ["Closer", "Opener", "TemplateMarkers", "TranscriptDecoder"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # a logger whose worker is another process decodes nothing
    home = "decoder" if name == "TranscriptDecoder" else "markers"
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
