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
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlsplit

import anyio
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.status import WS_1008_POLICY_VIOLATION
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rollout_traces.errors import ConfigError
from rollout_traces.inspector.access import (
    ANYBODY,
    DASHBOARD_CLOSED,
    Access,
    HostPolicy,
    Proxies,
    Visitor,
    asking,
    equal,
    fetch_refusal,
    origin_refusal,
    printable,
)
from rollout_traces.inspector.assets import VIEWER, bundle, policy_hash
from rollout_traces.inspector.registry import Kind, Rule, rule_of

WRITE_TOKEN_HEADER = "x-trackio-write-token"
FIRST_PORT = 7861
"""The port at which the search for a free one begins: the one behind Gradio's own."""


@dataclass(frozen=True)
class ServerOptions:
    """Options of serving the inspector.

    Attributes:
        host: address to bind; loopback unless asked otherwise.
        port: the port it listens on.
        token: the owner's, which opens the pages; None for no token.
        owner: the owner's name, under which his labels are kept.
        named_tokens: further readers' tokens by their names.
        allow_hosts: further Host names to answer, for proxies and notebooks.
        trusted_proxies: addresses or networks of proxies whose forwarding headers are believed.
        frame_ancestors: sites that may show the page in a frame.
        root_path: the prefix under which a proxy serves it. Some proxies take it off before they pass a request on,
            others do not; both are served.
        mount_trackio: serve Trackio's dashboard beside it; off for a source that is not local.
        trackio_sql: also Trackio's SQL, one bounded statement a call.
        write_token: take what runs log, of whoever sends this token; None for not.
        hub_writer: for a Space: whether a token of the Hub may write to it. Runs send what they log to its root.
    """

    host: str = "127.0.0.1"
    port: int = FIRST_PORT
    token: str | None = None
    owner: str = "owner"
    named_tokens: Mapping[str, str] = field(default_factory=dict)
    allow_hosts: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    frame_ancestors: tuple[str, ...] = ()
    root_path: str = ""
    mount_trackio: bool = True
    trackio_sql: bool = False
    write_token: str | None = None
    hub_writer: Callable[[str], bool] | None = None

    @property
    def prefix(self) -> str:
        """The proxy's prefix with a slash in front and none behind; empty for none."""
        stripped = self.root_path.strip("/")
        return f"/{stripped}" if stripped else ""


class Refused(Exception):
    """A request that no application sees, with what is answered."""

    def __init__(self, response: Response) -> None:
        self.response = response


def _refused(status: HTTPStatus, said: str) -> Refused:
    return Refused(PlainTextResponse(f"{said}\n", status))


def error_response(message: str, kind: str, status: HTTPStatus) -> Response:
    """A refusal in the form of a server function's answer, so that the page shows the sentence."""
    return JSONResponse({"error": {"message": message, "kind": kind}}, status)


def _no_token(message: str) -> Refused:
    return Refused(error_response(message, "token", HTTPStatus.UNAUTHORIZED))


