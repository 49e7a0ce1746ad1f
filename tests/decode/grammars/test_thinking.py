"""Thinking blocks."""

import time

import pytest

from rollout_traces.decode.grammars import grammars_for, parse_assistant
from rollout_traces.decode.grammars.json_calls import HERMES
from rollout_traces.decode.grammars.thinking import FAMILIES

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
