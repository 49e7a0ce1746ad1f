"""Thinking and tool calls out of assistant text: one small file per model family."""

from rollout_traces.decode.grammars.grammar import (
    THINKING_UNCLOSED,
    UNPARSED,
    Grammar,
    Malformed,
    ParsedBody,
    ParsedCall,
    Region,
    TextSpan,
)
from rollout_traces.decode.grammars.parse import NO_SCHEMAS, parameters_by_tool, parse_assistant
from rollout_traces.decode.grammars.registry import grammars_for
from rollout_traces.decode.grammars.thinking import TYPED_FAMILIES
from rollout_traces.decode.grammars.tool_notations import parse_tool_definitions

__all__ = [
    "NO_SCHEMAS",
    "THINKING_UNCLOSED",
    "TYPED_FAMILIES",
    "UNPARSED",
    "Grammar",
    "Malformed",
    "ParsedBody",
    "ParsedCall",
    "Region",
    "TextSpan",
    "grammars_for",
    "parameters_by_tool",
    "parse_assistant",
    "parse_tool_definitions",
]
