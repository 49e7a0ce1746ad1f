"""An assistant body taken apart into content, thinking and calls; thinking is text between an opening and a closing marker."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rollout_traces.decode.grammars.grammar import (
    BetweenMarkers,
    Grammar,
    Malformed,
    ParsedBody,
    ParsedCall,
    Region,
    Scan,
    TextSpan,
)
from rollout_traces.model.transcript import UNPARSED

_LINE_BREAKS = "\r\n"
_MENTION = 256
"""Characters before a closing marker in which the one that opens it is looked for."""
NO_SCHEMAS: Mapping[str, Mapping[str, Any]] = {}


def parse_assistant(
    body: str,
    grammars: Sequence[Grammar],
    prefix: str = "",
    schemas: Mapping[str, Mapping[str, Any]] = NO_SCHEMAS,
) -> ParsedBody:
    """Takes an assistant body apart. Never raises on data and loses no character.

    Args:
        body: the turn's text without its opening and closing role markers, special tokens' texts
            included.
        grammars: the families to look for, as `grammars_for` gives them. Where two claim the same
            opener, the first that reads it wins.
        prefix: the turn's opening marker as text. When it ends inside an open block (Qwen's
            generation prompt ends in `<think>`, gpt-oss's opener names a channel), the body begins
            inside that block. Without it, a closing thinking marker that nothing opened says so.
        schemas: JSON schemas of the known tools' parameters, as `parameters_by_tool` gives them; families
            that write arguments without types (`<parameter=x>`) take the types from them.

    Returns:
        The parsed body; character positions are positions in `body`.
    """
    markup = _markup(tuple(grammars))
    text = prefix + body
    if markup.opener is None or markup.opener.search(text) is None:
        return ParsedBody(body, None, True, (), (), (TextSpan("content", 0, len(body)),) if body else ())
    pieces = _Pieces(Scan(text, schemas, fresh=len(prefix)), len(prefix))
    pieces.read(markup)
    return pieces.parsed(body)


def parameters_by_tool(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Each tool's JSON schema of parameters by name; definitions that have none are left out."""
    schemas = {}
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping):
            continue
        parameters = function.get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
        if isinstance(function.get("name"), str) and isinstance(properties, Mapping):
            schemas[function["name"]] = properties
    return schemas


@dataclass(frozen=True)
class _Markup:
    """All that may begin a region, for one set of grammars."""

    opener: re.Pattern[str] | None
    readers: tuple[tuple[re.Pattern[str], Grammar], ...]
    closers: tuple[str, ...]
    markers: tuple[str, ...]


@lru_cache
def _markup(grammars: tuple[Grammar, ...]) -> _Markup:
    closers = tuple(dict.fromkeys(text for grammar in grammars for text in grammar.closers))
    markers = tuple(dict.fromkeys(text for grammar in grammars for text in grammar.markers))
    parts = [grammar.opener for grammar in grammars]
    parts += [re.escape(text) for text in sorted({*closers, *markers}, key=len, reverse=True)]
    opener = re.compile("|".join(dict.fromkeys(parts))) if parts else None
    readers = tuple((re.compile(grammar.opener), grammar) for grammar in grammars)
    return _Markup(opener, readers, closers, tuple(sorted(markers, key=len, reverse=True)))


