"""What a decoded rollout says about its tools, small enough to keep until the step is closed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from rollout_traces.ledger.tool_results import tool_failed
from rollout_traces.transcript import Transcript


@dataclass(frozen=True)
class ToolUse:
    """Tool calls and results of one rollout.

    Attributes:
        calls: tool name -> parsed calls.
        unparsed: calls that could not be parsed.
        results: tool results.
        errors: results that say they failed.
        messages: turns of any role.
        errors_by_turn: failed results after each assistant turn, in the order of the turns.
    """

    calls: Mapping[str, int]
    unparsed: int
    results: int
    errors: int
    messages: int
    errors_by_turn: tuple[int, ...] = ()


def tool_use(transcript: Transcript) -> ToolUse:
    """Counts the tool calls and results of a transcript."""
    errors_by_turn: list[int] = []
    for turn in transcript.turns:
        if turn.role == "assistant":
            errors_by_turn.append(0)
        elif errors_by_turn and tool_failed(turn):
            errors_by_turn[-1] += 1
    calls = [call for turn in transcript.turns for call in turn.tool_calls]
    return ToolUse(
        calls=Counter(call.name for call in calls if call.parsed),
        unparsed=sum(not call.parsed for call in calls),
        results=sum(turn.role == "tool" for turn in transcript.turns),
        errors=sum(map(tool_failed, transcript.turns)),
        messages=len(transcript.turns),
        errors_by_turn=tuple(errors_by_turn),
    )
