"""The origin of a request and where it was sent: Host names, declared proxies, origins, fetch metadata.

Starlette's middleware for trusted hosts takes the first of two Host headers and knows no literal addresses; uvicorn's for
proxies passes the forwarding headers of strangers on, and reads no forwarded host.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTP_PORT, HTTPS_PORT
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rollout_traces.errors import ConfigError

if TYPE_CHECKING:
    from starlette.types import Scope

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
LARGEST_PORT = 65_535
_DEFAULT_PORTS = {"http": HTTP_PORT, "https": HTTPS_PORT}
_FORWARDED = (b"x-forwarded-", b"x-original-", b"forwarded", b"x-real-ip", b"x-gradio-server")
"""Beginnings of the names of headers with which a proxy says what it was asked."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


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
    """The Host names that are served.

    Attributes:
        names: allowed names, lower case; `*` allows any.
        any_address: also allow literal IP addresses: for a server bound to all interfaces. DNS rebinding
            needs a name; a page on a literal address is refused by its Origin.
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
        """True when `name[:port]` is served."""
        try:
            parts = urlsplit(f"//{netloc}")
            name, _ = parts.hostname, parts.port
        except ValueError:
            return False
        if not name or parts.netloc != netloc or "@" in netloc:
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


@dataclass(frozen=True)
class Proxies:
    """The proxies whose `X-Forwarded-*` headers are believed.

    Attributes:
        networks: their addresses; empty for none.
    """

    networks: tuple[Network, ...] = ()

    @classmethod
    def of(cls, addresses: Iterable[str]) -> Proxies:
        """Reads `--trusted-proxy`.

        Raises:
            ConfigError: one is no address and no network.
        """
        networks = []
        for address in addresses:
            try:
                networks.append(ipaddress.ip_network(address, strict=False))
            except ValueError as error:
                raise ConfigError(
                    f"--trusted-proxy: seen {address!r}. Expected an address such as 127.0.0.1 or a network "
                    "such as 10.0.0.0/8."
                ) from error
        return cls(tuple(networks))

    def as_the_browser_sent_it(self, scope: Scope) -> Scope:
        """The request with its scheme and Host as a declared proxy got them.

        Of several values in one header the last is taken: the one that the nearest proxy wrote. All
        forwarding headers are taken off, also those of a peer that is no declared proxy, so that nothing
        behind the guard can believe them.
        """
        forwarded: dict[bytes, str] = {}
        headers = []
        for name, value in scope["headers"]:
            if name.startswith(_FORWARDED):
                forwarded[name] = value.decode("latin-1").rpartition(",")[2].strip()
            else:
                headers.append((name, value))
        changed = {**scope, "headers": headers}
        if not self._declared(scope):
            return changed
        scheme = forwarded.get(b"x-forwarded-proto")
        if scheme in _DEFAULT_PORTS:
            changed["scheme"] = scheme
        host = forwarded.get(b"x-forwarded-host")
        if host:
            kept = [(name, value) for name, value in headers if name != b"host"]
            changed["headers"] = [*kept, (b"host", host.encode("latin-1"))]
        return changed

    def undeclared_https(self, scope: Scope) -> str | None:
        """The address of an undeclared peer that says it serves the page over https; None where there is none.

        The page would ask for its scripts over http then, which a browser refuses.
        """
        said = dict(scope["headers"]).get(b"x-forwarded-proto", b"").rpartition(b",")[2].strip()
        if said != b"https" or scope.get("scheme") == "https" or self._declared(scope):
            return None
        return str(scope["client"][0]) if scope.get("client") else "its address"

    def _declared(self, scope: Scope) -> bool:
        if not self.networks or not scope.get("client"):
            return False
        try:
            peer = ipaddress.ip_address(scope["client"][0])
        except ValueError:
            return False
        return any(peer in network for network in self.networks)


def origin_refusal(origin: str | None, scheme: str, host: str) -> str | None:
    """Why a request from another origin than the page's is refused; None for the page's own.

    Args:
        origin: the Origin header, None where none was sent.
        scheme: `http` or `https`: how the page was asked for.
        host: the Host header.
    """
    if origin is None or _origin(origin) == _origin(f"{scheme}://{host}") is not None:
        return None
    hint = ""
    if _origin(origin) == _origin(f"https://{host}"):
        hint = " Where a proxy of yours serves this over https, name its address: --trusted-proxy ADDRESS."
    return (
        f"Origin {printable(origin)} may not read this: the page is {printable(f'{scheme}://{host}')}.{hint}"
    )


def fetch_refusal(headers: Mapping[str, str], method: str, framed: bool) -> str | None:
    """Why the browser's own word on a request (fetch metadata) refuses it; None where it does not.

    A link on another site may open the page; nothing else of another site or port may ask for anything.

    Args:
        headers: the request's, names in lower case.
        framed: whether another site may show the page in a frame.
    """
    site = headers.get("sec-fetch-site")
    if site in (None, "same-origin", "none"):
        return None
    opens = method in ("GET", "HEAD") and headers.get("sec-fetch-mode") == "navigate"
    shown_in = ("document", "iframe") if framed else ("document",)
    if opens and headers.get("sec-fetch-dest") in shown_in:
        return None
    return f"A {printable(str(site))} request is refused: only the page itself may ask."


def printable(text: str) -> str:
    """A text of a request, short, in quotes and ASCII."""
    return repr(text[:80].encode("ascii", "replace").decode())


def _origin(text: str) -> tuple[str, str, int] | None:
    try:
        parts = urlsplit(text)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or port is None or parts.path.strip("/"):
        return None
    return parts.scheme, parts.hostname, port
