"""The interface of a grammar, the text that it reads, and the plain data that reading an assistant body gives."""

from __future__ import annotations

import abc
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from rollout_traces.model.units import KB

SpanKind = Literal["content", "thinking", "call", "marker"]


class TextSpan(NamedTuple):
    """A character range of one kind. The spans of a body partition it.

    Attributes:
        kind: `content`, `thinking`, `call`, or `marker` for what is scaffolding: markers and the line
            breaks beside them.
        start: first character.
        stop: one past the last character.
    """

    kind: SpanKind
    start: int
    stop: int


@dataclass(frozen=True)
class ParsedCall:
    """One call as it was written and what it says.

    Attributes:
        name: the tool's name; empty when it could not be read.
        arguments: plain data that JSON can carry again, or None when they could not be parsed.
        raw: the text of the call as written, its markers included where they wrap this call alone.
        id: the call's id as written; None when the family writes none.
        start: first character of `raw` in the body.
        stop: one past its last character.
    """

    name: str
    arguments: dict[str, Any] | None
    raw: str
    id: str | None
    start: int
    stop: int

    @property
    def parsed(self) -> bool:
        """True when name and arguments were understood."""
        return bool(self.name) and self.arguments is not None


@dataclass(frozen=True)
class ParsedBody:
    """An assistant body, taken apart. Nothing is lost: `spans` partition it.

    Attributes:
        content: the text outside thinking, calls and markers; pieces that a call or a thinking block
            separates are joined by a blank line.
        thinking: the reasoning text, several blocks joined by blank lines; None when there is none
            (an empty block counts as none).
        thinking_closed: False when a thinking block was opened and never closed.
        calls: in the order they were written.
        warnings: one sentence each; those about unparsed calls begin with `tool_call_unparsed`, one a
            call and in the order of the calls.
        spans: what each character of the body was taken for.
    """

    content: str
    thinking: str | None
    thinking_closed: bool
    calls: tuple[ParsedCall, ...]
    warnings: tuple[str, ...]
    spans: tuple[TextSpan, ...] = ()


@dataclass(frozen=True)
class Region:
    """A grammar's reading of the text at an opener.

    Attributes:
        spans: partition `[at, stop)` where `at` is the opener's position.
        calls: the calls inside; each is covered by one `call` span.
        thinking_closed: False when the region is a thinking block without its closing marker.
        warnings: one sentence each.
    """

    spans: tuple[TextSpan, ...]
    calls: tuple[ParsedCall, ...] = ()
    thinking_closed: bool = True
    warnings: tuple[str, ...] = ()

    @property
    def stop(self) -> int:
        """One past the last character read."""
        return self.spans[-1].stop


@dataclass(frozen=True)
class Malformed:
    """A call that begins at the opener and cannot be parsed.

    It reaches to the end of `closer` when that comes before the next opener of any grammar, else to
    that opener, else to the end of the body.

    Attributes:
        reason: what was wrong, in a few words.
        name: the tool's name when that much could be read.
        closer: the closing marker; empty when the family has none.
        start: where to look for the closer.
        reached: how far the text was read before it proved malformed.
    """

    reason: str
    start: int
    name: str = ""
    closer: str = ""
    reached: int = 0


class Grammar(abc.ABC):
    """Reads one family's way of writing calls or thinking.

    Attributes:
        name: the family, for warnings and tables.
        needs: texts that all stand in a chat template of the family.
        excludes: texts of which none does.
        markers: literal texts that are scaffolding wherever they stand (a section's begin and end).
    """

    name: str
    needs: tuple[str, ...]
    excludes: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()

    @property
    @abc.abstractmethod
    def opener(self) -> str:
        """A regular expression for what may begin a region; it must match in constant time."""

    @property
    def closers(self) -> tuple[str, ...]:
        """Literal texts that end thinking which the template opened before the body began."""
        return ()

    def in_template(self, chat_template: str) -> bool:
        """Tells whether all of `needs` and none of `excludes` stand in a chat template."""
        return all(text in chat_template for text in self.needs) and not any(
            text in chat_template for text in self.excludes
        )

    @abc.abstractmethod
    def read(self, scan: Scan, at: int) -> Region | Malformed | None:
        """Reads the region that begins at `at`, where `opener` matched.

        Args:
            scan: the text being read.
            at: position of the opener.

        Returns:
            The region, a malformed call, or None when this is not the family's.
        """


@dataclass(frozen=True, eq=False)
class BetweenMarkers(Grammar):
    """A family whose regions stand between two literal markers.

    Attributes:
        opening: the marker before.
        closing: the marker after; empty when the family writes none.
    """

    name: str
    opening: str
    closing: str

    @property
    def opener(self) -> str:
        """The opening marker as a regular expression."""
        return re.escape(self.opening)


def call_region(
    scan: Scan, start: int, stop: int, call: tuple[str, dict[str, Any] | None, str | None]
) -> Region:
    """A region that is one call from end to end; `call` is its name, arguments and id."""
    name, arguments, call_id = call
    return Region(
        (TextSpan("call", start, stop),),
        (ParsedCall(name, arguments, scan.text[start:stop], call_id, start, stop),),
    )


def calls_region(
    scan: Scan, at: int, stop: int, calls: Sequence[ParsedCall], warnings: tuple[str, ...] = ()
) -> Region:
    """A region `[at, stop)` around calls in order.

    A call that is alone takes the markers around it into its raw text; of several each keeps its own
    text, and what lies between is scaffolding.
    """
    if len(calls) == 1:
        alone = call_region(scan, at, stop, (calls[0].name, calls[0].arguments, calls[0].id))
        return Region(alone.spans, alone.calls, warnings=warnings)
    spans, done = [], at
    for call in calls:
        spans += [TextSpan("marker", done, call.start), TextSpan("call", call.start, call.stop)]
        done = call.stop
    spans.append(TextSpan("marker", done, stop))
    return Region(tuple(span for span in spans if span.stop > span.start), tuple(calls), warnings=warnings)


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
        self._budget = 16 * len(text) + 4 * KB

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
        """Tells whether nothing but white space stands between `fresh` and `at`."""
        return at >= self.fresh and self.skip_space(self.fresh) >= at

    def begins_line(self, at: int) -> bool:
        """Tells whether nothing but blanks stands between a line break, or `fresh`, and `at`."""
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