@dataclass(eq=False)
class Guard:
    """ASGI middleware that answers what may be asked and refuses the rest with a sentence.

    Args:
        app: what it is in front of.
        options: how it is served.
        access: the tokens and session keys that open what is read.
        rules: the routes that are served.
        hashes: of the scripts that Gradio puts into the page's head when it runs.
        no_dashboard: why Trackio's dashboard is not served; empty where it is.

    Raises:
        ConfigError: a proxy or a frame ancestor cannot be understood.
    """

    app: ASGIApp
    options: ServerOptions
    access: Access
    rules: tuple[Rule, ...]
    hashes: tuple[str, ...] = ()
    no_dashboard: str = ""

    def __post_init__(self) -> None:
        self._hosts = HostPolicy.for_server(self.options.host, self.options.allow_hosts)
        self._proxies = Proxies.of(self.options.trusted_proxies)
        self._ancestors = checked_ancestors(self.options.frame_ancestors)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            reason = "No websockets here."
            await send({"type": "websocket.close", "code": WS_1008_POLICY_VIOLATION, "reason": reason})
        else:
            await self._http(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            passed, rule, visitor = await self._admitted(scope)
            body = await _whole_body(receive, rule)
        except Refused as refused:
            response = refused.response
            kind: Kind = "page" if _is_html(response.raw_headers) else "data"
            await response(scope, receive, self._sender(kind, send))
            return
        with asking(visitor):
            await self.app(passed, _replayed(body, receive), self._sender(rule.kind, send))

    async def _admitted(self, scope: Scope) -> tuple[Scope, Rule, Visitor]:
        """The request as the application gets it, the rule that lets it through, and whose it is.

        Raises:
            Refused: it may not be asked, or not by this visitor.
        """
        hosts = sum(name == b"host" for name, _ in scope["headers"])
        proxy = self._proxies.undeclared_https(scope)
        scope = self._below_the_prefix(self._proxies.as_the_browser_sent_it(scope))
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self._check_origin(scope, headers, hosts)
        scope, keyed = self._below_the_dashboard(scope)
        given = headers.get(WRITE_TOKEN_HEADER, "")
        may_write = self.options.write_token is not None and equal(given, self.options.write_token)
        path = scope["path"].removeprefix(self.options.prefix)
        rule = rule_of(self.rules, path, scope["method"], may_write)
        if rule is None or (keyed and rule.who != "dashboard"):
            raise _refused(HTTPStatus.NOT_FOUND, "Nothing is served here.")
        if rule.kind == "page" and proxy is not None:
            said = f"A proxy at {proxy} says that it serves this over https. Where it is yours, start with --trusted-proxy {proxy}."
            raise _refused(HTTPStatus.FORBIDDEN, said)
        visitor = self.access.visitor(headers)
        _check_body(rule, headers, scope["method"])
        if rule.who == "Hub token":
            await self._check_hub_token(headers)
        else:
            self._check_who(rule, keyed or visitor is not None, may_write)
        if rule.kind == "page":  # asked for uncompressed, so that its scripts can be read
            kept = [pair for pair in scope["headers"] if pair[0] != b"accept-encoding"]
            scope = {
                **scope,
                "headers": kept,
                "query_string": b"",
            }  # its script reads the address; Gradio trips over it
        return scope, rule, visitor or Visitor(ANYBODY)

    def _below_the_prefix(self, scope: Scope) -> Scope:
        """The request as if no proxy had changed its path, with the prefix as ASGI has it."""
        path, prefix = scope["path"], self.options.prefix
        if not prefix:
            return scope
        if not (path + "/").startswith(prefix + "/"):
            path = prefix + path
        return {**scope, "root_path": prefix, "path": path, "raw_path": quote(path).encode()}

    def _check_origin(self, scope: Scope, headers: Mapping[str, str], hosts: int) -> None:
        if hosts != 1:
            raise _refused(HTTPStatus.BAD_REQUEST, f"{hosts} Host headers; expected one.")
        host = headers.get("host", "")
        if not self._hosts.allows(host):
            raise _refused(
                HTTPStatus.FORBIDDEN,
                f"Host {printable(host)} is not served here. If this is a proxy or a notebook of yours, "
                "start with --allow-host NAME.",
            )
        scheme = scope.get("scheme", "http")
        reason = origin_refusal(headers.get("origin"), scheme, host) or fetch_refusal(
            headers, scope["method"], bool(self._ancestors)
        )
        if reason:
            raise _refused(HTTPStatus.FORBIDDEN, reason)

    def _below_the_dashboard(self, scope: Scope) -> tuple[Scope, bool]:
        """The request as if the dashboard lay at its open path, and whether it came by the path with its key."""
        prefix = self.options.prefix
        path = self.access.below_dashboard(scope["path"].removeprefix(prefix))
        if path is None:
            return scope, False
        return {**scope, "path": prefix + path, "raw_path": quote(prefix + path).encode()}, True

    def _check_who(self, rule: Rule, is_known: bool, may_write: bool) -> None:
        """Refuses a visitor who lacks what a route asks for.

        Args:
            rule: the route's.
            is_known: whether he came with a session key or token, or by the dashboard's own path.
            may_write: whether he came with the write token.
        """
        if rule.who == "write token":
            if not may_write:
                raise _no_token("This route takes what runs log: send the write token.")
        elif not is_known and rule.who == "dashboard" and rule.kind == "page":
            page = DASHBOARD_CLOSED.format(inspector=escape(f"{self.options.prefix}/"))
            raise Refused(HTMLResponse(page, HTTPStatus.UNAUTHORIZED))
        elif not is_known and rule.who != "anyone":
            raise _no_token(
                "This inspector asks for its token: open the address that `rollout-traces show` printed. "
                "It may have been started anew."
            )

    async def _check_hub_token(self, headers: Mapping[str, str]) -> None:
        """Refuses a run that may not log to this Space; asked in a thread, the Hub may be slow."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if self.options.hub_writer is None or scheme.lower() != "bearer" or not token.strip():
            raise _no_token("This route takes what runs log: send a Hub token that may write to the Space.")
        try:
            may_write = await anyio.to_thread.run_sync(self.options.hub_writer, token.strip())
        except Exception as error:
            said = f"The Hub did not say who may write here: {type(error).__name__}."
            raise _refused(HTTPStatus.SERVICE_UNAVAILABLE, said) from error
        if not may_write:
            raise _no_token("This token may not write to the Space.")

    def _sender(self, kind: Kind, send: Send) -> Send:
        """Adds the headers; a page is held back until its scripts are known.

        Args:
            kind: what is answered.
            send: where to.
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
                    headers = self._headers(start, "page", (*script_hashes(body), *self.hashes))
                    await send({**start, "headers": headers})
                    await send({"type": "http.response.body", "body": body})
            else:
                await send(message)

        return sending

    def _headers(self, start: Message, kind: Kind, hashes: tuple[str, ...] = ()) -> Headers:
        if kind == "frame":
            hashes = script_hashes(bundle().files[VIEWER])
        return with_security_headers(start.get("headers", ()), kind, hashes=hashes, ancestors=self._ancestors)


def _check_body(rule: Rule, headers: Mapping[str, str], method: str) -> None:
    length = headers.get("content-length", "0")
    # a number of more digits than any limit has is not read
    if not length.isdecimal() or len(length) > len(f"{rule.max_body}") or int(length) > rule.max_body:
        raise _too_large(rule)
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if method == "POST" and content_type != rule.content_type:
        seen = printable(content_type) if content_type else "none"
        said = f"Content-Type: seen {seen}, expected {rule.content_type}."
        raise _refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, said)


