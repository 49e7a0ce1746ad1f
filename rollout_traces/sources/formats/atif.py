"""ATIF (Harbor): `trajectory.json`, one agent run a file; with token ids where its agent recorded them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollout_traces.model.model_calls import MergedRow, merge_calls
from rollout_traces.model.text import text_of
from rollout_traces.sources.base import EVAL, Claim, FileFormat, FileReading, Head
from rollout_traces.sources.chat import Record, messages_of
from rollout_traces.sources.formats.own_export import is_current, row_of
from rollout_traces.sources.lines import loads
from rollout_traces.sources.rows import (
    NO_TOKENS,
    RolloutRow,
    add_tokens,
    call_of,
    note_calls_left_out,
    number,
    numbers,
    scalars,
)

_OWN_RUN = re.compile(rb'"extra":\{"rollout_traces":\{[^{}]*?"run":"([^"\\]*)"')
"""The run of a trajectory that `rollout-traces export` wrote."""


class Atif(FileFormat):
    """`schema_version: ATIF-v1.x, agent, steps: [{source, message, reasoning_content, tool_calls, observation, metrics}]`."""

    name = "atif"
    title = "ATIF, agent trajectory"
    tokens = "where the agent recorded them"

    def claim(self, head: Head) -> Claim | None:
        if not head.has("schema_version", "steps") or b'"ATIF-' not in head.raw:
            return None
        lacks = ["the training step (an agent run is step 0)"]
        if not (head.path.parent / "reward.txt").exists() and not _result(head.path):
            lacks.append("rewards")
        if b'"completion_token_ids"' not in head.raw:
            lacks += list(NO_TOKENS)
        folder = head.path.parent
        run = _OWN_RUN.search(head.raw)
        if run:
            return Claim(folder, None, EVAL, (), str(head.path), run[1].decode("utf-8", "replace"))
        root = folder.parent.parent if folder.name == "agent" else folder
        return Claim(root, 0, EVAL, lacks, str(head.path))

    def read(self, reading: FileReading) -> Iterator[RolloutRow]:
        trajectory = reading.whole()
        own = None if trajectory is None else (trajectory.get("extra") or {}).get("rollout_traces")
        if trajectory is not None and isinstance(own, dict):
            with reading.refusing(None):
                if not is_current(reading.fields(own, 1)):
                    return
                given = messages_of(_messages(trajectory["steps"]))
                yield row_of({**own, "messages": given}, 1)
        elif trajectory is not None:
            yield from _rows(trajectory, reading)


def _rows(trajectory: Record, reading: FileReading, parent: RolloutRow | None = None) -> Iterator[RolloutRow]:
    """A trajectory's row and those of the agents below it; what cannot be understood costs its own agent alone."""
    row = parent
    with reading.refusing(None, "the agent"):
        row = _row(trajectory, reading, parent)
    if row is not None and row is not parent:
        yield row
    below = trajectory.get("subagent_trajectories")
    for inner in reading.mappings(None, "subagent_trajectories", below):
        yield from _rows(inner, reading, row)


def _row(trajectory: Record, reading: FileReading, parent: RolloutRow | None) -> RolloutRow:
    steps = reading.mappings(None, "steps", trajectory.get("steps"))
    agent = trajectory.get("agent") or {}
    identity = str(
        trajectory.get("trajectory_id") or trajectory.get("session_id") or reading.path.parent.name
    )
    trial = _result(reading.path)
    final = trajectory.get("final_metrics") or {}
    row = RolloutRow(
        step=0,
        split=EVAL,
        messages=messages_of(_messages(steps)),
        sample_id=identity,
        parent=None if parent is None else str(parent.sample_id),
        episode=str(trajectory.get("session_id") or identity) if parent is None else parent.episode,
        reward=_reward(trial) if parent is None else None,
        source=trial.get("task_name") or agent.get("name"),
        group=trial.get("task_name"),
        tools=agent.get("tool_definitions") or None,
        metrics=numbers(final),
        extras=scalars({"agent": agent.get("name"), "model": agent.get("model_name")}),
    )
    if (calls := _merged(steps, reading)) is not None:
        add_tokens(row, calls)
    return row


def _messages(steps: Sequence[Record]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for step in steps:
        role = {"agent": "assistant", "system": "system", "user": "user"}.get(str(step.get("source")), "user")
        message: dict[str, Any] = {"role": role, "content": text_of(step.get("message"))}
        if step.get("reasoning_content"):
            message["reasoning_content"] = step["reasoning_content"]
        if step.get("tool_calls"):
            message["tool_calls"] = step["tool_calls"]
        messages.append(message)
        results = (step.get("observation") or {}).get("results") or []
        for result in results:
            if isinstance(result, Mapping):
                tool: dict[str, Any] = {"role": "tool", "content": text_of(result.get("content"))}
                if result.get("source_call_id"):
                    tool["tool_call_id"] = result["source_call_id"]
                messages.append(tool)
    return messages


def _merged(steps: Sequence[Record], reading: FileReading) -> MergedRow | None:
    """The calls whose ids are in the last one; None where that one's were not recorded."""
    calls = [m for s in steps if isinstance(m := s.get("metrics"), Mapping) and m.get("completion_token_ids")]
    if not calls or not isinstance(calls[-1].get("prompt_token_ids"), list):
        return None
    last = [*calls[-1]["prompt_token_ids"], *calls[-1]["completion_token_ids"]]
    rows = merge_calls(
        [
            call_of(c.get("prompt_token_ids") or [], c["completion_token_ids"], c.get("logprobs"))
            for c in calls
        ]
    )
    row = next(row for row in reversed(rows) if [*row.prompt_ids, *row.response_ids] == last)
    note_calls_left_out(reading.note, len(calls) - len(row.calls))
    return row


def _result(path: Any) -> dict[str, Any]:
    """Harbor's `result.json` of the trial, in the folder of the trajectory or one above."""
    for folder in (path.parent, path.parent.parent):
        try:
            value = loads((folder / "result.json").read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(value, dict):
            return value
    return {}


def _reward(result: Record) -> float | None:
    verifier = result.get("verifier_result") or {}
    rewards = verifier.get("rewards") or {}
    return number(rewards.get("reward")) if isinstance(rewards, Mapping) else number(verifier.get("reward"))
