"""Views of one's own: what draws a rollout of some environment beside its conversation.

A package offers them as entry points of the group `rollout_traces.viewers`, each a `Viewer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from rollout_traces.errors import ConfigError
from rollout_traces.model.units import MB

GROUP = "rollout_traces.viewers"
LARGEST = 8 * MB
"""Characters that a viewer's HTML or module may have."""


@dataclass(frozen=True)
class Viewed:
    """A kept rollout, as a viewer gets it.

    Attributes:
        metadata: of its trace (docs/schema.md): step, group, reward, source, ...
        messages: the conversation, OpenAI style: `role`, `content`, `tool_calls`.
    """

    metadata: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Viewer:
    """A view of one's own. It draws in a frame that reaches neither the page nor the network.

    Attributes:
        name: what its button says.
        takes: whether it can draw a rollout.
        html: gives the HTML of the frame's body; no script in it runs.
        module: a JavaScript module instead, which exports `draw(root, rollout)`: an element, and `{metadata,
            messages}`. It imports nothing.

    Raises:
        ConfigError: not one of `html` and `module`.
    """

    name: str
    takes: Callable[[Viewed], bool]
    html: Callable[[Viewed], str] | None = None
    module: Path | None = None

    def __post_init__(self) -> None:
        if (self.html is None) == (self.module is None):
            raise ConfigError(f"viewer {self.name!r}: expected one of html and module.")


@cache
def installed_viewers() -> Mapping[str, Viewer | str]:
    """The viewers of the installed packages by name; of one that cannot be loaded, why."""
    found: dict[str, Viewer | str] = {}
    for point in entry_points(group=GROUP):
        name = f"{point.name} of {point.value}"
        try:
            viewer = point.load()
            if not isinstance(viewer, Viewer):
                raise ConfigError(f"expected a Viewer, found {type(viewer).__name__}.")
        except Exception as error:  # noqa: BLE001 - a package of others: its reader is told
            found[name] = f"{point.value} could not be loaded: {type(error).__name__}: {error}"
        else:
            found[name if viewer.name in found else viewer.name] = viewer
    return found
