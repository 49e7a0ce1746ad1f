"""Who may talk to the inspector: the Host and Origin check in front of everything it serves.

The page reads whatever the project holds, and Trackio's SQL endpoint has no authentication. A browser
will carry a foreign page's request to this machine (DNS rebinding, cross-site requests), so a request
whose Host or Origin is not ours is refused before any application sees it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_REFUSED_GRADIO = (
    "file",
    "upload",
    "upload_progress",
    "proxy",
    "stream",
    "custom_component",
    "deep_link",
    "process_recording",
)
"""Routes of Gradio that take a path or an address from the request; the page needs none of them."""


def is_loopback(host: str) -> bool:
    """True for a name or address that only this machine can reach."""
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class HostPolicy:
    """Which Host names are ours.

    Attributes:
        names: allowed names, lower case; `*` allows any.
        any_address: also allow literal IP addresses: for a server bound to all interfaces. A rebinding
            attack needs a name, so an address is safe there.
    """

    names: frozenset[str]
    any_address: bool = False

    @classmethod
    def for_server(cls, host: str, allowed: Iterable[str] = ()) -> HostPolicy:
        """The policy of a server.

        Args:
            host: what it binds to.
            allowed: further names, from `--allow-host`.

        Returns:
            Loopback names, the host itself and the further names.
        """
        names = {*LOOPBACK_NAMES, host.lower(), *(name.lower() for name in allowed)}
        return cls(frozenset(names), any_address=not is_loopback(host))

    def allows(self, netloc: str) -> bool:
        """True when `name[:port]` is one of ours."""
        try:
            name = urlsplit(f"//{netloc}").hostname
        except ValueError:
            return False
        if not name:
            return False
        if "*" in self.names or name in self.names:
            return True
        if self.any_address:
            try:
                ipaddress.ip_address(name)
            except ValueError:
                return False
            return True
        return False


class Guard:
    """ASGI middleware that refuses foreign Hosts, foreign Origins and routes that take a path.

    Args:
        app: what it stands in front of.
        policy: which Host names are ours.
        root_path: the prefix under which a proxy serves us. Some proxies take it off before they pass a
            request on, others do not; both are served.
    """

    def __init__(self, app: ASGIApp, policy: HostPolicy, root_path: str = "") -> None:
        self.app = app
        self.policy = policy
        self.prefix = "/" + root_path.strip("/") if root_path.strip("/") else ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or answers 403."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        scope = self._below_the_prefix(scope)
        reason = self._refusal(scope)
        if reason is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": reason[:120]})
        else:
            await PlainTextResponse(reason, status_code=403)(scope, receive, send)

    def _below_the_prefix(self, scope: Scope) -> Scope:
        """The request as if no proxy stood before us, told where it stands as ASGI has it."""
        path = scope["path"]
        if not self.prefix:
            return scope
        if not (path + "/").startswith(self.prefix + "/"):
            path = self.prefix + path
        return {**scope, "root_path": self.prefix, "path": path, "raw_path": quote(path).encode()}

    def _refusal(self, scope: Scope) -> str | None:
        headers = _headers(scope)
        host = headers.get("host", "")
        if not self.policy.allows(host):
            return (
                f"Host {_printable(host)} is not served here. If this is a proxy or a notebook of yours, "
                "start with --allow-host NAME.\n"
            )
        origin = headers.get("origin")
        if origin is not None and not self._origin_is_ours(origin):
            return f"Origin {_printable(origin)} may not read this. To allow it: --allow-host NAME.\n"
        if headers.get("sec-fetch-site") == "cross-site" and scope.get("method") not in ("GET", "HEAD"):
            return "Cross-site requests are refused.\n"
        if _takes_a_path(scope["path"].removeprefix(self.prefix)):
            return "This route is switched off: the inspector serves no files.\n"
        return None

    def _origin_is_ours(self, origin: str) -> bool:
        try:
            parts = urlsplit(origin) if "://" in origin else None
        except ValueError:
            return False
        return parts is not None and parts.scheme in ("http", "https") and self.policy.allows(parts.netloc)


def _takes_a_path(path: str) -> bool:
    for prefix in ("/gradio_api/", "/"):
        rest = path[len(prefix) :] if path.startswith(prefix) else ""
        first = rest.split("/", 1)[0].split("=", 1)[0]
        if first in _REFUSED_GRADIO:
            return True
    return False


def _headers(scope: MutableMapping[str, Any]) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _printable(text: str) -> str:
    return repr(text[:80].encode("ascii", "replace").decode())