class _Pieces:
    """Collects what the grammars read, from left to right."""

    def __init__(self, scan: Scan, body_start: int) -> None:
        self.scan = scan
        self.body_start = body_start
        self.spans: list[TextSpan] = []
        self.calls: list[ParsedCall] = []
        self.warnings: list[str] = []
        self.said: set[str] = set()
        self.thinking_closed = True
        self.thought = False

    def read(self, markup: _Markup) -> None:
        pos = done = 0
        while markup.opener is not None and (at := self.scan.search(markup.opener, pos)) >= 0:
            if self.scan.exhausted:
                self._warn(f"{UNPARSED}: given up, too much malformed text; the rest is shown as text")
                break
            region = self._region(markup, at)
            if region is None:
                pos = at + 1
                continue
            self._content(done, region.spans[0].start)
            self.spans.extend(region.spans)
            self.calls.extend(region.calls)
            for warning in region.warnings:
                self._warn(warning)
            self.thinking_closed = self.thinking_closed and region.thinking_closed
            self.thought = self.thought or any(span.kind == "thinking" for span in region.spans)
            pos = done = region.stop
            self.scan.fresh = max(self.scan.fresh, done)
        self._content(done, len(self.scan.text))

    def parsed(self, body: str) -> ParsedBody:
        shift = self.body_start
        spans = _trimmed(self.scan.text, self.spans, shift)
        calls = tuple(_clipped_call(call, body, shift) for call in self.calls if call.stop > shift)
        return ParsedBody(
            content=_joined(body, spans, "content"),
            thinking=_joined(body, spans, "thinking") or None,
            thinking_closed=self.thinking_closed,
            calls=calls,
            warnings=tuple(self.warnings),
            spans=tuple(spans),
        )

    def _warn(self, warning: str) -> None:
        """Unparsed calls are said one by one, in the order of the calls; all else is said once."""
        if warning.startswith(UNPARSED) or warning not in self.said:
            self.warnings.append(warning)
            self.said.add(warning)

    def _content(self, start: int, stop: int) -> None:
        if stop > start:
            self.spans.append(TextSpan("content", start, stop))

    def _region(self, markup: _Markup, at: int) -> Region | None:
        malformed: Malformed | None = None
        for opener, grammar in markup.readers:
            if not opener.match(self.scan.text, at):
                continue
            try:
                read = grammar.read(self.scan, at)
            except RecursionError:
                read = Malformed("nested too deeply", at)
            if isinstance(read, Region):
                return read
            malformed = malformed or read
        if malformed is not None:
            return self._unparsed(malformed, markup, at)
        closer = next((text for text in markup.closers if self.scan.text.startswith(text, at)), None)
        if closer is not None and (self.thought or not self._mentioned(at, closer)):
            return self._thinking_before(at, at + len(closer))
        marker = next((text for text in markup.markers if self.scan.text.startswith(text, at)), None)
        return Region((TextSpan("marker", at, at + len(marker)),)) if marker else None

    def _mentioned(self, at: int, closer: str) -> bool:
        """Tells whether a closing marker is only spoken of: in backticks, or behind its opening one on the same line."""
        text = self.scan.text
        if text[at - 1 : at] == "`" == text[at + len(closer) : at + len(closer) + 1]:
            return True
        opening = closer.replace("</", "<", 1)
        start = max(self.scan.fresh, at - _MENTION)
        start = max(start, text.rfind("\n", start, at) + 1)
        return opening != closer and text.find(opening, start, at) >= 0

    def _unparsed(self, malformed: Malformed, markup: _Markup, at: int) -> Region:
        assert markup.opener is not None
        stop = self.scan.search(markup.opener, max(at + 1, malformed.start))
        close = self.scan.find(malformed.closer, malformed.start) if malformed.closer else -1
        if close >= 0 and (stop < 0 or close <= stop):
            stop = close + len(malformed.closer)
        stop = len(self.scan.text) if stop < 0 else stop
        call = ParsedCall(malformed.name, None, self.scan.text[at:stop], None, at, stop)
        return Region((TextSpan("call", at, stop),), (call,), warnings=(f"{UNPARSED}: {malformed.reason}",))

    def _thinking_before(self, at: int, stop: int) -> Region | None:
        """A closing marker that nothing opened: all of the body before it was thinking."""
        if self.thought:
            self._warn("thinking_marker_stray: a closing marker stands alone and is shown as text")
            return None
        self.warnings.clear()
        if self.calls:
            self._warn("tool_call_in_thinking: a call stands before the end of the thinking")
        self.thought = True
        start = min(self.body_start, at)
        self.spans = [TextSpan("content", 0, start)] if start else []
        self.calls = []
        spans = (TextSpan("thinking", start, at), TextSpan("marker", at, stop))
        return Region(spans if at > start else spans[1:])


def _trimmed(text: str, spans: Sequence[TextSpan], shift: int) -> list[TextSpan]:
    """The spans from `shift` on, in positions of the body, with edges given to the markers beside them.

    Line breaks beside a marker and blank content between two become markers; markers that touch are
    one.
    """
    trimmed: list[TextSpan] = []
    last = len(spans) - 1
    for index, span in enumerate(spans):
        kind, start, stop = span
        if kind == "marker" or kind == "call":
            _append(trimmed, span, shift)
            continue
        thinking = kind == "thinking"
        begin, end = _inner(text, start, stop, thinking or index > 0, thinking or index < last)
        if begin > start:
            _append(trimmed, TextSpan("marker", start, begin), shift)
        if end > begin:
            _append(trimmed, TextSpan(kind, begin, end), shift)
        if stop > end:
            _append(trimmed, TextSpan("marker", end, stop), shift)
    return trimmed


