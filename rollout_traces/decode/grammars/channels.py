"""gpt-oss and Muse: one message a channel or recipient, several in one turn.

<|channel|>analysis<|message|>The user wants weather.<|end|><|start|>assistant to=functions.get_weather
<|channel|>commentary json<|message|>{"city": "Oslo"}<|call|>

<|start|>assistant to=self<|message|>The user wants weather.<|eom|><|start|>assistant to=user<|message|>Hi<|eot|>
"""

from __future__ import annotations

import re

from rollout_traces.decode.grammars.grammar import (
    Grammar,
    Malformed,
    Region,
    Scan,
    TextSpan,
    call_region,
)
from rollout_traces.decode.grammars.json_calls import arguments_of
from rollout_traces.decode.grammars.literal import JsonError, loads

_TO = r"\s{0,8}to=(?P<%s>[^\s<]{1,200})"
_HARMONY_HEAD = re.compile(
    rf"(?:<\|start\|>assistant)?(?:{_TO % 'before'})?\s{{0,8}}<\|channel\|>(?P<channel>\w{{1,40}})"
    rf"(?:{_TO % 'after'})?\s{{0,8}}(?:<\|constrain\|>)?\s{{0,8}}(?P<type>\w{{1,40}})?\s{{0,8}}<\|message\|>"
)
_HARMONY_STOP = re.compile(r"<\|(?:end|call|return|start|channel)\|>")
_HARMONY_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_MUSE_HEAD = re.compile(rf"(?:<\|start\|>assistant)?(?:{_TO % 'to'})?<\|message\|>")
_MUSE_STOP = re.compile(r"<\|(?:eom|eot|start)\|>")
_MUSE_ENDS = ("<|eom|>", "<|eot|>")


class Harmony(Grammar):
    """gpt-oss: `analysis` is thinking, a recipient makes a call, all else is content."""

    name = "gpt_oss"
    opener = r"<\|start\|>assistant|to=[^\s<]{1,200}\s{0,8}<\|channel\|>|<\|channel\|>"
    needs = ("<|channel|>", "<|message|>")
    markers = _HARMONY_ENDS

    def read(self, scan: Scan, at: int) -> Region | Malformed | None:
        """Reads one message, or the header alone where its text is content."""
        head = _HARMONY_HEAD.match(scan.text, at)
        if head is None:
            return None
        recipient = head.group("before") or head.group("after")
        start = head.end()
        if not recipient and head.group("channel") != "analysis":
            return Region((TextSpan("marker", at, start),))
        stop = scan.search(_HARMONY_STOP, start)
        stop = len(scan.text) if stop < 0 else stop
        end = next((stop + len(text) for text in _HARMONY_ENDS if scan.text.startswith(text, stop)), stop)
        if recipient:
            return self._call(scan, at, (start, stop, end), recipient)
        return _message(at, start, stop, end)

    def _call(self, scan: Scan, at: int, edges: tuple[int, int, int], recipient: str) -> Region | Malformed:
        start, stop, end = edges
        name = recipient.removeprefix("functions.")
        read = loads(scan.text[start:stop])
        if isinstance(read, JsonError):
            if name == recipient:
                return call_region(scan, at, end, (name, {"input": scan.text[start:stop]}, None))
            closer = scan.text[stop:end]
            return Malformed(read.why, start, name, closer)
        arguments = arguments_of(read.value)
        if isinstance(arguments, str):
            return Malformed(arguments, start, name, scan.text[stop:end])
        return call_region(scan, at, end, (name, arguments, None))


class Muse(Grammar):
    """Muse: what goes to `self` is thinking; calls stand in tags that another grammar reads."""

    name = "muse_recipients"
    opener = r"<\|start\|>assistant|to=[^\s<]{1,200}<\|message\|>|<\|message\|>"
    needs = ("<|message|>", "to=self")
    markers = _MUSE_ENDS

    def read(self, scan: Scan, at: int) -> Region | Malformed | None:
        """Reads a message to `self`, or the header alone."""
        head = _MUSE_HEAD.match(scan.text, at)
        if head is None:
            return None
        if head.group("to") != "self":
            return Region((TextSpan("marker", at, head.end()),))
        stop = scan.search(_MUSE_STOP, head.end())
        stop = len(scan.text) if stop < 0 else stop
        end = next((stop + len(text) for text in _MUSE_ENDS if scan.text.startswith(text, stop)), stop)
        return _message(at, head.end(), stop, end)


def _message(at: int, start: int, stop: int, end: int) -> Region:
    """A message that is thinking. One that the text's end cuts counts as closed: its end marker is the turn's."""
    spans = (TextSpan("marker", at, start), TextSpan("thinking", start, stop), TextSpan("marker", stop, end))
    return Region(tuple(span for span in spans if span.stop > span.start))


CHANNELS = (Harmony(), Muse())
