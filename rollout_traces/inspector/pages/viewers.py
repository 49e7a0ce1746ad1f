"""Views of one's own beside a rollout: which there are for it, and what one of them draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rollout_traces.errors import StoreError
from rollout_traces.inspector.view import ProjectView
from rollout_traces.inspector.viewers import LARGEST, Viewed, Viewer, installed_viewers
from rollout_traces.model.text import encodable


@dataclass(frozen=True)
class ViewersAnswer:
    """The viewers that take a rollout, by name, and what went wrong with others."""

    names: list[str]
    problems: list[str]


@dataclass(frozen=True)
class ViewedAnswer:
    """What a frame draws: HTML, or a module with the rollout that its `draw` gets."""

    html: str | None
    module: str | None
    rollout: dict[str, Any] | None


def viewers(view: ProjectView, id: str) -> ViewersAnswer:
    """The views of one's own that take a rollout."""
    rollout = _viewed(view, id)
    names, problems = [], []
    for name, viewer in installed_viewers().items():
        if isinstance(viewer, str):
            problems.append(f"{name}: {viewer}")
            continue
        try:
            if viewer.takes(rollout):
                names.append(name)
        except Exception as error:  # noqa: BLE001 - a package of others: its reader is told
            problems.append(f"{name}: takes raised {type(error).__name__}: {error}")
    return ViewersAnswer(names, problems)


def viewed(view: ProjectView, id: str, viewer: str) -> ViewedAnswer:
    """What a viewer draws of a rollout.

    Raises:
        StoreError: there is no such viewer, it raised, or what it gives is too large.
    """
    found = installed_viewers().get(viewer)
    if not isinstance(found, Viewer):
        raise StoreError(f"no viewer {viewer[:80]!r} is installed here.")
    rollout = _viewed(view, id)
    try:
        html = None if found.html is None else encodable(found.html(rollout))
        module = None if found.module is None else found.module.read_text("utf-8")
    except Exception as error:
        raise StoreError(f"viewer {viewer!r} raised {type(error).__name__}: {error}") from error
    size = len(html or module or "")
    if size > LARGEST:
        raise StoreError(f"viewer {viewer!r} gives {size:,} characters; at most {LARGEST:,} are drawn.")
    return ViewedAnswer(html, module, None if module is None else vars(rollout))


def _viewed(view: ProjectView, id: str) -> Viewed:
    record = view.store.record(id)
    return Viewed(dict(record.metadata), [dict(message) for message in record.messages])
