"""Mistral: `[TOOL_CALLS]`, then a JSON list, or name and arguments.

[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo"}, "id": "a1b2c3d4e"}]
[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "Oslo"}
[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]ping[ARGS]{}
"""

from __future__ import annotations

import re

from rollout_traces.decode.grammars.grammar import Malformed, Region, Scan, ShownByTexts, call_region
from rollout_traces.decode.grammars.json_calls import read_arguments, read_marked_json

_MARKER = "[TOOL_CALLS]"
_NAMED = re.compile(
    r"\s{0,8}([^\s\[\]{}]{1,200})\s{0,8}(?:\[CALL_ID\]([^\s\[\]]{1,200}))?\s{0,8}(?:\[ARGS\])?\s{0,8}(?=\{)"
)
_BARE_NAME = re.compile(r"\s{0,8}([^\s\[\]{}]{1,200})")


class Mistral(ShownByTexts):
    """Both of Mistral's notations."""

    name = "mistral"
    opener = re.escape(_MARKER)
    needs = (_MARKER,)

    def read(self, scan: Scan, at: int) -> Region | Malformed | None:
        """Reads the list, or one named call."""
        start = at + len(_MARKER)
        if scan.next_char(start) in ("[", "{"):
            return read_marked_json(scan, at, start, "")
        head = _NAMED.match(scan.text, start)
        if head is None:
            bare = _BARE_NAME.match(scan.text, start)
            return Malformed("no arguments after the name", start, bare.group(1) if bare else "")
        name, call_id = head.groups()
        read = read_arguments(scan, head.end(), start, name)
        return (
            read if isinstance(read, Malformed) else call_region(scan, at, read[1], (name, read[0], call_id))
        )


MISTRAL = Mistral()
