"""Inspect Scout's transcript database: parquet files in a folder, which its scanners, validation sets and viewer read.

What scanners find joins a run again by `transcript_id`, a rollout's uid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from rollout_traces.export.rows import ExportQuery, records, write_parquet
from rollout_traces.model.text import words
from rollout_traces.model.whole_files import unfinished
from rollout_traces.trace.conversion import with_thinking_apart

if TYPE_CHECKING:
    from rollout_traces.store import Store

FILE = "transcripts.parquet"
_OURS = ("messages", "id", "uid", "schema", "kind", "status", "run_id", "traced", "success")
"""Columns that Scout's own columns say, or that tell it nothing."""
_RESERVED = words(
    "transcript_id source_type source_id source_uri date task_set task_id task_repeat agent agent_args model "
    "model_options score score_explanation message_count total_time total_tokens error limit trust_content events "
    "timelines events_data filename"
)
"""Names of Scout's columns that a column of ours may not have."""
_UNPARSED = "Error parsing the following tool call arguments:\n\n{}\n\nError details: {}"
"""Inspect's sentence that a call's arguments are no JSON."""
_ROLES = {"system": "system", "developer": "system", "assistant": "assistant", "tool": "tool"}
"""Roles that Scout knows, beside the user's."""


def export_scout(
    store: Store,
    folder: Path | str,
    query: ExportQuery = ExportQuery(),  # noqa: B008
) -> int:
    """Writes the traced rollouts of a query.

    Args:
        store: where from.
        folder: a new or empty folder.
        query: which rollouts.

    Returns:
        How many were written.

    Raises:
        ConfigError: the folder is not empty.
        NotWritten: it cannot be written.
        MissingExtra: pyarrow is not installed.
        QueryError: the query cannot be understood.
    """
    found = records(store, query, tokens=False, conversation=with_thinking_apart)
    rows = (transcript(r, store.project) for r in found if r.get("messages") is not None)
    with unfinished(folder, folder=True) as made:
        return write_parquet(made / FILE, rows)


def transcript(record: Mapping[str, Any], project: str) -> dict[str, Any]:
    """A rollout as a row of Scout's database; its further columns are the transcript's metadata.

    Args:
        record: the rollout as it is exported, with `messages`.
    """
    identity = str(record.get("uid") or record["id"])
    success, score = record.get("success"), record.get("reward")
    said = {
        "transcript_id": identity,
        "source_type": "rollout_traces",
        "source_id": f"{project}/{record['run_id']}",
        "task_set": record.get("source"),
        "task_id": record.get("prompt_key"),
        "task_repeat": record.get("sample"),
        "agent": record["run"],
        "score": None if score is None else orjson.dumps(score).decode(),
        "success": None if success is None else bool(success),
        "message_count": len(record["messages"]),
        "total_tokens": record.get("n_tokens"),
        "error": "the reward failed" if record.get("reward_status") == "error" else None,
        "limit": "token" if record.get("stop_reason") == "length" else None,
        "trust_content": False,
        "messages": orjson.dumps(list(_messages(record["messages"], identity))).decode(),
        "events": "[]",
    }
    beside = {name: value for name, value in record.items() if name not in _OURS and name not in _RESERVED}
    return {name: value for name, value in {**beside, **said}.items() if value is not None}


def _messages(messages: list[Mapping[str, Any]], identity: str) -> Iterator[dict[str, Any]]:
    """Messages as inspect_ai's `ChatMessage` has them."""
    called: dict[str, str] = {}
    for number, message in enumerate(messages):
        role, content = _ROLES.get(str(message.get("role")), "user"), str(message.get("content") or "")
        found: dict[str, Any] = {"id": f"{identity}-{number}", "role": role, "content": content}
        if role == "assistant":
            if message.get("reasoning_content"):
                thought = {"type": "reasoning", "reasoning": message["reasoning_content"]}
                found["content"] = [thought, {"type": "text", "text": content}]
            if message.get("tool_calls"):
                calls = enumerate(message["tool_calls"])
                found["tool_calls"] = [_call(call, f"call_{number}_{at}", called) for at, call in calls]
        elif role == "tool":
            found["tool_call_id"] = message.get("tool_call_id")
            found["function"] = called.get(str(message.get("tool_call_id")), message.get("name"))
            if message.get("is_error"):
                found["error"] = {"type": "unknown", "message": content}
        elif message.get("name"):
            found["metadata"] = {"role_label": message["name"]}
        yield found


def _call(call: Mapping[str, Any], otherwise: str, called: dict[str, str]) -> dict[str, Any]:
    function = call.get("function") or {}
    found: dict[str, Any] = {
        "id": str(call.get("id") or otherwise),
        "function": str(function.get("name") or ""),
        "type": "function",
    }
    called[found["id"]] = found["function"]
    try:
        arguments = orjson.loads(function.get("arguments") or "{}")
    except orjson.JSONDecodeError as error:
        return {**found, "arguments": {}, "parse_error": _UNPARSED.format(function.get("arguments"), error)}
    return {**found, "arguments": arguments if isinstance(arguments, dict) else {"value": arguments}}
