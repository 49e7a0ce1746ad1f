"""ATIF, the format in which agents' trajectories are exchanged: a JSON file a rollout.

A step of the agent has its token ids and logprobs where its tokens are known. What ATIF has no field for, masks,
advantages, versions, the reward, is under `extra.rollout_traces`, so that an import gives the rollout back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from rollout_traces.export.rows import ExportQuery, records
from rollout_traces.model.plain_values import parsed_call, plain
from rollout_traces.model.text import short_hash
from rollout_traces.model.whole_files import unfinished
from rollout_traces.trace.conversion import with_thinking_apart

if TYPE_CHECKING:
    from rollout_traces.store import Store

VERSION = "ATIF-v1.8"
OWN = "rollout_traces"
"""Under which key of `extra` a rollout has what ATIF has no field for, first in the file."""
_SOURCES = {"system": "system", "assistant": "agent"}


def export_atif(
    store: Store,
    folder: Path | str,
    query: ExportQuery = ExportQuery(),  # noqa: B008
) -> int:
    """Writes the traced rollouts of a query, a trajectory each.

    Args:
        store: where from.
        folder: a new or empty folder.
        query: which rollouts.

    Returns:
        How many were written.

    Raises:
        ConfigError: the folder is not empty.
        NotWritten: it cannot be written.
        QueryError: the query cannot be understood.
    """
    n = 0
    with unfinished(folder, folder=True) as made:
        for record in records(store, query, tokens=True, conversation=with_thinking_apart):
            if record.get("messages") is not None:
                name = f"{n:07d}-{short_hash(str(record['id'])).hex()}.json"
                (made / name).write_bytes(orjson.dumps(trajectory(record)))
                n += 1
    return n


def trajectory(record: Mapping[str, Any]) -> dict[str, Any]:
    """A rollout as a trajectory.

    Args:
        record: the rollout as it is exported, with `messages` and, where they are known, its tokens.
    """
    beside = {name: value for name, value in record.items() if name != "messages"}
    agent: dict[str, Any] = {"name": str(record.get("source") or "policy"), "version": "unknown"}
    if record.get("tools"):
        agent["tool_definitions"] = record["tools"]
    steps = list(_steps(record["messages"], list(_calls(record))))
    return {
        "schema_version": VERSION,
        "extra": {OWN: plain(beside)},
        "session_id": str(record.get("episode") or record.get("uid") or record["id"]),
        "trajectory_id": str(record.get("uid") or record["id"]),
        "agent": agent,
        "steps": steps or [{"step_id": 1, "source": "user", "message": ""}],
    }


def _steps(messages: Sequence[Mapping[str, Any]], calls: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Steps of messages; results of tools are what the agent's step before them observed."""
    n_agent = sum(message["role"] == "assistant" for message in messages)
    known = [None] * (n_agent - len(calls)) + calls if len(calls) <= n_agent else [None] * n_agent
    metrics = iter(known)
    step: dict[str, Any] | None = None
    n = 0
    for message in messages:
        if message["role"] == "tool" and step is not None and step["source"] == "agent":
            step.setdefault("observation", {"results": []})["results"].append(_result(message, step))
            continue
        if step is not None:
            yield step
        n += 1
        source = _SOURCES.get(message["role"], "user")
        step = {"step_id": n, "source": source, "message": str(message.get("content") or "")}
        if source == "agent":
            if message.get("reasoning_content"):
                step["reasoning_content"] = message["reasoning_content"]
            if message.get("tool_calls"):
                step["tool_calls"] = [_call(call, at) for at, call in enumerate(message["tool_calls"])]
            if (counted := next(metrics)) is not None:
                step["metrics"] = counted
    if step is not None:
        yield step


def _call(call: Mapping[str, Any], at: int) -> dict[str, Any]:
    function = parsed_call(call, "text")["function"]
    arguments = function.get("arguments")
    return {
        "tool_call_id": str(call.get("id") or f"call_{at}"),
        "function_name": str(function.get("name") or ""),
        "arguments": arguments if isinstance(arguments, dict) else {"value": arguments},
    }


def _result(message: Mapping[str, Any], step: Mapping[str, Any]) -> dict[str, Any]:
    content = {"content": str(message.get("content") or "")}
    identity = message.get("tool_call_id")
    known = any(call["tool_call_id"] == identity for call in step.get("tool_calls", ()))
    return {"source_call_id": identity, **content} if known else content


def _calls(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Ids and logprobs of each run of tokens that the policy sampled, with the ids before it."""
    ids, sampled = record.get("input_ids"), record.get("response_mask")
    if not ids or not sampled:
        return
    edges = np.flatnonzero(np.diff(np.asarray([0, *sampled, 0], np.int8))).tolist()
    logprobs = record.get("logprobs")
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        found: dict[str, Any] = {
            "prompt_tokens": start,
            "completion_tokens": stop - start,
            "prompt_token_ids": ids[:start],
            "completion_token_ids": ids[start:stop],
        }
        if logprobs and None not in logprobs[start:stop]:
            found["logprobs"] = logprobs[start:stop]
        yield found
