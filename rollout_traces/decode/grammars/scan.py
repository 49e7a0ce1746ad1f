"""The text being read, with searches that stay linear over the whole of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_SPACE = re.compile(r"[ \t\r\n]*")


class Scan:
    """One assistant text while grammars read it from left to right.

    Searches remember where the next hit is, so that asking again and again for a marker that is far
    away or absent costs nothing. Failed reads are charged against a budget in proportion to the text,
    so that hostile text is read in linear time.

    Attributes:
        text: the opening marker's text followed by the body.
        tools: JSON schema of each known tool's parameters, by tool name.
        fresh: where the text not yet read begins: the body's first character, then the end of each
            region as it is read.
    """

    def __init__(
        self, text: str, tools: Mapping[str, Mapping[str, Any]] | None = None, fresh: int = 0
    ) -> None:
        """Starts on `text`."""
        self.text = text
        self.tools = tools or {}
        self.fresh = fresh
        self._hits: dict[str | re.Pattern[str], tuple[int, int]] = {}
        self._budget = 16 * len(text) + 4096

    def find(self, needle: str, start: int) -> int:
        """Position of the literal `needle` at or after `start`, or -1."""
        asked, hit = self._hits.get(needle, (-1, -2))
        if asked == -1 or start < asked or -1 < hit < start:
            hit = self.text.find(needle, start)
            self._hits[needle] = (start, hit)
        return hit

    def search(self, pattern: re.Pattern[str], start: int) -> int:
        """Position of the first match of `pattern` at or after `start`, or -1."""
        asked, hit = self._hits.get(pattern, (-1, -2))
        if asked == -1 or start < asked or -1 < hit < start:
            match = pattern.search(self.text, start)
            hit = match.start() if match else -1
            self._hits[pattern] = (start, hit)
        return hit

    def skip_space(self, start: int) -> int:
        """First position at or after `start` that is not white space."""
        match = _SPACE.match(self.text, start)
        return match.end() if match else start

    def next_char(self, start: int) -> str:
        """The first character at or after `start` that is not white space; empty at the end."""
        at = self.skip_space(start)
        return self.text[at : at + 1]

    def begins_text(self, at: int) -> bool:
        """Whether nothing but white space stands between `fresh` and `at`."""
        return at >= self.fresh and self.skip_space(self.fresh) >= at

    def begins_line(self, at: int) -> bool:
        """Whether nothing but blanks stands between a line break, or `fresh`, and `at`."""
        start = at
        while start > self.fresh and self.text[start - 1] in " \t":
            start -= 1
        return start == self.fresh or self.text[start - 1] == "\n"

    def charge(self, characters: int) -> None:
        """Notes that `characters` were read in vain."""
        self._budget -= characters

    @property
    def exhausted(self) -> bool:
        """True when so much was read in vain that no further attempt is made."""
        return self._budget < 0
