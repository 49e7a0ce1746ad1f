"""The token that opens the inspector: in the printed address once, in a cookie from then on."""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from rollout_traces.errors import ConfigError
from rollout_traces.inspector.origins import is_loopback

PARAMETER = "access_token"
"""Where the token is in an address."""
VARIABLE = "ROLLOUT_TRACES_TOKEN"
"""The environment variable that sets it; a command line can be read by every user of the machine."""
SHORTEST = 16
"""Characters of a token that was chosen by hand."""


@dataclass(frozen=True)
class Access:
    """Who may read.

    Attributes:
        token: the token; None opens the inspector to whoever reaches it.
        port: the server's port; in the cookie's name, because cookies do not know ports.
        framed: the page is shown in a frame of a declared site, so its cookie has to be sent there.
    """

    token: str | None = None
    port: int = 0
    framed: bool = False

    @property
    def cookie_name(self) -> str:
        """One name a port: two inspectors of one machine do not overwrite each other's cookie."""
        return f"rollout-traces-{self.port}"

    def allows(self, headers: Mapping[str, str]) -> bool:
        """True for a request that carries the cookie or the token as a bearer."""
        if self.token is None:
            return True
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(bearer.strip()):
            return True
        return any(
            _equal(value, self._cookie_value())
            for name, value in _cookies(headers.get("cookie", ""))
            if name == self.cookie_name
        )

    def is_token(self, given: str) -> bool:
        """True for the token, compared in constant time."""
        return self.token is not None and _equal(given, self.token)

    def cookie(self, path: str, secure: bool) -> str:
        """The Set-Cookie header that remembers a visitor until the browser is closed.

        Args:
            path: the prefix under which the page is served.
            secure: whether the page was asked for over https.
        """
        reach = "Secure; Partitioned; SameSite=None" if self.framed else "SameSite=Lax"
        if secure and not self.framed:
            reach += "; Secure"
        return f"{self.cookie_name}={self._cookie_value()}; Path={path or '/'}; HttpOnly; {reach}"

    def _cookie_value(self) -> str:
        """Not the token: other services on the same name receive the cookie, whatever their port."""
        return hmac.new((self.token or "").encode(), b"cookie", "sha256").hexdigest()


def chosen_token(host: str, no_token: bool) -> str | None:
    """The token of a server: the environment's, else a new one.

    Args:
        host: what the server binds to.
        no_token: whether it was asked to do without.

    Returns:
        The token; None for none.

    Raises:
        ConfigError: none was wanted on an address that others can reach, or the chosen one is short.
    """
    if no_token:
        if not is_loopback(host):
            raise ConfigError(
                f"--no-token with --host {host}: others can reach that address. Leave --no-token out, or listen on 127.0.0.1."
            )
        return None
    token = os.environ.get(VARIABLE)
    if not token:
        return secrets.token_urlsafe(24)
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable():
        raise ConfigError(
            f"{VARIABLE}: seen {len(token)} characters. Expected {SHORTEST} or more, printable ASCII."
        )
    return token


def sign_in_page(given: bool) -> str:
    """What a visitor without the token sees.

    Args:
        given: whether he came with a token, which was not this server's.
    """
    seen = "The token in this address is not this server's: it has been started anew since." if given else ""
    return _PAGE.format(seen=escape(seen), parameter=PARAMETER, variable=VARIABLE)


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>rollout traces: token needed</title>
<meta name="viewport" content="width=device-width">
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 38em; margin: 12vh auto; padding: 0 1em; }}
code {{ background: #8883; padding: .1em .3em; border-radius: 4px; }}
input, button {{ font: inherit; padding: .3em .6em; }} input {{ width: 24em; max-width: 100%; }}
</style></head><body>
<h1>This inspector asks for its token</h1>
<p>{seen}</p>
<p>Open the address that <code>rollout-traces show</code> printed when it started: it ends in
<code>{parameter}=…</code>. Or put the token in here:</p>
<form method="get" action="">
<input name="{parameter}" type="password" autocomplete="off" aria-label="Token" autofocus required>
<button>Open</button></form>
<p>On a server that was started for you, the token is what <code>{variable}</code> was set to; ask whoever
started it.</p>
</body></html>
"""


def _equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def _cookies(header: str) -> list[tuple[str, str]]:
    pairs = (part.strip().partition("=") for part in header.split(";"))
    return [(name, value) for name, _, value in pairs]
