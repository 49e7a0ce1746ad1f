"""The one route that takes a token: it gives a session key, and says who one is."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rollout_traces.inspector.access import Access
from rollout_traces.inspector.visitor import Visitor, who_asks

PATH = "/session"
WRONG = "This token is not this server's: it may have been started anew since."


def session_routes(access: Access, dashboard: str | None) -> list[Route]:
    """The routes of a server.

    Args:
        access: its tokens.
        dashboard: the address of Trackio's dashboard; None where it is not served.
    """

    def about(visitor: Visitor) -> dict[str, Any]:
        return {"name": visitor.name, "owner": visitor.owner, "dashboard": dashboard}

    async def sign_in(request: Request) -> Response:
        try:
            token = json.loads(await request.body())["token"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return _refused('Expected {"token": "…"}.', 400)
        visitor = access.of_token(token) if isinstance(token, str) else None
        if visitor is None:
            return _refused(WRONG, 401)
        return JSONResponse({"key": access.session_key(visitor), **about(visitor)})

    async def current(request: Request) -> Response:
        return JSONResponse(about(who_asks()))

    return [Route(PATH, sign_in, methods=["POST"]), Route(PATH, current, methods=["GET"])]


def _refused(message: str, status: int) -> Response:
    return JSONResponse({"error": {"message": message, "kind": "token"}}, status)
