"""Hermes and Qwen 2.5 / 3 calls."""

from rollout_traces.decode.grammars import parse_assistant
from rollout_traces.decode.grammars.json_calls import HERMES


def calls_of(body: str) -> list[tuple[str, object]]:
    return [(call.name, call.arguments) for call in parse_assistant(body, (HERMES,)).calls]


class TestWellFormedCalls:
    def test_one_call_after_text(self):
        body = (
            'I will look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
        )
        parsed = parse_assistant(body, (HERMES,))
        assert parsed.content == "I will look."
        assert [(call.name, call.arguments) for call in parsed.calls] == [("get_weather", {"city": "Oslo"})]
        assert parsed.calls[0].raw == body[parsed.calls[0].start : parsed.calls[0].stop] == body[13:]
        assert parsed.warnings == ()

    def test_two_calls_in_one_turn_keep_their_order(self):
        body = (
            '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>\n'
            '<tool_call>\n{"name": "b", "arguments": {"x": [1, {"y": null}]}}\n</tool_call>'
        )
        assert calls_of(body) == [("a", {}), ("b", {"x": [1, {"y": None}]})]

    def test_the_closing_marker_inside_a_json_string_does_not_end_the_call(self):
        body = '<tool_call>\n{"name": "say", "arguments": {"text": "</tool_call> } {"}}\n</tool_call>'
        assert calls_of(body) == [("say", {"text": "</tool_call> } {"})]

    def test_arguments_written_as_json_encoded_text_are_decoded(self):
        assert calls_of('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>') == [
            ("f", {"a": 1})
        ]


class TestMalformedCalls:
    def test_a_call_cut_by_the_length_limit_is_kept_as_written(self):
        body = 'Sure.\n<tool_call>\n{"name": "get_weather", "argum'
        parsed = parse_assistant(body, (HERMES,))
        (call,) = parsed.calls
        assert (call.name, call.arguments) == ("get_weather", None)
        assert call.raw == '<tool_call>\n{"name": "get_weather", "argum'
        assert parsed.warnings[0].startswith("tool_call_unparsed")
        assert parsed.content == "Sure."

    def test_a_trailing_comma_is_flagged_and_the_next_call_still_read(self):
        body = (
            '<tool_call>{"name": "a", "arguments": {"x": 1,}}</tool_call>'
            '<tool_call>{"name": "b", "arguments": {}}</tool_call>'
        )
        parsed = parse_assistant(body, (HERMES,))
        assert [(call.name, call.arguments) for call in parsed.calls] == [("a", None), ("b", {})]
        assert len(parsed.warnings) == 1

    def test_a_call_without_its_end_does_not_swallow_the_next_one(self):
        good = '<tool_call>{"name": "b", "arguments": {}}</tool_call>'
        parsed = parse_assistant(f'<tool_call>{{"name": "a", oops\n{good}', (HERMES,))
        assert [(call.name, call.arguments) for call in parsed.calls] == [("a", None), ("b", {})]

    def test_each_unparsed_call_has_its_warning(self):
        parsed = parse_assistant("<tool_call>{,}</tool_call>" * 3, (HERMES,))
        assert len(parsed.calls) == len(parsed.warnings) == 3
