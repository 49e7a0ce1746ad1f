"""The answers for programs, made when the first program asks: their types take a good part of a second to make."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import anyio
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

if TYPE_CHECKING:
    from rollout_traces.inspector.workspace import Workspace


class LateApi:
    """An ASGI application that is made at its first request.

    Args:
        workspace: what the answers read.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._making = anyio.Lock()

    @cached_property
    def _made(self) -> ASGIApp:
        from rollout_traces.inspector.api.http import api_app

        return api_app(self._workspace)

    @property
    def routes(self) -> list[BaseRoute]:
        """Its routes, for whoever walks them."""
        return list(getattr(self._made, "routes", ()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if "_made" not in vars(self):
            async with self._making:
                await anyio.to_thread.run_sync(lambda: self._made)
        await self._made(scope, receive, send)
