"""Calls between special tokens: DeepSeek's, Kimi's and Mistral's notations."""

import pytest

from rollout_traces.decode.grammars import parse_assistant
from rollout_traces.decode.grammars.token_calls import DEEPSEEK, KIMI, MISTRAL

from .builders import calls_of

V3 = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
    '{"city": "Oslo"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```json\n{}\n```'
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
V31 = (
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Oslo"}<｜tool▁call▁end｜>'
    "<｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
CALLS = [("get_weather", {"city": "Oslo"}), ("ping", {})]


class TestDeepSeek:
    def test_v3_writes_a_type_a_name_and_fenced_json(self):
        assert calls_of(f"Sure.{V3}", DEEPSEEK) == CALLS

    def test_v31_writes_name_and_json(self):
        assert calls_of(V31, DEEPSEEK) == CALLS

    def test_the_sections_markers_are_not_content(self):
        assert parse_assistant(f"Sure.\n{V31}", (DEEPSEEK,)).content == "Sure."

    def test_a_section_without_its_end_still_gives_its_calls(self):
        assert calls_of(V3.removesuffix("<｜tool▁call▁end｜><｜tool▁calls▁end｜>"), DEEPSEEK) == CALLS

    def test_a_cut_call_keeps_its_name_and_the_calls_before_it(self):
        parsed = parse_assistant(V31[: V31.index("{}") + 1], (DEEPSEEK,))
        assert [(call.name, call.arguments) for call in parsed.calls] == [CALLS[0], ("ping", None)]
        assert parsed.warnings == ("tool_call_unparsed: cut off before it ended",)


KIMI_BODY = (
    "Let me see.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    '{"city": "Oslo"}<|tool_call_end|><|tool_call_begin|>functions.ping:1<|tool_call_argument_begin|>{}'
    "<|tool_call_end|><|tool_calls_section_end|>"
)


class TestKimi:
    def test_the_name_is_read_out_of_the_id_and_the_id_kept(self):
        parsed = parse_assistant(KIMI_BODY, (KIMI,))
        assert [(call.name, call.arguments, call.id) for call in parsed.calls] == [
            ("get_weather", {"city": "Oslo"}, "functions.get_weather:0"),
            ("ping", {}, "functions.ping:1"),
        ]
        assert parsed.content == "Let me see."

    def test_an_id_of_another_form_is_taken_for_the_name(self):
        body = "<|tool_call_begin|>call_abc<|tool_call_argument_begin|>{}<|tool_call_end|>"
        assert [call.name for call in parse_assistant(body, (KIMI,)).calls] == ["call_abc"]

    def test_a_cut_call_keeps_its_name(self):
        parsed = parse_assistant(KIMI_BODY[: KIMI_BODY.index("Oslo")], (KIMI,))
        assert [(call.name, call.arguments) for call in parsed.calls] == [("get_weather", None)]


class TestMistralsList:
    def test_a_list_of_calls_with_ids(self):
        body = (
            '[TOOL_CALLS] [{"name": "a", "arguments": {"x": "]"}, "id": "VvvODy9mT"}, '
            '{"name": "b", "arguments": {}, "id": "abcdefghi"}]'
        )
        parsed = parse_assistant(body, (MISTRAL,))
        assert [(call.name, call.arguments, call.id) for call in parsed.calls] == [
            ("a", {"x": "]"}, "VvvODy9mT"),
            ("b", {}, "abcdefghi"),
        ]
        assert parsed.calls[1].raw == '{"name": "b", "arguments": {}, "id": "abcdefghi"}'
        assert parsed.content == ""

    def test_an_empty_list_is_flagged(self):
        parsed = parse_assistant("[TOOL_CALLS] []", (MISTRAL,))
        assert parsed.warnings == ("tool_call_unparsed: a list without a call",)

    def test_one_bad_call_flags_the_list(self):
        parsed = parse_assistant('[TOOL_CALLS] [{"name": "a", "arguments": {}}, 7]', (MISTRAL,))
        assert [(call.name, call.arguments) for call in parsed.calls] == [("a", None)]


class TestMistralsNamed:
    @pytest.mark.parametrize(
        ("body", "call_id"),
        [
            ('[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}', None),
            ('[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "Oslo"}', "a1b2c3d4e"),
            ('[TOOL_CALLS]get_weather{"city": "Oslo"}', None),
        ],
    )
    def test_name_and_arguments(self, body, call_id):
        (call,) = parse_assistant(body, (MISTRAL,)).calls
        assert (call.name, call.arguments, call.id) == ("get_weather", {"city": "Oslo"}, call_id)

    def test_two_calls_after_text(self):
        body = 'One moment.[TOOL_CALLS]a[ARGS]{"x": 1}[TOOL_CALLS]b[ARGS]{}'
        assert calls_of(body, MISTRAL) == [("a", {"x": 1}), ("b", {})]

    def test_a_cut_call_keeps_its_name(self):
        parsed = parse_assistant('[TOOL_CALLS]a[ARGS]{"x": 1', (MISTRAL,))
        assert [(call.name, call.arguments) for call in parsed.calls] == [("a", None)]
        assert parsed.warnings == ("tool_call_unparsed: cut off before it ended",)
