"""When a tool's result says that it failed, and how many tokens went into thinking."""

from __future__ import annotations

import pytest

from rollout_traces.decode import TranscriptDecoder
from rollout_traces.ledger.text_facts import (
    JSON_LIMIT,
    blocks,
    result_failed,
    thinking_tokens,
    tool_failed,
)
from tests import service_desk
from tests.builders import make_transcript
from tests.generator import tiny_tokenizer


@pytest.mark.parametrize(
    "text",
    [
        "Error: gift card balance is not enough",
        "[ERROR] disk full",
        "error while parsing arguments",
        "ValueError: bad literal",
        "json.decoder.JSONDecodeError: Expecting value",
        'Running...\nTraceback (most recent call last):\n  File "a.py"',
        "Failed to open page",
        "Tool call timed out after 30 s",
        "Unknown tool: serch",
        "HTTP 503 Service Unavailable",
        "bash: foo: command not found",
        "some output\nexit code: 2",
        '{"error": "no such user"}',
        '{"is_error": true, "content": ""}',
        '{"success": false}',
        '{"status": "failed"}',
        '{"status_code": 404}',
        '{"status_code": 400}',
        '{"status_code": 599}',
        '{"stdout": "", "exit_code": 1}',
        '{"returncode": -1}',
        '{"isError": true}',
        '{"ok": false}',
        '{"error": true}',
        '{"errors": ["one"]}',
        '{"status": " Failed "}',
        ' {"exception": "boom"}\n',
        "exit code: -1\n",
        "x" * 9000 + "\nTraceback (most recent call last):\n" + "y" * 3000,
    ],
)
def test_a_failure_is_recognised(text):
    assert result_failed(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "404.0",
        "Errors found: 0",
        "Error rate: 3 %",
        "The page describes how a ValueError: is raised",
        "No error was found in 30 files",
        "Failure modes of pumps, chapter 2",
        "exit code: 0",
        '{"error": null, "rows": 3}',
        '{"errors": [], "ok": true}',
        '{"error": 0.02, "estimate": 5}',
        '{"status": "active", "exit_code": 0}',
        '{"status_code": 399}',
        '{"status_code": 600}',
        '[{"error": "inside a list of search results"}]',
        "{not json, error: none}",
        '{"error": 1, "errors": {}, "exception": false}',
        '{"error": "No error", "traceback": " "}',
        '{"is_error": 1, "isError": "yes"}',
        '{"success": null, "ok": 0}',
        '{"exit_code": "1", "status": 399}',
        "exit code: 1" + "\ny" * 3000,
        "x" * 5000 + "\nTraceback (most recent call last):\n" + "y" * 5000,
    ],
)
def test_a_result_that_merely_speaks_of_errors_is_not_a_failure(text):
    assert not result_failed(text)


def test_a_long_object_is_read_up_to_a_limit():
    def of_length(n: int) -> str:
        start, end = '{"error": "no such user", "rows": "', '"}'
        return start + "x" * (n - len(start) - len(end)) + end

    assert result_failed(of_length(JSON_LIMIT)) and not result_failed(of_length(JSON_LIMIT + 1))


def test_only_tool_turns_can_fail():
    transcript = make_transcript(
        [("user", "Error: me"), ("assistant", "Error: you"), ("tool", "Error: tool")]
    )
    assert [tool_failed(turn) for turn in transcript.turns] == [False, False, True]


def test_in_whole_conversations_exactly_the_results_that_open_with_error_failed():
    results = [m["content"] for r in service_desk.records() for m in r.messages if m["role"] == "tool"]
    failed = [text for text in results if result_failed(text)]
    assert len(failed) == sum(r.n_failed_results for r in service_desk.records()) > 10
    assert all(text.startswith("Error:") for text in failed)


def spent(answer: str) -> int:
    tokenizer = tiny_tokenizer("qwen3")
    prompt = tokenizer.encode(
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False
    )
    written = tokenizer.encode(f"{answer}<|im_end|>", add_special_tokens=False)
    mask = [0] * len(prompt) + [1] * len(written)
    return thinking_tokens(TranscriptDecoder(tokenizer).decode(prompt + written, loss_mask=mask))


class TestThinkingTokens:
    def test_a_turn_of_two_blocks_counts_both(self):
        first, second = "<think>\nWait a moment.\n</think>\n\n", "<think>\nLet me see.\n</think>\n\nFour."
        assert spent(f"{first}{second}") == spent(f"{first}Four.") + spent(second) > 4

    def test_what_is_said_outside_does_not_count(self):
        assert spent("Four.") == 0

    def test_blank_lines_inside_a_block_belong_to_it(self):
        assert blocks("<think>a\n\nb</think>c", "a\n\nb") == [(7, 11)]
        assert blocks("<think>a</think>x<think>b</think>c", "a\n\nb") == [(7, 8), (24, 25)]
        assert blocks("a</think>b", "a") == [(0, 1)]
        assert blocks("a</think>a", "a\n\na") == [(0, 1), (9, 10)]

    def test_a_piece_that_is_not_there_is_left_out(self):
        assert blocks("<think>a</think>", "z\n\na") == [(7, 8)]
