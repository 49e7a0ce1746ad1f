"""Requests to a guard, without a network."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from rollout_traces.inspector.access import Access
from rollout_traces.inspector.guard import Guard, ServerOptions
from rollout_traces.inspector.registry import rules

EVERYTHING = rules(trackio=True, sql=True, writes=True)
CALL = "/gradio_api/component_server/"


@dataclass
class Answer:
    """What came back: from the application where it was asked, else from the guard.

    Attributes:
        status: the status, or the code a websocket was closed with.
        headers: names in lower case.
        body: the text.
        seen: the scope that the application got; None when it was not asked.
        body_seen: the request's body that the application got.
    """

    status: int
    headers: dict[str, str]
    body: str
    seen: dict[str, Any] | None = None
    body_seen: bytes = b""


@dataclass
class Site:
    """A guard in front of an application that answers 200.

    Attributes:
        host: what it binds to.
        allowed: further Host names.
        proxies: declared ones.
        access: the token.
        write_token: with which runs log.
        ancestors: declared frame ancestors.
        root_path: a proxy's prefix.
        content: the application's content type and body.
        hashes: of scripts that are let run.
    """

    host: str = "127.0.0.1"
    allowed: tuple[str, ...] = ()
    proxies: tuple[str, ...] = ()
    access: Access = field(default_factory=Access)
    write_token: str | None = None
    ancestors: tuple[str, ...] = ()
    root_path: str = ""
    content: tuple[str, bytes] = ("text/html", b"<p>shown</p>")
    hashes: tuple[str, ...] = ()

    def ask(
        self,
        path: str = "/",
        method: str = "GET",
        *,
        query: str = "",
        kind: str = "http",
        scheme: str = "http",
        client: str = "127.0.0.1",
        body: bytes | list[bytes] = b"",
        raw: list[tuple[bytes, bytes]] | None = None,
        slow: bool = False,
        **headers: str,
    ) -> Answer:
        """Sends one request; a Host of this machine and JSON unless said otherwise."""
        given = {
            "host": "127.0.0.1:7861",
            **({"content-type": "application/json"} if method == "POST" else {}),
        }
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        pairs = [(name.encode(), value.encode()) for name, value in given.items() if value != "-"]
        scope = {
            "type": kind,
            "path": path,
            "method": method,
            "scheme": scheme,
            "client": (client, 50_000),
            "query_string": query.encode(),
            "headers": pairs + (raw or []),
        }
        return _answered(
            self._guard(), scope, [body] if isinstance(body, bytes) else body, slow, self.content
        )

    def _guard(self) -> Any:
        options = ServerOptions(
            host=self.host,
            allow_hosts=self.allowed,
            trusted_proxies=self.proxies,
            frame_ancestors=self.ancestors,
            write_token=self.write_token,
            root_path=self.root_path,
        )
        return lambda app: Guard(app, options, self.access, EVERYTHING, hashes=self.hashes)


def _answered(
    guard: Any, scope: dict[str, Any], parts: list[bytes], slow: bool, content: tuple[str, bytes]
) -> Answer:
    sent: list[dict[str, Any]] = []
    answer = Answer(0, {}, "")
    left = list(parts)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        answer.seen = scope
        message = await receive()
        answer.body_seen = message.get("body", b"")
        headers = [
            (b"content-type", content[0].encode()),
            (b"access-control-allow-origin", b"*"),
            (b"content-length", str(len(content[1])).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content[1][:5], "more_body": True})
        await send({"type": "http.response.body", "body": content[1][5:]})

    async def receive() -> dict[str, Any]:
        if slow:
            await asyncio.sleep(60)
        return {"type": "http.request", "body": left.pop(0) if left else b"", "more_body": bool(left)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    with ThreadPoolExecutor(1) as apart:  # a browser's loop may run in this thread
        apart.submit(asyncio.run, guard(app)(scope, receive, send)).result()
    answer.status = sent[0].get("status", sent[0].get("code"))
    answer.headers = {name.decode().lower(): value.decode() for name, value in sent[0].get("headers", ())}
    answer.body = b"".join(message.get("body", b"") for message in sent[1:]).decode()
    return answer
