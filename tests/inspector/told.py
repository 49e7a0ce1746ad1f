"""What a page's script is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout_traces.inspector.workspace import Function, Workspace, answer_of, as_plain, read_request


def told(function: Function, workspace: Workspace, sent: Mapping[str, Any]) -> Any:
    """The answer of a page's function to what its script sent, as plain values; what it raises is raised."""
    return as_plain(answer_of(function, workspace, read_request(function, sent)))