def _inner(text: str, start: int, stop: int, trim_left: bool, trim_right: bool) -> tuple[int, int]:
    piece = text[start:stop]
    if (trim_left or trim_right) and not piece.strip():
        return stop, stop
    left = len(piece) - len(piece.lstrip(_LINE_BREAKS)) if trim_left else 0
    right = len(piece) - len(piece.rstrip(_LINE_BREAKS)) if trim_right else 0
    return start + left, stop - right


def _append(spans: list[TextSpan], span: TextSpan, shift: int) -> None:
    kind, start, stop = span
    if stop <= shift:
        return
    if spans and kind == "marker" == spans[-1].kind:
        start = spans.pop().start + shift
    spans.append(TextSpan(kind, max(start - shift, 0), stop - shift))


def _clipped_call(call: ParsedCall, body: str, shift: int) -> ParsedCall:
    if not shift:
        return call
    start, stop = max(call.start - shift, 0), call.stop - shift
    return ParsedCall(call.name, call.arguments, body[start:stop], call.id, start, stop)


def _joined(body: str, spans: Sequence[TextSpan], kind: str) -> str:
    return "\n\n".join(body[span.start : span.stop] for span in spans if span.kind == kind)


@dataclass(frozen=True, eq=False)
class ThinkingTags(BetweenMarkers):
    """A pair of markers around reasoning."""

    markers: tuple[str, ...] = ()

    @property
    def closers(self) -> tuple[str, ...]:
        """The closing marker, which may stand alone when the template opened the block."""
        return (self.closing,)

    def in_template(self, chat_template: str) -> bool:
        """Tells whether either marker stands in the template, escapes of its string literals undone."""
        return self.opening in chat_template or self.closing in chat_template

    def read(self, scan: Scan, at: int) -> Region | Malformed | None:
        """Reads to the closing marker, or to the end of the text."""
        inside = at + len(self.opening)
        close = scan.find(self.closing, inside)
        if close < 0:
            spans = (TextSpan("marker", at, inside), TextSpan("thinking", inside, len(scan.text)))
            return Region(spans=spans, thinking_closed=False)
        return Region(
            spans=(
                TextSpan("marker", at, inside),
                TextSpan("thinking", inside, close),
                TextSpan("marker", close, close + len(self.closing)),
            )
        )


@dataclass(frozen=True, eq=False)
class TypedThinking(ThinkingTags):
    """Tags that a model was asked or learned to write although its template knows nothing of them.

    They count where the text begins, or where they begin a line and are closed; elsewhere they are content: a
    pattern in code, a tag that is spoken of.
    """

    def read(self, scan: Scan, at: int) -> Region | Malformed | None:
        """Reads the block unless it is a mere mention of the opening tag."""
        block = scan.begins_text(at) or (scan.begins_line(at) and scan.find(self.closing, at) >= 0)
        return super().read(scan, at) if block else None


FAMILIES = (
    ThinkingTags("think", "<think>", "</think>"),
    ThinkingTags("thinking", "<thinking>", "</thinking>"),
    ThinkingTags("thought", "<thought>", "</thought>"),
    ThinkingTags("reasoning", "<reasoning>", "</reasoning>"),
    ThinkingTags("mistral_think", "[THINK]", "[/THINK]"),
    ThinkingTags("kimi_think", "◁think▷", "◁/think▷"),
    ThinkingTags("seed_think", "<seed:think>", "</seed:think>"),
    ThinkingTags("cohere_think", "<|START_THINKING|>", "<|END_THINKING|>"),
    ThinkingTags("gemma_thought", "<|channel>thought", "<channel|>"),
    ThinkingTags("apriel_reasoning", "Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"),
    ThinkingTags("inner_prefix", "<|inner_prefix|>", "<|inner_suffix|>"),
)
"""Families whose markers stand in chat templates."""

TYPED_FAMILIES = (
    TypedThinking("typed_think", "<think>", "</think>"),
    TypedThinking("typed_thinking", "<thinking>", "</thinking>"),
    TypedThinking("typed_reasoning", "<reasoning>", "</reasoning>"),
)
"""Families that are looked for in every model's text."""
