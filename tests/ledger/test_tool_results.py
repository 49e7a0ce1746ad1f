"""When a tool's result says that it failed."""

from __future__ import annotations

import pytest

from rollout_traces.ledger.text_facts import result_failed, tool_failed
from tests import service_desk
from tests.builders import make_transcript


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
        '{"stdout": "", "exit_code": 1}',
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
        '[{"error": "inside a list of search results"}]',
        "{not json, error: none}",
    ],
)
def test_a_result_that_merely_speaks_of_errors_is_not_a_failure(text):
    assert not result_failed(text)


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
