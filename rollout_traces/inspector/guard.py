"""In front of everything that is served: whose request it is, what it may ask for, what the answer carries.

The pages show whatever a project holds. A browser carries a foreign page's request to this machine (DNS
rebinding, other sites, other services on localhost), and other users of the machine reach loopback too. So
a request is refused before any application sees it, unless its Host is served, its Origin is the page's own,
its route is listed in `routes` and it carries what that route asks for. The page itself is an empty shell and asks
for nothing. Cookies are never looked at, and never set. Limits are those of a route, which no middleware of Starlette's
knows, and they hold before the body is read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any
from urllib.parse import quote

import anyio
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rollout_traces.inspector.access import ANYBODY, DASHBOARD_CLOSED, Access, Visitor, asking, equal
from rollout_traces.inspector.assets import VIEWER, bundle
from rollout_traces.inspector.origins import (
    HostPolicy,
    Proxies,
    fetch_refusal,
    origin_refusal,
    printable,
)
from rollout_traces.inspector.response_headers import script_hashes, with_security_headers
from rollout_traces.inspector.routes import Kind, Rule, rule_of, rules

WRITE_TOKEN_HEADER = "x-trackio-write-token"


@dataclass(frozen=True)
class GuardOptions:
    """The settings that a guard goes by.

    Attributes:
        hosts: which Host names are served.
        proxies: whose forwarding headers are believed.
        access: the tokens and session keys that open what is read.
        write_token: with which runs send what they log; None where none may.
        hub_writer: whether a token of the Hub may write to the Space that this is; it asks the Hub.
        rules: the routes that are served.
        ancestors: the sites that may show the page in a frame.
        hashes: of the scripts that Gradio puts into the page's head when it runs.
        root_path: the prefix under which a proxy serves the page. Some proxies take it off before they pass
            a request on, others do not; both are served.
        early: the `Link` header of the inspector's page; empty for none.
    """

    hosts: HostPolicy
    proxies: Proxies = field(default_factory=Proxies)
    access: Access = field(default_factory=Access)
    write_token: str | None = None
    hub_writer: Callable[[str], bool] | None = None
    rules: tuple[Rule, ...] = field(default_factory=lambda: rules(trackio=False))
    ancestors: tuple[str, ...] = ()
    hashes: tuple[str, ...] = ()
    root_path: str = ""
    early: str = ""

    @property
    def prefix(self) -> str:
        """The prefix with a slash in front and none behind; empty for none."""
        return "/" + self.root_path.strip("/") if self.root_path.strip("/") else ""


class Guard:
    """ASGI middleware that answers what may be asked and refuses the rest with a sentence.

    Args:
        app: what it is in front of.
        options: what it goes by.
    """

    def __init__(self, app: ASGIApp, options: GuardOptions) -> None:
        self.app = app
        self.options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "No websockets here."})
        else:
            await self._http(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        hosts = sum(name == b"host" for name, _ in scope["headers"])
        proxy = self.options.proxies.undeclared_https(scope)
        scope = self._below_the_prefix(self.options.proxies.as_the_browser_sent_it(scope))
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers, hosts)
        if refusal is not None:
            await self._answer(refusal, scope, receive, send)
            return
        scope, keyed = self._below_the_dashboard(scope)
        path = scope["path"].removeprefix(self.options.prefix)
        given = headers.get(WRITE_TOKEN_HEADER, "")
        may_write = self.options.write_token is not None and equal(given, self.options.write_token)
        rule = rule_of(self.options.rules, path, scope["method"], may_write)
        if rule is None or (keyed and rule.who != "dashboard"):
            await self._answer(PlainTextResponse("Nothing is served here.\n", 404), scope, receive, send)
            return
        if rule.kind == "page" and proxy is not None:
            said = f"A proxy at {proxy} says that it serves this over https. Where it is yours, start with --trusted-proxy {proxy}.\n"
            await self._answer(PlainTextResponse(said, 403), scope, receive, send)
            return
        visitor = self.options.access.visitor(headers)
        refusal = _body_refusal(rule, headers, scope["method"])
        if refusal is None and rule.who == "Hub token":
            refusal = await self._hub_refusal(headers)
        elif refusal is None:
            refusal = self._sign_in(rule, keyed or visitor is not None, may_write)
        if refusal is not None:
            await self._answer(refusal, scope, receive, send)
            return
        try:
            body = await asyncio.wait_for(_whole_body(receive, rule.max_body), rule.body_seconds)
        except asyncio.TimeoutError:
            late = f"The request's body did not arrive within {rule.body_seconds:g} seconds.\n"
            await self._answer(PlainTextResponse(late, 408), scope, receive, send)
            return
        if body is None:
            await self._answer(_too_large(rule), scope, receive, send)
            return
        early = self.options.early if rule.path == "/" else ""
        with asking(visitor or Visitor(ANYBODY)):
            await self.app(
                _uncompressed(scope, rule), _replayed(body, receive), self._sender(rule.kind, send, early)
            )

    async def _answer(self, response: Response, scope: Scope, receive: Receive, send: Send) -> None:
        await response(
            scope, receive, self._sender("page" if _is_html(response.raw_headers) else "data", send)
        )

    def _below_the_prefix(self, scope: Scope) -> Scope:
        """The request as if no proxy had changed its path, with the prefix as ASGI has it."""
        path, prefix = scope["path"], self.options.prefix
        if not prefix:
            return scope
        if not (path + "/").startswith(prefix + "/"):
            path = prefix + path
        return {**scope, "root_path": prefix, "path": path, "raw_path": quote(path).encode()}

    def _refusal(self, scope: Scope, headers: Mapping[str, str], hosts: int) -> Response | None:
        if hosts != 1:
            return PlainTextResponse(f"{hosts} Host headers; expected one.\n", 400)
        host = headers.get("host", "")
        if not self.options.hosts.allows(host):
            return PlainTextResponse(
                f"Host {printable(host)} is not served here. If this is a proxy or a notebook of yours, "
                "start with --allow-host NAME.\n",
                403,
            )
        scheme = scope.get("scheme", "http")
        reason = origin_refusal(headers.get("origin"), scheme, host) or fetch_refusal(
            headers, scope["method"], bool(self.options.ancestors)
        )
        return PlainTextResponse(reason, 403) if reason else None

    def _below_the_dashboard(self, scope: Scope) -> tuple[Scope, bool]:
        """The request as if the dashboard lay at its open path, and whether it came by the path with its key."""
        prefix = self.options.prefix
        path = self.options.access.below_dashboard(scope["path"].removeprefix(prefix))
        if path is None:
            return scope, False
        return {**scope, "path": prefix + path, "raw_path": quote(prefix + path).encode()}, True

    def _sign_in(self, rule: Rule, is_known: bool, may_write: bool) -> Response | None:
        """Answers a visitor who lacks what a route asks for; None where he does not.

        Args:
            rule: the route's.
            is_known: whether he came with a session key or token, or by the dashboard's own path.
            may_write: whether he came with the write token.
        """
        if rule.who == "write token":
            return (
                None if may_write else _json_refusal("This route takes what runs log: send the write token.")
            )
        if is_known or rule.who == "anyone":
            return None
        if rule.who == "dashboard" and rule.kind == "page":
            return HTMLResponse(DASHBOARD_CLOSED.format(inspector=escape(f"{self.options.prefix}/")), 401)
        return _json_refusal(
            "This inspector asks for its token: open the address that `rollout-traces show` printed. "
            "It may have been started anew."
        )

    async def _hub_refusal(self, headers: Mapping[str, str]) -> Response | None:
        """Refuses a run that may not log to this Space; asked in a thread, the Hub may be slow."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if self.options.hub_writer is None or scheme.lower() != "bearer" or not token.strip():
            return _json_refusal(
                "This route takes what runs log: send a Hub token that may write to the Space."
            )
        try:
            may_write = await anyio.to_thread.run_sync(self.options.hub_writer, token.strip())
        except Exception as error:  # noqa: BLE001 - the run hears why, and sends again later
            return PlainTextResponse(
                f"The Hub did not say who may write here: {type(error).__name__}.\n", 503
            )
        return None if may_write else _json_refusal("This token may not write to the Space.")

    def _sender(self, kind: Kind, send: Send, early: str = "") -> Send:
        """Adds the headers; a page is held back until its scripts are known.

        Args:
            kind: what is answered.
            send: where to.
            early: what a page's browser may fetch before it has read it, as a `Link` header.
        """
        start: Message = {}
        parts: list[bytes] = []

        async def sending(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                shown = kind == "page" and _is_html(message.get("headers", ()))
                if not shown:
                    await send({**start, "headers": self._headers(start, "data" if kind == "page" else kind)})
                    start = {}
            elif start:
                parts.append(message.get("body", b""))
                if not message.get("more_body"):
                    body = b"".join(parts)
                    headers = self._headers(start, "page", (*script_hashes(body), *self.options.hashes))
                    if early:
                        headers.append((b"link", early.encode()))
                    await send({**start, "headers": headers})
                    await send({"type": "http.response.body", "body": body})
            else:
                await send(message)

        return sending

    def _headers(self, start: Message, kind: Kind, hashes: tuple[str, ...] = ()) -> Any:
        if kind == "frame":
            hashes = script_hashes(bundle().files[VIEWER].body)
        return with_security_headers(
            start.get("headers", ()), kind, hashes=hashes, ancestors=self.options.ancestors
        )


def _body_refusal(rule: Rule, headers: Mapping[str, str], method: str) -> Response | None:
    length = headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > 15 or int(length) > rule.max_body:
        return _too_large(rule)
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if method == "POST" and content_type != rule.content_type:
        seen = printable(content_type) if content_type else "none"
        return PlainTextResponse(f"Content-Type: seen {seen}, expected {rule.content_type}.\n", 415)
    return None


def _too_large(rule: Rule) -> Response:
    return PlainTextResponse(f"The request's body is too large: at most {rule.max_body:,} bytes here.\n", 413)


async def _whole_body(receive: Receive, limit: int) -> bytes | None:
    """The request's body; None when it is longer than the limit."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b"".join(parts)
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            return None
        if not message.get("more_body"):
            return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Gives the application the body that was taken, then whatever comes."""
    given = False

    async def receiving() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receiving


def _uncompressed(scope: Scope, rule: Rule) -> Scope:
    """A page is asked for as it is, so that its scripts can be read."""
    if rule.kind != "page":
        return scope
    return {**scope, "headers": [pair for pair in scope["headers"] if pair[0] != b"accept-encoding"]}


def _is_html(headers: Any) -> bool:
    return any(name.lower() == b"content-type" and value.startswith(b"text/html") for name, value in headers)


def _json_refusal(message: str) -> Response:
    """In the form of a server function's answer, so that the page shows the sentence."""
    body = json.dumps({"error": {"message": message, "kind": "token"}})
    return Response(body, 401, media_type="application/json")
