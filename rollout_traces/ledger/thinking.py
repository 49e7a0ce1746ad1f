"""How many sampled tokens a rollout spent on thinking."""

from __future__ import annotations

import numpy as np

from rollout_traces.transcript import Transcript

_BETWEEN = "\n\n"
"""What the blocks of a turn's thinking are joined with; it may stand inside a block too."""


def thinking_tokens(transcript: Transcript) -> int:
    """Sampled tokens whose text lies inside the thinking of an assistant turn, in however many blocks."""
    count = 0
    for turn in transcript.turns:
        if not turn.thinking:
            continue
        inside = slice(turn.start, turn.stop)
        starts = transcript.tokens.char_starts[inside] - int(transcript.tokens.char_starts[turn.start])
        within = np.zeros(len(starts), bool)
        for first, last in blocks(turn.raw, turn.thinking):
            within |= (starts >= first) & (starts < last)
        count += int((within & transcript.tokens.response_mask[inside]).sum())
    return count


def blocks(raw: str, thinking: str) -> list[tuple[int, int]]:
    """Where a turn's thinking stands in its raw text.

    Args:
        raw: the turn as it was written.
        thinking: its thinking, blocks joined by blank lines.

    Returns:
        Start and stop of each stretch, in order; pieces that cannot be placed are left out.
    """
    pieces = thinking.split(_BETWEEN)
    found = []
    at, first = 0, 0
    while first < len(pieces):
        for last in range(len(pieces), first, -1):
            text = _BETWEEN.join(pieces[first:last])
            start = raw.find(text, at) if text else -1
            if start >= 0:
                found.append((start, start + len(text)))
                at, first = start + len(text), last
                break
        else:
            first += 1
    return found
