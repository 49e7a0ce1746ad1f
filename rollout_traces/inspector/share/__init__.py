"""One HTML file that holds what a page shows, and needs no server."""

from __future__ import annotations

from rollout_traces.inspector.share.contents import Shared, shared_contents
from rollout_traces.inspector.share.page import shared_page

__all__ = ["Shared", "shared_contents", "shared_page"]
