"""Who may read, and from where: tokens, the session keys that they are exchanged for, the dashboard's own path; Host
names, declared proxies, origins, fetch metadata.

Nothing is opened by a cookie: a browser sends a name's cookies to every service of that name, whatever its port. The
page sends its session key in a header, from a storage that other ports cannot read. Trackio's dashboard, whose images
are loaded by address, lies below a path that nobody guesses. Keys and path are made when the server starts, and end
with it.

Starlette's middleware for trusted hosts takes the first of two Host headers and knows no literal addresses; uvicorn's
for proxies passes the forwarding headers of strangers on, and reads no forwarded host.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from http.client import HTTP_PORT, HTTPS_PORT
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rollout_traces.errors import ConfigError
from rollout_traces.model.text import MOST

if TYPE_CHECKING:
    from starlette.types import Scope


PARAMETER = "access_token"
"""The parameter that holds the token in the fragment of an address, which browsers send to nobody."""
SESSION_HEADER = "x-rollout-traces-session"
"""The header in which the page sends its session key."""
VARIABLE = "ROLLOUT_TRACES_TOKEN"
"""The environment variable that sets the owner's token; a command line can be read by every user of the machine."""
NAMED = "ROLLOUT_TRACES_TOKENS"
"""The environment variable with further readers' tokens: `ann=… ben=…`."""
SHORTEST = 16
"""Characters of a token that was chosen by hand."""
DASHBOARD = "/trackio"
_NAME = re.compile(r"[A-Za-z0-9._@+-]{1,64}")


@dataclass(frozen=True)
class Access:
    """The right to read, and whose it is.

    Attributes:
        token: the owner's token; None opens the inspector to whoever reaches it.
        owner: the owner's name.
        named: further readers' tokens by their names.
        secret: what keys are made from; new with every server.
    """

    token: str | None = None
    owner: str = "owner"
    named: Mapping[str, str] = field(default_factory=dict)
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(), repr=False)

    @property
    def is_open(self) -> bool:
        """True where no token is asked for."""
        return self.token is None

    def visitor(self, headers: Mapping[str, str]) -> Visitor | None:
        """Whose session key, or token as a bearer, a request carries; None for nobody's."""
        if self.is_open:
            return Visitor(ANYBODY)
        key = headers.get(SESSION_HEADER, "")
        found = [visitor for _, visitor in self._known() if equal(key, self.session_key(visitor))]
        if found:
            return found[0]
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        return self.of_token(bearer.strip()) if scheme.lower() == "bearer" else None

    def of_token(self, given: str) -> Visitor | None:
        """Whose token it is, compared in constant time; None for nobody's."""
        found = [visitor for token, visitor in self._known() if equal(given, token)]
        return found[0] if found else None

    def session_key(self, visitor: Visitor) -> str:
        """Makes the key that a visitor's token is exchanged for: good until the server ends."""
        return hmac.new(self.secret, f"session {visitor.name}".encode(), "sha256").hexdigest()

    @property
    def dashboard(self) -> str:
        """The path below which Trackio's dashboard asks for no header, without a slash at its end."""
        if self.is_open:
            return DASHBOARD
        return f"{DASHBOARD}/{hmac.new(self.secret, b'dashboard', 'sha256').hexdigest()}"

    def below_dashboard(self, path: str) -> str | None:
        """Cuts the dashboard's own path off a path, and gives a path of the dashboard; None for any other."""
        head, slash, rest = path.removeprefix(f"{DASHBOARD}/").partition("/")
        if self.is_open or not slash or not equal(f"{DASHBOARD}/{head}", self.dashboard):
            return None
        return f"{DASHBOARD}/{rest}"

    def _known(self) -> list[tuple[str, Visitor]]:
        owners = [(self.token, Visitor(self.owner, owner=True))] if self.token is not None else []
        return [*owners, *((token, Visitor(name)) for name, token in self.named.items())]


