"""The headers that every answer carries: what a page may load and run, who may frame it, who may keep it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from rollout_traces.errors import ConfigError
from rollout_traces.inspector.routes import Kind

_INLINE_SCRIPT = re.compile(rb"<script(?![^>]*\ssrc\s*=)[^>]*>(.*?)</script>", re.DOTALL | re.IGNORECASE)
_NOT_OURS_TO_SEND = (b"access-control-", b"server")
_REPLACED = frozenset(
    {
        b"content-security-policy",
        b"x-content-type-options",
        b"x-frame-options",
        b"referrer-policy",
        b"cross-origin-resource-policy",
        b"cross-origin-opener-policy",
    }
)

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
    return tuple(f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'" for script in found)


def policy(kind: Kind, hashes: Iterable[str] = (), ancestors: Iterable[str] = ()) -> str:
    """The Content-Security-Policy of an answer.

    Args:
        kind: what is answered.
        hashes: of the page's own inline scripts; no other inline script runs, and no event handler.
        ancestors: the sites that may show the page in a frame.
    """
    if kind == "frame":
        return "; ".join(
            (
                "default-src 'none'",
                f"script-src {' '.join(hashes)} data:",
                "style-src 'unsafe-inline'",
                "img-src data:",
                "font-src data:",
                "base-uri 'none'",
                "form-action 'none'",
                "sandbox allow-scripts",
                " ".join(("frame-ancestors 'self'", *ancestors)),
            )
        )
    frames = f"frame-ancestors {' '.join(ancestors) or chr(39) + 'none' + chr(39)}"
    if kind != "page":
        media = "; img-src 'self'; media-src 'self'; style-src 'unsafe-inline'" if kind == "file" else ""
        return f"default-src 'none'{media}; sandbox; {frames}"
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' 'unsafe-eval' {' '.join(hashes)}".rstrip(),
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "media-src 'self' blob:",
            "connect-src 'self'",
            "worker-src 'self' blob:",
            "frame-src 'self'",
            "manifest-src 'self'",
            "object-src 'none'",
            "base-uri 'self'",
            "form-action 'self'",
            frames,
        )
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
    kept = [
        (name, value)
        for name, value in headers
        if name.lower() not in _REPLACED
        and not name.lower().startswith(_NOT_OURS_TO_SEND)
        and (kind == "code" or name.lower() not in (b"cache-control", b"etag", b"last-modified", b"expires"))
    ]
    added = {
        "content-security-policy": policy(kind, hashes, ancestors),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-resource-policy": "same-origin",
        "cross-origin-opener-policy": "same-origin",
    }
    if not ancestors:
        added["x-frame-options"] = "SAMEORIGIN" if kind == "frame" else "DENY"
    if kind != "code":
        added["cache-control"] = "no-store"
    return kept + [(name.encode(), value.encode()) for name, value in added.items()]
