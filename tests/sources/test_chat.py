"""Conversations as dumps write them, read as messages."""

from __future__ import annotations

from collections import Counter

import pytest

from rollout_traces.model.text import text_of
from rollout_traces.sources.chat import messages_of, messages_of_marked_text


def one(**message: object) -> dict:
    (found,) = messages_of([message])
    return found


def call(name: str, arguments: str, identity: str = "call_0") -> dict:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


class TestRoles:
    @pytest.mark.parametrize(
        ("written", "read"),
        [
            ("user", "user"),
            ("Assistant", "assistant"),
            ("human", "user"),
            ("gpt", "assistant"),
            ("tool", "tool"),
        ],
    )
    def test_have_many_names(self, written: str, read: str) -> None:
        assert one(role=written, content="a") == {"role": read, "content": "a"}
        assert one(**{"from": written, "value": "a"}) == {"role": read, "content": "a"}

    def test_one_that_nobody_knows_is_a_users_with_its_name(self) -> None:
        assert one(role="critic", content="a") == {"role": "user", "content": "a", "name": "critic"}

    @pytest.mark.parametrize("given", [None, [], [1], ["a", {"role": "user"}], 7])
    def test_what_is_no_conversation_has_none(self, given: object) -> None:
        assert messages_of(given) is None

    def test_a_text_and_a_message_alone_are_conversations(self) -> None:
        assert (
            messages_of("a")
            == messages_of({"role": "user", "content": "a"})
            == [{"role": "user", "content": "a"}]
        )


class TestContent:
    def test_of_parts_is_their_text_and_names_what_is_no_text(self) -> None:
        unread: Counter[str] = Counter()
        parts = [
            {"type": "text", "text": "a"},
            "b",
            {"type": "image_url", "image_url": {}},
            {"type": "weird"},
            {"type": "refusal", "refusal": "no"},
            {"content": "c"},
            3,
        ]
        ((found),) = messages_of([{"role": "user", "content": parts}], unread)
        assert found["content"] == "ab[image][weird]noc3" and unread == {"weird": 1}
        assert text_of(parts) == "ab[image][weird]noc3"

    @pytest.mark.parametrize(
        ("content", "text"), [(None, ""), ("a", "a"), ({"text": "a"}, "a"), (7, "7"), ([], "")]
    )
    def test_may_be_one_part_or_none(self, content: object, text: str) -> None:
        assert one(role="user", content=content)["content"] == text == text_of(content)

    def test_thinking_is_apart(self) -> None:
        parts = [
            {"type": "thinking", "thinking": "a"},
            {"type": "reasoning", "summary": []},
            {"type": "text", "text": "b"},
        ]
        assert one(role="assistant", content=parts) == {
            "role": "assistant",
            "content": "b",
            "reasoning_content": "a\n[redacted]",
        }
        assert one(role="assistant", content="b", reasoning="own")["reasoning_content"] == "own"


class TestCalls:
    @pytest.mark.parametrize(
        "written",
        [
            {"function": {"name": "f", "arguments": '{"a":1}'}},
            {"function": {"name": "f", "arguments": {"a": 1}}},
            {"name": "f", "args": {"a": 1}},
            {"function": "f", "arguments": {"a": 1}},
            {"function_name": "f", "parameters": {"a": 1}},
        ],
    )
    def test_are_written_in_many_ways(self, written: dict) -> None:
        found = one(role="assistant", content="", tool_calls=[written])
        assert found["tool_calls"] == [call("f", '{"a":1}')]
        assert one(role="assistant", content="", function_call=written)["tool_calls"] == found["tool_calls"]

    def test_keep_their_ids_or_are_numbered(self) -> None:
        calls = [{"name": "f", "id": "x"}, {"name": "g"}, {"name": "h", "call_id": "y", "id": "z"}]
        found = one(role="assistant", content=None, tool_calls=calls)["tool_calls"]
        assert [each["id"] for each in found] == ["x", "call_1", "y"]
        assert [each["function"]["arguments"] for each in found] == ["{}"] * 3

    def test_may_be_a_text_of_a_role_of_its_own(self) -> None:
        found = one(**{"from": "function_call", "value": '{"name": "f", "arguments": {}}'})
        assert (found["role"], found["content"], found["tool_calls"]) == ("assistant", "", [call("f", "{}")])
        assert one(**{"from": "tool_call", "value": "f("})["tool_calls"] == [call("", "f(")]

    def test_among_the_parts_are_calls_too(self) -> None:
        parts = [
            {"type": "text", "text": "look"},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
        ]
        found = one(role="assistant", content=parts)
        assert found["content"] == "look" and found["tool_calls"] == [call("f", '{"a":1}', "t1")]


