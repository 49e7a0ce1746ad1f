"""Chat JSONL: `messages` (or `conversations`, or `prompt` and `completion`) and whatever else; any number is a column."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rollout_traces.sources.base import Claim, Format, Found, Head, ReadOptions, number_in, split_of
from rollout_traces.sources.chat import messages_of
from rollout_traces.sources.lines import json_lines
from rollout_traces.sources.problems import Problems
from rollout_traces.sources.rows import RolloutRow, number, numbers, scalars

_STEPS = ("step", "global_step", "training_step", "iteration")
_REWARDS = ("reward", "rewards", "score", "total_reward")
_GROUPS = ("group", "group_id", "prompt_id", "uid", "example_id", "task_id", "id_prompt")
_KNOWN = {
    *_STEPS, *_REWARDS, *_GROUPS, "messages", "conversations", "prompt", "completion", "response", "tools", "split",
    "advantage", "source", "data_source", "dataset", "answer", "ground_truth", "stop_reason", "finish_reason", "id",
    "episode_id", "success",
}  # fmt: skip


class ChatJsonl(Format):
    """One conversation a line. The last format that is asked: it takes what no other one knows."""

    name = "chat"
    title = "chat JSONL"

    def claim(self, head: Head) -> Claim | None:
        if not head.path.name.removesuffix(".gz").endswith((".jsonl", ".json", ".ndjson")):
            return None
        if not head.keys & {"messages", "conversations"} and not head.has("prompt", "completion"):
            return None
        step = number_in(
            r"(?:^|[_\-.])(?:step|iter|iteration)[_\-]?(\d+)", head.path.stem, head.path.parent.name
        )
        lacks = ["token ids", "loss mask", "logprobs"]
        lacks += ["rewards"] if not head.keys & {*_REWARDS} else []
        lacks += ["groups (equal prompts are one)"] if not head.keys & {*_GROUPS} else []
        if step is None and not head.keys & {*_STEPS}:
            lacks.append("steps (all are step 0)")
        split = split_of(head.path.name, head.path.parent.name)
        return Claim(head.path.parent, step, split, tuple(lacks), head.path.name)

    def rows(
        self, found: Found, problems: Problems, options: ReadOptions, start: int = 0, line: int = 0
    ) -> Iterator[tuple[RolloutRow, int, int]]:
        for record in json_lines(found.path, problems, start, line):
            value = record.value
            row = row_of(value, found.claim.step, found.claim.split, record.number)
            if row.messages is None:
                text = "messages: expected a list of messages with role and content; the row has its numbers alone."
                problems.add(found.path, "rows_without_text", text, record.number)
            yield row, record.stop, record.number


def row_of(value: dict[str, Any], step: int | None, split: str, line: int | None) -> RolloutRow:
    """A rollout of a record with messages.

    Args:
        value: the record.
        step: its step where the record does not say one.
        split: its split where the record does not say one.
        line: its line.
    """
    said = next((value[key] for key in _STEPS if isinstance(value.get(key), int)), None)
    reward = next((value[key] for key in _REWARDS if key in value), None)
    group = next((value[key] for key in _GROUPS if isinstance(value.get(key), (str, int))), None)
    messages, n_prompt = _conversation(value)
    return RolloutRow(
        step=said if said is not None else step or 0,
        split=split_of(value["split"]) if isinstance(value.get("split"), str) else split,
        line=line,
        messages=messages,
        n_prompt_messages=n_prompt,
        tools=value.get("tools") if isinstance(value.get("tools"), list) else None,
        reward=number(reward),
        components=numbers(reward) if isinstance(reward, dict) else {},
        advantage=number(value.get("advantage")),
        group=group,
        sample_id=value.get("id"),
        episode=str(value["episode_id"]) if value.get("episode_id") is not None else None,
        ground_truth=value.get("ground_truth", value.get("answer")),
        success=value.get("success") if isinstance(value.get("success"), (bool, int)) else None,
        metrics=numbers(value, but=tuple(_KNOWN)),
        extras={k: v for k, v in scalars(value, but=tuple(_KNOWN)).items() if isinstance(v, str)},
        source=_first(value, ("source", "data_source", "dataset")),
        stop_reason=_first(value, ("stop_reason", "finish_reason")),
    )


def _first(value: dict[str, Any], keys: tuple[str, ...]) -> str | None:
    return next((value[key] for key in keys if isinstance(value.get(key), str)), None)


def _conversation(value: dict[str, Any]) -> tuple[list[dict[str, Any]] | None, int | None]:
    for key in ("messages", "conversations"):
        if key in value:
            return messages_of(value[key]), None
    prompt = messages_of(value.get("prompt")) or []
    reply = value.get("completion", value.get("response"))
    after = [{"role": "assistant", "content": reply}] if isinstance(reply, str) else messages_of(reply) or []
    return ([*prompt, *after] or None), len(prompt)
