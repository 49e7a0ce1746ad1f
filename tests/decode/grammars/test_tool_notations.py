"""Tool definitions out of system turns."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_traces.decode.grammars import parse_tool_definitions
from rollout_traces.decode.grammars.parse import parameters_by_tool

from .rendering import QUESTION, TEMPLATE_NAMES, TOOLS, template_text, tokenizer_with

FUNCTION = {
    "name": "get_weather",
    "description": "Weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TOOL = {"type": "function", "function": FUNCTION}


def names_and_types(tools):
    return {
        name: {key: schema.get("type") for key, schema in properties.items()}
        for name, properties in parameters_by_tool(tools).items()
    }


class TestJson:
    def test_a_tools_block_with_one_definition_a_line(self):
        text = (
            f'Be kind {{always}}.\n\n# Tools\n<tools>\n{json.dumps(TOOL)}\n</tools>\nUse {{"name": <name>}}.'
        )
        assert parse_tool_definitions(text) == (TOOL,)

    def test_bare_functions_and_lists_and_indents(self):
        for text in (json.dumps(FUNCTION), json.dumps([FUNCTION]), json.dumps(TOOL, indent=4)):
            assert parse_tool_definitions(text) == (TOOL,)

    def test_a_name_defined_twice_counts_once_and_the_fuller_one_wins(self):
        short = {"name": "get_weather", "description": ""}
        assert parse_tool_definitions(json.dumps(short) + json.dumps(FUNCTION)) == (TOOL,)

    def test_other_json_is_no_definition(self):
        assert parse_tool_definitions('{"name": "Ada"} {"name": "f", "arguments": {}} [1, {"a": []}]') == ()


class TestOtherNotations:
    def test_typescript(self):
        text = "namespace functions {\n\n// Weather of\n// a city.\ntype get_weather = (_: {\n// where\ncity: string,\n"
        text += 'days?: number, // default: 3\nkind?: "a" | "b",\n}) => any;\n\ntype ping = () => any;\n\n}'
        weather, ping = parse_tool_definitions(text)
        assert weather["function"] == {
            "name": "get_weather",
            "description": "Weather of\na city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "number"}, "kind": {}},
                "required": ["city"],
            },
        }
        assert ping["function"]["name"] == "ping"


RENDERS_NO_TOOLS = {
    *("cohere", "cohere2", "deepseek_r1_distill", "deepseekv3", "gemma", "gemma3", "idefics3", "llama3"),
    *("llava_next", "phi3", "phi3_5", "qwen2_5_vl", "smolvlm"),
}


@pytest.mark.parametrize(
    "template", [name for name in TEMPLATE_NAMES if name.removesuffix("_training") not in RENDERS_NO_TOOLS]
)
def test_what_a_template_renders_gives_the_tools_names_and_types(template):
    tokenizer = tokenizer_with(template_text(template))
    text = tokenizer.apply_chat_template([{"role": "user", "content": QUESTION}], tools=TOOLS, tokenize=False)
    read, wanted = names_and_types(parse_tool_definitions(text)), names_and_types(TOOLS)
    assert list(read)[:1] == list(wanted)[:1] == ["get_weather"]
    untyped = {"nothing": None, "days": "number"} if template.startswith("gptoss") else {}
    assert read["get_weather"] == {**wanted["get_weather"], **untyped}


class TestHostileText:
    @settings(max_examples=300, deadline=None)
    @given(
        st.lists(
            st.one_of(
                st.sampled_from(
                    ["<function>", "<name>f</name>", "</function>", "<parameters>", "<parameter>"]
                ),
                st.sampled_from(
                    ["declaration:f{", "<escape>", '<|"|>', "type f = (", "_: {\n", "// x\n", "=> any;"]
                ),
                st.sampled_from(['{"name": "f", ', '"parameters": {}}', "{", "[", '"', "<type>[", "<enum>{"]),
                st.text(max_size=8),
            ),
            max_size=14,
        ).map("".join)
    )
    def test_never_raises_and_gives_what_json_can_carry(self, text):
        json.dumps(parse_tool_definitions(text), allow_nan=False)

    @pytest.mark.timeout(240)
    @pytest.mark.parametrize(
        "piece",
        ["{", '{"', '{"name": "f", "parameters": {', "declaration:f{description:<escape>", "// x\n", "type f = (",
         "<function><name>f</name>", "<function><name>f</name><parameters><parameter><name>", "[["],
    )  # fmt: skip
    def test_a_megabyte_of_one_piece_is_read_in_linear_time(self, piece):
        assert isinstance(parse_tool_definitions(piece * (1_000_000 // len(piece))), tuple)
