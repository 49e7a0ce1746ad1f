"""Families that differ from Hermes in their markers alone."""

import pytest

from rollout_traces.decode.grammars import parse_assistant
from rollout_traces.decode.grammars.json_calls import (
    COHERE_ACTION,
    COHERE_COMMAND_R,
    GRANITE,
    GRANITE_FUNCTION,
    INTERNLM,
    MARKED_JSON,
    MINIMAX_M1,
    NEMOTRON,
    PHI,
    PHI_FUNCTOOLS,
)

EXAMPLES = {
    PHI: '<|tool_call|>[{"name": "f", "arguments": {"x": 1}}]<|/tool_call|>',
    PHI_FUNCTOOLS: 'functools[{"name": "f", "arguments": {"x": 1}}]',
    GRANITE: '<|tool_call|>[{"name": "f", "arguments": {"x": 1}}]',
    GRANITE_FUNCTION: '<function_call> {"name": "f", "arguments": {"x": 1}}',
    NEMOTRON: '<TOOLCALL>[{"name": "f", "arguments": {"x": 1}}]</TOOLCALL>',
    MINIMAX_M1: '<tool_calls>\n{"name": "f", "arguments": {"x": 1}}\n</tool_calls>',
    INTERNLM: '<|action_start|><|plugin|>\n{"name": "f", "parameters": {"x": 1}}<|action_end|>',
    COHERE_ACTION: (
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "f", "parameters": {"x": 1}}\n]<|END_ACTION|>'
    ),
    COHERE_COMMAND_R: 'Action: ```json\n[{"tool_name": "f", "parameters": {"x": 1}}]\n```',
}


@pytest.mark.parametrize("grammar", MARKED_JSON, ids=lambda grammar: grammar.name)
class TestEveryFamily:
    def test_its_example(self, grammar):
        parsed = parse_assistant(f"Now: {EXAMPLES[grammar]}", (grammar,))
        assert [(call.name, call.arguments) for call in parsed.calls] == [("f", {"x": 1})]
        assert (parsed.content, parsed.warnings) == ("Now: ", ())

    def test_its_example_cut_short(self, grammar):
        body = EXAMPLES[grammar][: EXAMPLES[grammar].index("1")]
        parsed = parse_assistant(body, (grammar,))
        assert [(call.name, call.arguments, call.raw) for call in parsed.calls] == [("f", None, body)]
        assert parsed.warnings == ("tool_call_unparsed: cut off before it ended",)


def test_minimax_m1_writes_one_object_a_line():
    body = '<tool_calls>\n{"name": "a", "arguments": {}}\n{"name": "b", "arguments": {}}\n</tool_calls>'
    assert [call.name for call in parse_assistant(body, (MINIMAX_M1,)).calls] == ["a", "b"]


def test_cohere_gives_its_calls_ids_and_its_answer_markers_are_not_content():
    body = EXAMPLES[COHERE_ACTION] + "<|START_RESPONSE|>Hi<|END_RESPONSE|>"
    parsed = parse_assistant(body, (COHERE_ACTION,))
    assert (parsed.calls[0].id, parsed.content) == ("0", "Hi")