def _too_large(rule: Rule) -> Refused:
    said = f"The request's body is too large: at most {rule.max_body:,} bytes here."
    return _refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, said)


async def _whole_body(receive: Receive, rule: Rule) -> bytes:
    """The request's body.

    Raises:
        Refused: it is longer than the route takes, or late.
    """

    async def read() -> bytes:
        body = bytearray()
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > rule.max_body:
                raise _too_large(rule)
            if not message.get("more_body"):
                return bytes(body)

    try:
        return await asyncio.wait_for(read(), rule.body_seconds)
    except asyncio.TimeoutError as error:
        late = f"The request's body did not arrive within {rule.body_seconds:g} seconds."
        raise _refused(HTTPStatus.REQUEST_TIMEOUT, late) from error


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


def _is_html(headers: Any) -> bool:
    return any(name.lower() == b"content-type" and value.startswith(b"text/html") for name, value in headers)


_INLINE_SCRIPT = re.compile(rb"<script(?![^>]*\ssrc\s*=)[^>]*>(.*?)</script>", re.DOTALL | re.IGNORECASE)
_NOT_OURS_TO_SEND = (b"access-control-", b"server")
_KEPT_BY_CODE = (b"cache-control", b"etag", b"last-modified", b"expires")
"""Headers that let a browser keep an answer: only code of installed packages may be kept."""

