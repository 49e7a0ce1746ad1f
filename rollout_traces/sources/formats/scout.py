"""Inspect Scout: its transcript database, parquet files in a folder; what `rollout-traces export -f scout` wrote too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rollout_traces.errors import FileRefused
from rollout_traces.model.bounded_reading import read
from rollout_traces.model.text import words
from rollout_traces.sources.base import EVAL, Claim, Fields, FileFormat, FileReading, Head
from rollout_traces.sources.formats.inspect_eval import GRADES
from rollout_traces.sources.formats.own_export import is_current, parquet_columns, parquet_rows, row_of
from rollout_traces.sources.lines import loads
from rollout_traces.sources.rows import NO_TOKENS, RolloutRow, number, scalars

OURS = "rollout_traces"
"""`source_type` of what `rollout-traces export` wrote."""
_UNPARSED = re.compile(r"arguments:\n\n(.*)\n\nError details: ", re.DOTALL)
"""The pattern that finds, in Inspect's sentence, the arguments that are no JSON."""
_COLUMNS = words(
    "transcript_id source_type source_id source_uri date task_set task_id task_repeat agent_args model_options "
    "score success message_count total_tokens total_time error limit trust_content messages events timelines "
    "events_data"
)


class Scout(FileFormat):
    """`transcript_id, source_type, task_id, score, messages` and, in further columns, the transcript's metadata."""

    name = "scout"
    title = "Inspect Scout, transcript database"

    def claim(self, head: Head) -> Claim | None:
        if not head.raw.startswith(b"PAR1") or not {"transcript_id", "messages"} <= parquet_columns(head):
            return None
        run = _run_of_ours(head)
        if run is not None:
            return Claim(head.path.parent, None, EVAL, NO_TOKENS, run=run)
        lacks = (*NO_TOKENS, "the training step (an evaluation is step 0)")
        return Claim(head.path.parent, 0, EVAL, lacks)

    def read(self, reading: FileReading) -> Iterator[RolloutRow]:
        for n, value in enumerate(parquet_rows(reading), 1):
            with reading.refusing(n, "the transcript"):
                fields = reading.fields(value, n)
                if value.get("source_type") == OURS and not is_current(fields):
                    continue
                row = _row(fields, n)
                if row.messages is None:
                    text = "messages: none; a transcript of events alone has its numbers here."
                    reading.note("rows_without_text", text, n)
                yield row


def _run_of_ours(head: Head) -> str | None:
    """The run of a file's first transcript, where `rollout-traces export` wrote it."""
    columns = parquet_columns(head)
    if not {"source_type", "run", "split", "step"} <= columns:
        return None
    try:
        first = read(head.path, ["source_type", "run"], at=[0]).to_pylist()
    except (FileRefused, OSError):
        return None
    return str(first[0]["run"]) if first and first[0]["source_type"] == OURS else None


def _row(fields: Fields, n: int) -> RolloutRow:
    value = fields.record
    messages = _messages(fields, loads((value["messages"] or "[]").encode()))
    if value.get("source_type") == OURS and "step" in value:
        return row_of({**value, "uid": value["transcript_id"], "messages": messages}, n)
    given = value.get("score")
    score = loads(given.encode()) if isinstance(given, str) and given.startswith("{") else given
    times = {} if value.get("total_time") is None else {"total": float(value["total_time"])}
    beside = {k: v for k, v in scalars(value, _COLUMNS).items() if v not in ("", "{}", "[]")}
    components = score if isinstance(score, Mapping) else {}
    return RolloutRow(
        step=0,
        split=EVAL,
        line=n,
        messages=messages,
        reward=_score(score),
        components={str(k): _score(v) for k, v in components.items() if _score(v) is not None},
        success=value.get("success"),
        group=value.get("task_id"),
        prompt_key=None if value.get("task_id") is None else f"{value.get('task_set')}-{value['task_id']}",
        sample_id=value["transcript_id"],
        identity=value["transcript_id"],
        source=value.get("task_set"),
        known_columns={} if value.get("total_tokens") is None else {"n_tokens": value["total_tokens"]},
        reward_status="error" if value.get("error") else None,
        stop_reason="length" if value.get("limit") == "token" else value.get("limit") or None,
        timings=times or None,
        extras=beside,
    )


def _messages(fields: Fields, given: Any) -> list[dict[str, Any]] | None:
    """Messages of Inspect's, whose tools are called `function` in results, and names stand in `metadata`."""
    if not isinstance(given, list) or not given:
        return None
    for message in given:
        if message.get("role") == "tool" and message.get("function"):
            message["name"] = message["function"]
        elif (message.get("metadata") or {}).get("role_label"):
            message["name"] = message["metadata"]["role_label"]
        for call in message.get("tool_calls") or ():
            raw = _UNPARSED.search(call.get("parse_error") or "")
            if raw is not None:
                call["arguments"] = raw[1]
    return fields.read_messages("messages", given)


def _score(value: Any) -> float | None:
    if isinstance(value, str) and value in GRADES:
        return GRADES[value]
    return None if isinstance(value, Mapping) else number(value)