def equal(given: str, expected: str) -> bool:
    """Tells whether two secrets are the same, compared in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def chosen_token(host: str, no_token: bool) -> str | None:
    """The token of a server: the environment's, else a new one.

    Args:
        host: what the server binds to.
        no_token: whether it was asked to do without.

    Returns:
        The token; None for none.

    Raises:
        ConfigError: none was wanted on an address that others can reach, or beside tokens by name; or the chosen
            one is short.
    """
    if no_token and os.environ.get(NAMED):
        raise ConfigError(
            f"--no-token with {NAMED} set: nobody is asked for a token then. Leave one of them out."
        )
    if no_token:
        if not is_loopback(host):
            raise ConfigError(
                f"--no-token with --host {host}: others can reach that address. Leave --no-token out, or listen on 127.0.0.1."
            )
        return None
    token = os.environ.get(VARIABLE)
    if not token:
        return secrets.token_urlsafe()
    return checked_token(VARIABLE, token)


def named_tokens(environment: Mapping[str, str], owner: str) -> dict[str, str]:
    """Further readers' tokens by their names, from `ROLLOUT_TRACES_TOKENS`.

    Args:
        environment: the variables.
        owner: the owner's name, which no other may have.

    Raises:
        ConfigError: a name is none or comes twice, or a token is short or comes twice.
    """
    found: dict[str, str] = {}
    for at, entry in enumerate(re.split(r"[,\s]+", environment.get(NAMED, "").strip())):
        name, is_pair, token = entry.partition("=")
        if not entry:
            continue
        if not is_pair or not _NAME.fullmatch(name):
            raise ConfigError(
                f"{NAMED}: entry {at} is no name=token. Expected such pairs with blanks between, names of letters, "
                "digits and ._@+-."
            )
        if name in (*found, owner, ANYBODY) or token in found.values():
            raise ConfigError(
                f"{NAMED}: {name}: the name or its token is another's. Expected one token a name."
            )
        found[name] = checked_token(f"{NAMED}: {name}", token)
    return found


def checked_token(name: str, token: str) -> str:
    """A token that was chosen by hand.

    Raises:
        ConfigError: it is short, or no printable ASCII.
    """
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable():
        raise ConfigError(
            f"{name}: seen {len(token)} characters. Expected {SHORTEST} or more, printable ASCII."
        )
    return token


DASHBOARD_CLOSED = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>rollout traces: Trackio's dashboard</title>
<meta name="viewport" content="width=device-width">
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 38em; margin: 12vh auto; padding: 0 1em; }}</style>
</head><body><h1>This address of the dashboard is closed</h1>
<p>Open it by <i>Trackio</i> at the top of <a href="{inspector}">the inspector</a>, or by the address that
<code>rollout-traces show</code> printed. Both are new whenever the inspector is started.</p></body></html>
"""
"""The page of a visitor who asks for the dashboard by another path than its own."""


ANYBODY = "visitor"
"""The name of all who come where no token is asked for: nobody can tell them apart."""


@dataclass(frozen=True)
class Visitor:
    """Whoever a token belongs to.

    Attributes:
        name: what his labels and notes are signed with.
        owner: may take back what others wrote.
    """

    name: str
    owner: bool = False


_NOBODY = Visitor(ANYBODY)
_asking: ContextVar[Visitor] = ContextVar("visitor", default=_NOBODY)


@contextmanager
def asking(visitor: Visitor) -> Iterator[None]:
    """Whatever is answered inside is answered to this visitor, threads that are started for it included."""
    before = _asking.set(visitor)
    try:
        yield
    finally:
        _asking.reset(before)


def who_asks() -> Visitor:
    """The visitor of the request that is being answered; one without rights where none is."""
    return _asking.get()


LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
LARGEST_PORT = 65_535
_DEFAULT_PORTS = {"http": HTTP_PORT, "https": HTTPS_PORT}
_FORWARDED = (b"x-forwarded-", b"x-original-", b"forwarded", b"x-real-ip", b"x-gradio-server")
"""Beginnings of the names of headers with which a proxy says what it was asked."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def is_loopback(host: str) -> bool:
    """True for a name or address that only this machine can reach."""
    address = _address(host.strip("[]"))
    return host in LOOPBACK_NAMES or (address is not None and address.is_loopback)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


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
        is_named = "*" in self.names or name in self.names
        return is_named or (self.any_address and _address(name) is not None)


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
        peer = _address(scope["client"][0]) if scope.get("client") else None
        return peer is not None and any(peer in network for network in self.networks)


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
    return repr(text[:MOST].encode("ascii", "replace").decode())


def _origin(text: str) -> tuple[str, str, int] | None:
    try:
        parts = urlsplit(text)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or port is None or parts.path.strip("/"):
        return None
    return parts.scheme, parts.hostname, port