NONE, SELF, EVAL = "'none'", "'self'", "'unsafe-eval'"
Headers = list[tuple[bytes, bytes]]


def checked_ancestors(ancestors: Iterable[str]) -> tuple[str, ...]:
    """The sites of `--frame-ancestor`.

    Raises:
        ConfigError: one is no https origin.
    """
    found = tuple(ancestors)
    for ancestor in found:
        parts = urlsplit(ancestor)
        if parts.scheme != "https" or not re.fullmatch(r"[A-Za-z0-9.\-]+(:\d+)?", parts.netloc) or parts.path:
            raise ConfigError(
                f"--frame-ancestor: seen {ancestor!r}. Expected an origin such as https://huggingface.co."
            )
    return found


def script_hashes(html: bytes) -> tuple[str, ...]:
    """The hashes of a page's inline scripts, as a Content-Security-Policy lists them."""
    found = dict.fromkeys(match[1] for match in _INLINE_SCRIPT.finditer(html))
    return tuple(map(policy_hash, found))


def policy(kind: Kind, hashes: Iterable[str] = (), ancestors: Iterable[str] = ()) -> str:
    """The Content-Security-Policy of an answer.

    Args:
        kind: what is answered.
        hashes: of the page's own inline scripts; no other inline script runs, and no event handler.
        ancestors: the sites that may show the page in a frame.
    """
    if kind == "frame":
        return (
            f"default-src 'none'; script-src {' '.join(hashes)} data:; style-src 'unsafe-inline'; img-src data:; "
            "font-src data:; base-uri 'none'; form-action 'none'; sandbox allow-scripts; "
            f"frame-ancestors {' '.join((SELF, *ancestors))}"
        )
    frames = f"frame-ancestors {' '.join(ancestors) or NONE}"
    if kind != "page":
        media = "; img-src 'self'; media-src 'self'; style-src 'unsafe-inline'" if kind == "file" else ""
        return f"default-src 'none'{media}; sandbox; {frames}"
    return (
        f"default-src 'none'; script-src 'self' {' '.join((EVAL, *hashes))}; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; media-src 'self' blob:; "
        "connect-src 'self'; worker-src 'self' blob:; frame-src 'self'; manifest-src 'self'; object-src 'none'; "
        f"base-uri 'self'; form-action 'self'; {frames}"
    )


def with_security_headers(
    headers: Iterable[tuple[bytes, bytes]],
    kind: Kind,
    *,
    hashes: Iterable[str] = (),
    ancestors: tuple[str, ...] = (),
) -> Headers:
    """An answer's headers with what every answer has to carry, and without what none may.

    Args:
        headers: as the application made them, names in lower case.
        kind: what is answered.
        hashes: of its inline scripts.
        ancestors: the sites that may show it in a frame.
    """
    added = {
        b"content-security-policy": policy(kind, hashes, ancestors).encode(),
        b"x-content-type-options": b"nosniff",
        b"referrer-policy": b"no-referrer",
        b"cross-origin-resource-policy": b"same-origin",
        b"cross-origin-opener-policy": b"same-origin",
    }
    if not ancestors:
        added[b"x-frame-options"] = b"SAMEORIGIN" if kind == "frame" else b"DENY"
    if kind != "code":
        added[b"cache-control"] = b"no-store"
    dropped = {b"x-frame-options", *added, *(() if kind == "code" else _KEPT_BY_CODE)}
    kept = [
        (name, value)
        for name, value in headers
        if name.lower() not in dropped and not name.lower().startswith(_NOT_OURS_TO_SEND)
    ]
    return [*kept, *added.items()]
