"""What holds for every body and every family."""

import json
import time

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_traces.decode.grammars import CALL_GRAMMARS, SAFE_CALL_GRAMMARS, grammars_for, parse_assistant
from rollout_traces.decode.grammars.json_calls import HERMES
from rollout_traces.decode.grammars.parse import FAMILIES, TYPED_FAMILIES

from .builders import assert_nothing_is_lost

EVERYTHING = (*CALL_GRAMMARS, *FAMILIES, *TYPED_FAMILIES)
MARKERS = sorted(
    {
        *(text for grammar in EVERYTHING for text in (*grammar.markers, *grammar.closers)),
        *(grammar.opening for grammar in EVERYTHING if hasattr(grammar, "opening")),
        *(grammar.closing for grammar in EVERYTHING if hasattr(grammar, "closing") and grammar.closing),
        *("<tool_call>", "</tool_call>", "<function=f>", "<parameter=x>", "</parameter>", "</function>"),
        *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        *("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "```json\n", "```"),
        *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|python_tag|>"),
        *("<|start|>assistant", " to=functions.f", "<|channel|>", "analysis", "commentary", "<|message|>"),
        *("<|tool_call_start|>[", '<invoke name="f">', "</invoke>", '<parameter name="x">', "<escape>"),
        *("<minimax:tool_call>", "</minimax:tool_call>", "call:f{", '<|"|>', "<atem:function_calls>"),
    }
)
PIECES = st.one_of(
    st.sampled_from(MARKERS),
    st.sampled_from(
        ['{"name": "f", "arguments": {}}', '{"name": "f"', "{", "}", "[", "]", '"', "'", "\\", ",", ":"]
    ),
    st.sampled_from(
        ["f(x=1)", "f(x='a", "x:1", "\n", " ", "1e999", "NaN", "9" * 30, "\ud800", "\\ud800", "é🌦"]
    ),
    st.text(max_size=12),
)
BODIES = st.lists(PIECES, max_size=14).map("".join)
TEMPLATE_GRAMMARS = st.sampled_from(
    [EVERYTHING, grammars_for(None), *((grammar, *FAMILIES[:1]) for grammar in CALL_GRAMMARS)]
)


class TestAnyText:
    @settings(max_examples=600, deadline=None)
    @given(body=BODIES, grammars=TEMPLATE_GRAMMARS)
    def test_nothing_raises_and_nothing_is_lost(self, body, grammars):
        assert_nothing_is_lost(body, parse_assistant(body, grammars))

    @settings(max_examples=300, deadline=None)
    @given(body=BODIES, prefix=BODIES, grammars=TEMPLATE_GRAMMARS)
    def test_the_same_with_any_opening_marker_before_it(self, body, prefix, grammars):
        parsed = parse_assistant(body, grammars, prefix)
        assert sum(span.stop - span.start for span in parsed.spans) == len(body)
        assert all(call.raw == body[call.start : call.stop] for call in parsed.calls)

    @settings(max_examples=300, deadline=None)
    @given(body=BODIES, grammars=TEMPLATE_GRAMMARS)
    def test_arguments_can_be_encoded_again_and_unparsed_calls_are_flagged(self, body, grammars):
        parsed = parse_assistant(body, grammars)
        for call in parsed.calls:
            orjson.dumps(call.arguments)
            json.dumps(call.arguments, allow_nan=False)
        if not all(call.parsed for call in parsed.calls):
            assert any(warning.startswith("tool_call_unparsed") for warning in parsed.warnings)


class TestContent:
    def test_without_markers_it_is_the_body_to_the_last_space(self):
        body = "\n  Hello.\n\n"
        assert parse_assistant(body, EVERYTHING).content == body

    def test_line_breaks_beside_markers_are_scaffolding_and_spaces_are_not(self):
        call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
        assert parse_assistant(f" a \n{call}\n\n b ", (HERMES,)).content == " a \n\n b "

    def test_an_empty_body(self):
        parsed = parse_assistant("", EVERYTHING)
        assert (parsed.content, parsed.thinking, parsed.calls, parsed.spans) == ("", None, (), ())


def hermes(json_text):
    return f"<tool_call>\n{json_text}\n</tool_call>"


class TestHostileJson:
    @pytest.mark.parametrize("depth", [300, 5_000, 200_000])
    def test_a_nesting_bomb_is_an_unparsed_call(self, depth):
        body = hermes('{"name": "f", "arguments": {"x": ' + "[" * depth + "]" * depth + "}}")
        parsed = parse_assistant(body, (HERMES,))
        assert [(call.arguments, call.raw) for call in parsed.calls] == [(None, body)]
        assert parsed.warnings == ("tool_call_unparsed: nested too deeply",)

    @pytest.mark.parametrize(
        ("written", "value"),
        [
            ("18446744073709551615", 18446744073709551615),
            ("-9223372036854775808", -9223372036854775808),
            ("18446744073709551616", "18446744073709551616"),
            ("1" * 5_000, "1" * 5_000),
            ("1e999", "1e999"),
            ("NaN", "NaN"),
            ("-Infinity", "-Infinity"),
            ('"\\ud83c\\udf26"', "🌦"),
            ('"a\\ud800b"', "a\ufffdb"),
        ],
    )
    def test_values_that_json_cannot_carry_come_out_as_text(self, written, value):
        (call,) = parse_assistant(
            hermes(f'{{"name": "f", "arguments": {{"x": {written}}}}}'), (HERMES,)
        ).calls
        assert call.arguments == {"x": value}

    def test_a_key_written_twice_is_said(self):
        parsed = parse_assistant(hermes('{"name": "f", "arguments": {"x": 1, "x": 2}}'), (HERMES,))
        assert parsed.calls[0].arguments == {"x": 2}
        assert parsed.warnings[0].startswith("duplicate_key")

    @pytest.mark.parametrize("arguments", ["[1]", "3", "true", '"text"', '"[1]"'])
    def test_arguments_that_are_no_object_are_flagged(self, arguments):
        parsed = parse_assistant(hermes(f'{{"name": "f", "arguments": {arguments}}}'), (HERMES,))
        assert [(call.name, call.arguments) for call in parsed.calls] == [("f", None)]
        assert parsed.warnings[0].startswith("tool_call_unparsed: arguments are")

    def test_text_beside_the_json_is_flagged_and_kept(self):
        body = hermes('{"name": "f", "arguments": {}} done')
        parsed = parse_assistant(body, (HERMES,))
        assert [(call.name, call.arguments, call.raw) for call in parsed.calls] == [("f", None, body)]


MEGABYTE = 1_000_000
HOSTILE_PIECES = [
    "<tool_call>",
    "<tool_call>{",
    '<tool_call>{"a": "',
    '<tool_call>[","',
    '<tool_call>{"name": "f", "arguments": {',
    "</tool_call>",
    "<think>",
    "</think>",
    "<think></think>",
    "<tool_call><function=f><parameter=x>",
    "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>",
    '\n{"name": "f", "parameters": ',
    '\n{"name": "f", "parameters": "',
    "[TOOL_CALLS]f[ARGS]{",
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{",
    "<|tool_call_begin|>f<|tool_call_argument_begin|>{",
    "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{",
    '<|tool_call>call:f{a:<|"|>',
    "<|tool_call>call:f{a:{",
    "<|tool_call_start|>[f(x='",
    "<|tool_call_start|>[f(x='\\",
    "<|python_tag|>",
    '<minimax:tool_call><invoke name="f">',
    "```tool_code\n",
    "[f(",
    "{",
    '{"',
    "\\",
    " ",
    "\n",
    "a",
]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("piece", HOSTILE_PIECES)
def test_a_megabyte_of_one_piece_is_read_in_linear_time(piece):
    body = piece * (MEGABYTE // len(piece)) + '"]}</arg_value></tool_call></parameter></function>!'
    parsed = parse_assistant(body, EVERYTHING)
    assert sum(span.stop - span.start for span in parsed.spans) == len(body)


def test_the_safe_grammars_leave_plain_json_and_code_alone():
    body = '{"name": "f", "parameters": {}}\n[f(x=1)]\n```tool_code\nf()\n```\nfunctools[{"name": "f"}]'
    parsed = parse_assistant(body, SAFE_CALL_GRAMMARS)
    assert (parsed.content, parsed.calls) == (body, ())


THINK = FAMILIES[:1]
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize("tags", FAMILIES, ids=lambda tags: tags.name)
class TestEveryFamily:
    def test_text_between_the_tags_is_thinking_and_the_rest_content(self, tags):
        parsed = parse_assistant(f"{tags.opening}\nHm.\n{tags.closing}\n\nHello.", (tags,))
        assert (parsed.thinking, parsed.content, parsed.thinking_closed) == ("Hm.", "Hello.", True)

    def test_a_block_cut_short_is_thinking_and_not_closed(self, tags):
        parsed = parse_assistant(f"{tags.opening}Hm, let me", (tags,))
        assert (parsed.thinking, parsed.content, parsed.thinking_closed) == ("Hm, let me", "", False)


class TestThinkingOpenedByTheTemplate:
    def test_the_opening_marker_says_so(self):
        parsed = parse_assistant("Hm.\n</think>\n\nHello.", THINK, prefix="<|im_start|>assistant\n<think>\n")
        assert (parsed.thinking, parsed.content) == ("Hm.", "Hello.")

    def test_a_body_without_the_end_of_it_is_thinking_throughout(self):
        parsed = parse_assistant("Hm, let me", THINK, prefix="<|im_start|>assistant\n<think>\n")
        assert (parsed.thinking, parsed.content, parsed.thinking_closed) == ("Hm, let me", "", False)

    def test_a_closing_marker_alone_says_so_too(self):
        parsed = parse_assistant("Hm.\n</think>\n\nHello.", THINK)
        assert (parsed.thinking, parsed.content) == ("Hm.", "Hello.")

    def test_a_template_that_closed_an_empty_block_left_none(self):
        for prefix in ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "<｜Assistant｜></think>"):
            parsed = parse_assistant("Hello.", THINK, prefix)
            assert (parsed.thinking, parsed.content, parsed.thinking_closed) == (None, "Hello.", True)

    def test_a_call_that_the_thinking_mentions_is_not_made(self):
        parsed = parse_assistant(f"I could {CALL} now.</think>{CALL}", (HERMES, *THINK))
        assert len(parsed.calls) == 1
        assert parsed.thinking == f"I could {CALL} now."
        assert parsed.warnings[0].startswith("tool_call_in_thinking")

    def test_a_closing_marker_inside_an_argument_closes_nothing(self):
        body = '<tool_call>\n{"name": "f", "arguments": {"x": "</think>"}}\n</tool_call>'
        parsed = parse_assistant(body, (HERMES, *THINK))
        assert (parsed.thinking, parsed.calls[0].arguments) == (None, {"x": "</think>"})


class TestSeveralBlocks:
    def test_they_are_joined_by_a_blank_line(self):
        parsed = parse_assistant(f"<think>a</think>{CALL}<think>b</think>c", (HERMES, *THINK))
        assert (parsed.thinking, parsed.content) == ("a\n\nb", "c")

    def test_an_empty_block_counts_as_none(self):
        parsed = parse_assistant("<think>\n\n</think>\n\nHi", THINK)
        assert (parsed.thinking, parsed.content) == (None, "Hi")

    def test_a_closing_marker_too_many_is_shown_as_text(self):
        parsed = parse_assistant("<think>a</think>b</think>c", THINK)
        assert parsed.content == "b</think>c"
        assert parsed.warnings[0].startswith("thinking_marker_stray")


class TestTagsThatNoTemplateKnows:
    GRAMMARS = grammars_for("{{ messages[0].content }}")

    def test_they_count_where_the_text_begins_also_when_cut(self):
        for tag in ("think", "thinking", "reasoning"):
            parsed = parse_assistant(f"\n<{tag}>\nHm, let", self.GRAMMARS)
            assert (parsed.thinking, parsed.thinking_closed) == ("Hm, let", False)

    def test_a_mention_of_the_tag_is_content(self):
        body = "Put it inside a <reasoning> tag."
        assert parse_assistant(body, self.GRAMMARS).content == body

    @pytest.mark.parametrize(
        "body",
        [
            'Match it:\n```python\nre.search(r"<think>(.*?)</think>", text)\n```\nThat finds the block.',
            "The tags `<think>` and `</think>` stand around the thinking.",
            "Models end their thinking with `</think>`.\nThen they answer.",
        ],
    )
    def test_tags_that_are_spoken_of_take_nothing_out_of_the_text(self, body):
        parsed = parse_assistant(body, self.GRAMMARS)
        assert (parsed.content, parsed.thinking) == (body, None)

    def test_a_block_that_begins_a_line_counts(self):
        parsed = parse_assistant("Wait.\n<think>\nHm.\n</think>\nIt is 4.", self.GRAMMARS)
        assert (parsed.thinking, parsed.content) == ("Hm.", "Wait.\n\nIt is 4.")

    def test_many_of_them_are_read_in_linear_time(self):
        for body in ("x <think> </think>" + "</think>" * 200_000, "<think>`</think>` " * 100_000):
            began = time.process_time()
            parse_assistant(body[: len(body) // 8], self.GRAMMARS)
            short = time.process_time() - began
            parse_assistant(body, self.GRAMMARS)
            assert time.process_time() - began - short < 40 * max(short, 0.02)
