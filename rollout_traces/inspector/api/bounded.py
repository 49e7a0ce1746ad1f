"""Answers of a size that an agent's context bears, and the transport that asks for a token."""

from __future__ import annotations

import hmac
from collections.abc import Callable

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rollout_traces.inspector.api.models import RolloutsAnswer
from rollout_traces.inspector.asking import as_json

MOST_CHARACTERS = 24_000
"""Of a page of rollouts, as JSON."""


def bounded(ask: Callable[[int], RolloutsAnswer], limit: int) -> RolloutsAnswer:
    """A page that fits `MOST_CHARACTERS`; rows without room are on the page behind it. One row is always there.

    Args:
        ask: gives a page of as many rows as it is told.
        limit: rows at most.
    """
    answer = ask(limit)
    while (size := len(as_json(answer))) > MOST_CHARACTERS and len(answer.rows) > 1:
        n = len(answer.rows)
        answer = ask(max(1, min(n - 1, n * MOST_CHARACTERS // size)))
    return answer


def with_token(app: ASGIApp, token: str) -> ASGIApp:
    """An application that answers those alone who send `Authorization: Bearer TOKEN`."""
    expected = f"Bearer {token}".encode()

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope.get("headers") or ()).get(b"authorization", b"")
        if scope["type"] == "lifespan" or hmac.compare_digest(given, expected):
            await app(scope, receive, send)
        else:
            await PlainTextResponse("a token is needed", 401)(scope, receive, send)

    return guarded
