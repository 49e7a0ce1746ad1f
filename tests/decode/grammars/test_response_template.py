"""A tokenizer's own `response_template`, and transformers' parsing with it as an independent oracle."""

import pytest

pytest.importorskip("transformers.utils.chat_parsing", reason="needs transformers 5.13 or later")

from rollout_traces.decode.grammars import grammars_for, parameters_by_tool, parse_assistant
from rollout_traces.decode.grammars.response_template import response_grammar

from .builders import assert_nothing_is_lost, tool
from .rendering import TOOLS, rendered_call_turn, template_text, tokenizer_with

TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<bot>",
    "fields": {
        "reasoning_content": {"open": "<hm>", "close": "</hm>", "content": "text"},
        "tool_calls": {
            "open_pattern": r"<do (?P<name>\w+)>",
            "close": "</do>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"close": "<eos>", "content": "text"},
    },
}

READ_ALIKE = (
    *("gemma4_v5", "glm4moe", "gptoss", "llama3_1", "llama3_2", "qwen2_5", "qwen3", "qwen3_vl"),
    *("qwen3_5_nothink", "qwen3_5_think", "qwen3_6", "qwen3_8", "qwen3_instruct_2507"),
    *("nemotron_3_5_lightning", "nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra"),
)
READ_WRONGLY_BY_TRANSFORMERS = (
    *("gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4"),  # they write None, which is not JSON
    *("lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl", "lfm2_v2"),  # booleans come back as text
)


def grammars_of(template):
    tokenizer = tokenizer_with("{{ messages }}")
    tokenizer.response_template = template
    return grammars_for(tokenizer.chat_template, tokenizer)


class TestATokenizersOwnTemplate:
    def test_it_is_used_when_no_built_in_family_knows_the_chat_template(self):
        body = '<hm>Well.</hm>Look: <do ping>{"x": {"y": 1}}</do> done'
        parsed = parse_assistant(body, grammars_of(TEMPLATE))
        assert (parsed.thinking, parsed.content) == ("Well.", "Look: \n\n done")
        assert [(call.name, call.arguments, call.raw) for call in parsed.calls] == [
            ("ping", {"x": {"y": 1}}, '<do ping>{"x": {"y": 1}}</do>')
        ]
        assert_nothing_is_lost(body, parsed)

    def test_what_its_parser_refuses_is_kept_as_written_and_flagged(self):
        for body in ("<do ping>{nonsense}</do>", '<do ping>{"x": 1', "<do ping>[1]</do>"):
            parsed = parse_assistant(body, grammars_of(TEMPLATE))
            assert [(call.name, call.arguments, call.raw) for call in parsed.calls] == [("ping", None, body)]
            assert parsed.warnings[0].startswith("tool_call_unparsed")

    def test_text_arguments_take_their_schemas_types(self):
        fields = {**TEMPLATE["fields"]}
        fields["tool_calls"] = {
            **fields["tool_calls"],
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<(?P<key>\w+)>(?P<value>.*?)</\w+>"},
        }
        body = "<do f><days>3</days><zip>75001</zip></do>"
        schemas = parameters_by_tool([tool("f", days="integer", zip="string")])
        (call,) = parse_assistant(body, grammars_of({**TEMPLATE, "fields": fields}), schemas=schemas).calls
        assert call.arguments == {"days": 3, "zip": "75001"}

    @pytest.mark.parametrize(
        "template", [None, {}, {"fields": 3}, {"fields": {"tool_calls": {"open_pattern": "("}}}]
    )
    def test_a_template_that_cannot_be_loaded_is_left_aside(self, template):
        tokenizer = tokenizer_with("{{ messages }}")
        tokenizer.response_template = template
        assert response_grammar(tokenizer) is None
        assert grammars_for(tokenizer.chat_template, tokenizer) == grammars_for(None)


def rendered_by_known_template(template):
    from trl.chat_template_utils import add_response_schema  # some ten seconds of imports

    tokenizer = tokenizer_with(template_text(template))
    add_response_schema(tokenizer)
    return tokenizer, *rendered_call_turn(template_text(template))


@pytest.mark.parametrize("template", READ_ALIKE)
def test_built_in_families_read_what_transformers_reads(template):
    tokenizer, body, prefix, calls = rendered_by_known_template(template)
    message = tokenizer.parse_response(body, prefix=prefix, tools=TOOLS)
    theirs = [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
    parsed = parse_assistant(body, grammars_for(tokenizer.chat_template), prefix, parameters_by_tool(TOOLS))
    assert [(call.name, call.arguments) for call in parsed.calls] == theirs == list(calls)
    assert parsed.thinking == message.get("reasoning_content", message.get("thinking"))


@pytest.mark.parametrize("template", [*READ_ALIKE, *READ_WRONGLY_BY_TRANSFORMERS])
def test_a_response_template_as_a_grammar_finds_the_same_calls(template):
    tokenizer, body, prefix, calls = rendered_by_known_template(template)
    parsed = parse_assistant(body, (response_grammar(tokenizer),), prefix, parameters_by_tool(TOOLS))
    assert [call.name for call in parsed.calls] == [name for name, _ in calls]
    assert "".join(body[span.start : span.stop] for span in parsed.spans) == body
