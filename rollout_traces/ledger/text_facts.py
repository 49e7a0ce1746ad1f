"""Facts that a rollout's text adds to its ledger row: its length, failed tool calls, thinking tokens.

Of failures, precision before recall: a result that merely speaks of errors (a log search, a list of error rates, a
document) is not a failure. What counts is how the result opens, or what its own fields say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from itertools import compress
from typing import Any

import numpy as np

from rollout_traces.model.plain_values import from_json
from rollout_traces.model.text import text_of
from rollout_traces.model.transcript import Transcript, Turn, thinking_beside

_OPENS_AS_FAILURE = re.compile(
    r"""\s*(?:
        \[error\] | error\s*(?:[:!\[(]|-\s|$)                         # [ERROR] ..., Error: ...
      | error\s+(?:while|when|during|executing|calling|running|parsing|processing|invoking|occurred)\b
      | an?\s+(?:unexpected\s+|internal\s+)?(?:error|exception)\s+(?:occurred|was\s+raised|happened)\b
      | (?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?:\s*:|\s*$)  # json.JSONDecodeError: ...
      | (?:exception|failure)\s*:
      | traceback\s+\(most\s+recent\s+call\s+last\)
      | failed\s*: | failed\s+to\s
      | (?:tool|function|command|execution|request|call)\s+(?:(?:call|execution)\s+)?
        (?:failed|errored|timed\s+out|not\s+found)\b
      | (?:unknown|no\s+such|undefined)\s+(?:tool|function)\b
      | invalid\s+(?:tool\s+call|arguments?|parameters?)\b
      | (?:timeout|timed\s+out)\b
      | http(?:/\d(?:\.\d)?)?\s+[45]\d\d\b
      | </?(?:tool_use_)?error>
      | (?:/bin/)?(?:ba|z|da)?sh:\s.{0,200}(?:not\s+found|denied|no\s+such\s+file)
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):", re.MULTILINE)
_EXIT_CODE = re.compile(
    r"^\W{0,3}(?:exit|return)[ _]?code\W{1,4}(-?\d+)\W{0,3}$", re.IGNORECASE | re.MULTILINE
)
_FIELDS = ("error", "errors", "exception", "traceback", "error_message")
_EXIT_FIELDS = ("exit_code", "exitcode", "exitCode", "returncode", "return_code")
_FAILED_WORDS = {"error", "failed", "failure", "timeout", "exception"}
_NO_ERROR = {"", "none", "null", "false", "no", "0", "no error"}
SCANNED = 4000
"""Characters looked at from each end of a result that is not JSON."""
JSON_LIMIT = 200_000
"""Longer results are not parsed as JSON."""


def characters_of(messages: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Counts the characters of a conversation before the policy's first turn, and those of content and thinking that it wrote."""
    is_written = [message.get("role") == "assistant" for message in messages]
    n = [len(text_of(message.get("content"))) + len(thinking_beside(message)) for message in messages]
    return sum(n[: [*is_written, True].index(True)]), sum(compress(n, is_written))


def tool_failed(turn: Turn) -> bool:
    """Tells whether a turn is a tool result whose record or text says that the call failed."""
    return turn.role == "tool" and (turn.failed or result_failed(turn.content))


def result_failed(content: str) -> bool:
    """Tells whether the text of a tool result says that the call failed.

    A JSON object speaks through its fields: an error field that holds something, a false `success` or
    `ok`, a status that names a failure or is an HTTP code from 400 on, a non-zero exit code. Other text
    fails when it opens as an error does, holds a Python traceback at a line's start, or states a
    non-zero exit code on a line of its own.

    Args:
        content: the result as the policy saw it, markers removed.
    """
    parsed = _parse(content)
    if parsed is not None:
        return _fields_say_failed(parsed)
    head, tail = content[:SCANNED], content[-SCANNED:]
    if _OPENS_AS_FAILURE.match(head) or _TRACEBACK.search(head) or _TRACEBACK.search(tail):
        return True
    return any(int(code) != 0 for code in _EXIT_CODE.findall(tail))


def _parse(content: str) -> Mapping[str, Any] | None:
    text = content.strip()
    if not text.startswith("{") or not text.endswith("}") or len(text) > JSON_LIMIT:
        return None
    value = from_json(text)
    return value if isinstance(value, dict) else None


def _fields_say_failed(result: Mapping[str, Any]) -> bool:
    if any(_holds_something(result[key]) for key in _FIELDS if key in result):
        return True
    if result.get("is_error") is True or result.get("isError") is True:
        return True
    if result.get("success") is False or result.get("ok") is False:
        return True
    if any(isinstance(result.get(key), int) and result[key] != 0 for key in _EXIT_FIELDS):
        return True
    return _is_failed_status(result.get("status")) or _is_failed_status(result.get("status_code"))


def _holds_something(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() not in _NO_ERROR
    return (bool(value) and not isinstance(value, (int, float))) or value is True


def _is_failed_status(status: Any) -> bool:
    if isinstance(status, str):
        return status.strip().lower() in _FAILED_WORDS
    return (
        isinstance(status, int) and not isinstance(status, bool) and HTTPStatus.BAD_REQUEST <= status <= 599
    )


_BETWEEN = "\n\n"
"""The text that joins the blocks of a turn's thinking; it may stand inside a block too."""


def thinking_tokens(transcript: Transcript) -> int:
    """Sampled tokens whose text lies inside the thinking of an assistant turn, in however many blocks."""
    count = 0
    for turn in transcript.turns:
        if not turn.thinking:
            continue
        inside = slice(turn.start, turn.stop)
        starts = transcript.tokens.char_starts[inside] - int(transcript.tokens.char_starts[turn.start])
        within = np.zeros(len(starts), bool)
        for first, last in blocks(turn.raw, turn.thinking):
            within |= (starts >= first) & (starts < last)
        count += int((within & transcript.tokens.response_mask[inside]).sum())
    return count


def blocks(raw: str, thinking: str) -> list[tuple[int, int]]:
    """Finds a turn's thinking in its raw text.

    Args:
        raw: the turn as it was written.
        thinking: its thinking, blocks joined by blank lines.

    Returns:
        Start and stop of each stretch, in order; pieces that cannot be placed are left out.
    """
    pieces = thinking.split(_BETWEEN)
    found = []
    at, first = 0, 0
    while first < len(pieces):
        for last in range(len(pieces), first, -1):
            text = _BETWEEN.join(pieces[first:last])
            start = raw.find(text, at) if text else -1
            if start >= 0:
                found.append((start, start + len(text)))
                at, first = start + len(text), last
                break
        else:
            first += 1
    return found