class TestResults:
    def test_among_a_users_parts_are_messages_before_it(self) -> None:
        parts = [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "17"}]},
            {"text": "and?"},
        ]
        assert messages_of([{"role": "user", "content": parts}]) == [
            {"role": "tool", "content": "17", "tool_call_id": "t1"},
            {"role": "user", "content": "and?"},
        ]
        assert messages_of([{"role": "user", "content": parts[:1]}]) == [
            {"role": "tool", "content": "17", "tool_call_id": "t1"}
        ]

    @pytest.mark.parametrize(
        ("said", "failed"),
        [
            ({"is_error": True}, True),
            ({"isError": "true"}, True),
            ({"error": {"type": "timeout"}}, True),
            ({"is_error": False}, False),
            ({"error": "x"}, False),
        ],
    )
    def test_say_that_the_call_failed(self, said: dict, failed: bool) -> None:
        assert ("is_error" in one(role="tool", content="17", **said)) is failed
        result = {"type": "tool_result", "content": "17", **said}
        assert ("is_error" in messages_of([{"role": "user", "content": [result]}])[0]) is failed

    def test_of_tools_alone_fail(self) -> None:
        assert "is_error" not in one(role="user", content="17", is_error=True)

    def test_keep_the_id_of_their_call_and_their_name(self) -> None:
        assert one(role="tool", content="17", toolCallId="t1", name="f") == {
            "role": "tool",
            "content": "17",
            "tool_call_id": "t1",
            "name": "f",
        }


class TestItemsOfResponses:
    def test_of_one_answer_are_one_message(self) -> None:
        items = [
            {"role": "user", "content": "6 x 7?"},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "think"}]},
            {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c1"},
            {"type": "function_call_output", "call_id": "c1", "output": "42"},
            {"type": "reasoning", "content": [{"text": "again"}]},
            {"role": "assistant", "content": "It is 42."},
        ]
        assert messages_of(items) == [
            {"role": "user", "content": "6 x 7?"},
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": "think",
                "tool_calls": [call("f", "{}", "c1")],
            },
            {"role": "tool", "content": "42", "tool_call_id": "c1"},
            {"role": "assistant", "content": "It is 42.", "reasoning_content": "again"},
        ]

    def test_two_answers_of_the_assistant_stay_two(self) -> None:
        said = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]
        assert messages_of(said) == said

    def test_thinking_in_two_items_is_joined(self) -> None:
        items = [{"type": "reasoning", "text": "a"}, {"type": "reasoning", "text": "b"}]
        assert messages_of(items) == [{"role": "assistant", "content": "", "reasoning_content": "ab"}]


class TestMarkedText:
    CHATML = (
        "<|im_start|>system\nBrief.<|im_end|>\n<|im_start|>user\n6 x 7?<|im_end|>\n<|im_start|>assistant\n"
    )

    def said(self, prompt: str | None, reply: str | None) -> list | None:
        found = messages_of_marked_text(prompt, reply)
        return None if found is None else [(message["role"], message["content"]) for message in found]

    def test_is_taken_apart_at_its_markers(self) -> None:
        asked = [("system", "Brief."), ("user", "6 x 7?")]
        assert self.said(self.CHATML, "42<|im_end|>\n") == [*asked, ("assistant", "42")]
        assert self.said(self.CHATML, None) == asked, "an answer that was not begun is none"
        assert self.said(self.CHATML, "42") == [*asked, ("assistant", "42")]

    def test_a_result_in_a_users_turn_is_the_tools(self) -> None:
        reply = "look<|im_end|>\n<|im_start|>user\n<tool_response>\n17\n</tool_response><|im_end|>\n"
        assert self.said(self.CHATML, reply)[-1] == ("tool", "17")

    def test_another_role_is_a_users(self) -> None:
        assert self.said("<|im_start|>critic\nno<|im_end|>", None) == [("user", "no")]

    @pytest.mark.parametrize("prompt", [None, "", "6 x 7?"])
    def test_without_markers_there_are_no_messages(self, prompt: str | None) -> None:
        assert messages_of_marked_text(prompt, self.CHATML) is None
