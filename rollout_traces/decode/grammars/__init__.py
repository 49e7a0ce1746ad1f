"""Thinking and tool calls out of assistant text: a small file per notation, and which of them a chat template calls for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout_traces.decode.grammars.channels import CHANNELS
from rollout_traces.decode.grammars.gemma import GEMMA
from rollout_traces.decode.grammars.glm import GLM
from rollout_traces.decode.grammars.grammar import (
    Grammar,
    Malformed,
    ParsedBody,
    ParsedCall,
    Region,
    TextSpan,
)
from rollout_traces.decode.grammars.json_calls import COHERE_ACTION, HERMES, MARKED_JSON, NEMOTRON, PHI
from rollout_traces.decode.grammars.llama import LLAMA
from rollout_traces.decode.grammars.parse import (
    FAMILIES,
    NO_SCHEMAS,
    TYPED_FAMILIES,
    parameters_by_tool,
    parse_assistant,
)
from rollout_traces.decode.grammars.python_calls import LFM2, PYTHON_CALLS
from rollout_traces.decode.grammars.response_template import response_grammar
from rollout_traces.decode.grammars.token_calls import DEEPSEEK, KIMI, MISTRAL
from rollout_traces.decode.grammars.tool_notations import parse_tool_definitions
from rollout_traces.decode.grammars.xml_functions import XML_FUNCTIONS

__all__ = [
    "NO_SCHEMAS",
    "TYPED_FAMILIES",
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


CALL_GRAMMARS: tuple[Grammar, ...] = (
    *CHANNELS,
    *XML_FUNCTIONS,
    *GLM,
    HERMES,
    *MARKED_JSON,
    MISTRAL,
    DEEPSEEK,
    KIMI,
    *GEMMA,
    *PYTHON_CALLS,
    *LLAMA,
)
"""All families of calls. Where two share an opener, the stricter stands first."""

SAFE_CALL_GRAMMARS: tuple[Grammar, ...] = (
    *CHANNELS[:1],
    *XML_FUNCTIONS,
    *GLM[:1],
    HERMES,
    PHI,
    NEMOTRON,
    COHERE_ACTION,
    MISTRAL,
    DEEPSEEK,
    KIMI,
    *GEMMA,
    LFM2,
)
"""For templates that know of no calls: families whose markers are unmistakable."""


def grammars_for(chat_template: str | Mapping[str, str] | None, tokenizer: Any = None) -> tuple[Grammar, ...]:
    """The grammars whose markers stand in a chat template.

    Args:
        chat_template: the template's source, several by name, or None when there is none.
        tokenizer: where a `response_template` is looked for (transformers 5.13 and later). It is used
            when no built-in family of calls recognises the chat template.

    Returns:
        The families of calls (the safe ones when the template knows none), then those of thinking,
        then the thinking tags that any model may write.
    """
    template = chat_template or ""
    if isinstance(template, Mapping):
        template = "\n".join(template.values())
    calls = tuple(grammar for grammar in CALL_GRAMMARS if grammar.in_template(template))
    own = response_grammar(tokenizer) if not calls else None
    if own is not None:
        calls = (own,)
    thinking = tuple(grammar for grammar in FAMILIES if grammar.in_template(template))
    known = {grammar.opening for grammar in thinking}
    typed = tuple(grammar for grammar in TYPED_FAMILIES if grammar.opening not in known)
    return (*(calls or SAFE_CALL_GRAMMARS), *thinking, *typed)
