"""The one cleaner of text that no encoding takes: lone surrogates."""

from __future__ import annotations

import re

REPLACEMENT = "\ufffd"
_SURROGATE = re.compile("[\ud800-\udfff]")


def encodable(text: str) -> str:
    """The text with each lone surrogate as U+FFFD; as many characters as before."""
    return text if text.isascii() else _SURROGATE.sub(REPLACEMENT, text)


def encodable_joined(text: str) -> str:
    """The text with pairs of surrogates joined to one character, as escapes in JSON spell them; lone ones as U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
