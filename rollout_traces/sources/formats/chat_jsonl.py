"""Conversations, or prompts with their replies and rewards, under the names that people give them: JSONL and arrays.

A prompt with a list of replies is a group. A number that is none of these is a column, a text an extra.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollout_traces.model.text import SAID, words
from rollout_traces.sources.base import Claim, Fields, Found, Head, LinesFormat, number_in, split_of
from rollout_traces.sources.chat import Record
from rollout_traces.sources.lines import is_json_by_name
from rollout_traces.sources.rows import NO_TOKENS, RolloutRow, numbers, scalars

_CHATS = ("messages", "conversations", "conversation", "chat", "dialogue")
_PROMPTS = ("prompt", "prompts", "question", "query", "instruction", "problem", "input", "prompt_text")
_REPLIES = words(
    "completion completions response responses output outputs generation generations generated_text model_output "
    "model_response prediction reply"
)
_STEPS = ("step", "global_step", "training_step", "train_step", "iteration")
_REWARDS = words("reward rewards score scores total_reward final_reward reward_score return")
_GROUPS = words("group group_id prompt_id uid example_id task_id id_prompt problem_id question_id prompt_idx")
_TRUTHS = ("ground_truth", "answer", "label", "target", "gold", "reference", "expected", "solution")
_SOURCES = ("source", "data_source", "dataset", "env", "task")
_STOPS = ("stop_reason", "finish_reason")
_NESTED = ("metrics", "metadata", "info", "extra_info")
_OTHERS = words("system tools split advantage advantages id episode_id success reward_components")
_OF_ROLLOUT = {*_CHATS, *_PROMPTS, *_REPLIES, *_REWARDS, *_TRUTHS, *_STOPS}
_KNOWN = {*_OF_ROLLOUT, *_STEPS, *_GROUPS, *_SOURCES, *_NESTED, *_OTHERS}
_TOTALS = ("reward", "total", "score")


class ChatJsonl(LinesFormat):
    """One conversation, or one prompt, a record. The last format that is asked: it takes what no other one knows."""

    name = "chat"
    title = "conversations, or prompts with replies"

    def claim(self, head: Head) -> Claim | None:
        if not is_json_by_name(head.path) or _is_beside_tensors(head):
            return None
        has_reply = head.keys & {*_REPLIES} or ("answer" in head.keys and head.keys & {*_REWARDS})
        if not head.keys & {*_CHATS} and not (head.keys & {*_PROMPTS} and has_reply):
            return None
        step = number_in(
            r"(?:^|[_\-.])(?:step|iter|iteration)[_\-]?(\d+)", head.path.stem, head.path.parent.name
        )
        lacks = list(NO_TOKENS)
        lacks += ["rewards"] if head.lacks(*_REWARDS) else []
        lacks += ["groups (equal prompts are one)"] if head.lacks(*_GROUPS) else []
        lacks += ["steps (all are step 0)"] if step is None and head.lacks(*_STEPS) else []
        split = split_of(head.path.name, head.path.parent.name)
        return Claim(head.path.parent, step, split, lacks)

    def read(self, fields: Fields, found: Found) -> Iterator[RolloutRow]:
        _say_left_out(fields)
        for row in rows_of(fields, found.claim.step, found.claim.split):
            if row.messages is None:
                named = ", ".join(map(str, fields.record))[:SAID] or "an empty object"
                text = f"{named}: expected messages, or a prompt and a reply; the row has its numbers alone."
                fields.note("rows_without_text", text)
            yield row


def _is_beside_tensors(head: Head) -> bool:
    """Tells whether these are the conversations of miles' tensors, which are read with them."""
    return head.has("sample_index", "messages") and (head.path.parents[1] / "rollout_data").is_dir()


def rows_of(fields: Fields, step: int | None, split: str) -> Iterator[RolloutRow]:
    """The rollouts of a record: one, or as many as its prompt has replies.

    Args:
        step: its step where the record does not say one.
        split: its split where the record does not say one.
    """
    value = fields.record
    said = fields.whole(*_STEPS)
    chats, n_prompt = _conversations(fields)
    rewards = _each(fields.first(*_REWARDS), len(chats))
    stops = _each(fields.first(*_STOPS), len(chats))
    advantages = _each(fields.first("advantage", "advantages"), len(chats))
    ids = _each(value.get("id"), len(chats))
    own = [fields.first(name) for name in _NESTED]
    nested = {k: v for part in own if isinstance(part, Mapping) for k, v in part.items()}
    others = {**nested, **{k: v for k, v in value.items() if k not in _KNOWN}}
    group = fields.first(*_GROUPS)
    for n, messages in enumerate(chats):
        reward, components = _reward(fields, rewards[n])
        parts = value.get("reward_components")
        yield RolloutRow(
            step=said if said is not None else step or 0,
            split=split_of(value["split"]) if isinstance(value.get("split"), str) else split,
            messages=messages,
            n_prompt_messages=n_prompt,
            tools=value.get("tools") if isinstance(value.get("tools"), list) else None,
            reward=reward,
            components={**components, **numbers(parts)},
            advantage=None if advantages[n] is None else fields.read_number("advantage", advantages[n]),
            group=group
            if isinstance(group, (str, int))
            else f"record {fields.line}"
            if len(chats) > 1
            else None,
            sample_id=ids[n],
            episode=fields.text("episode_id"),
            ground_truth=next((value[k] for k in _TRUTHS if k in value and k != _reply_key(value)), None),
            success=value.get("success") if isinstance(value.get("success"), (bool, int)) else None,
            metrics=numbers(others),
            extras={k: v for k, v in scalars(others).items() if isinstance(v, str)},
            source=next((value[k] for k in _SOURCES if isinstance(value.get(k), str)), None),
            stop_reason=stops[n] if isinstance(stops[n], str) else None,
        )


def _conversations(fields: Fields) -> tuple[list[list[dict[str, Any]] | None], int | None]:
    """The conversations of a record, and how many messages of each are the prompt."""
    value = fields.record
    system = value.get("system")
    before = [{"role": "system", "content": system}] if isinstance(system, str) and system else []
    key = next((key for key in _CHATS if isinstance(value.get(key), (list, Mapping))), None)
    if key is not None:
        messages = fields.read_messages(key, value[key])
        if messages is not None and (prompt := fields.messages("prompt")) and _reply_key(value) is None:
            return [[*before, *prompt, *messages]], len(before) + len(prompt)
        if messages is not None:
            return [[*before, *messages]], None
    prompt = fields.messages(*_PROMPTS) or []
    name = _reply_key(value)
    given = value.get(name) if name is not None else None
    several = isinstance(given, list) and not any(isinstance(item, Mapping) for item in given)
    replies = [_reply(fields, str(name), each) for each in (given if several and given else [given])]
    return [[*before, *prompt, *reply] or None for reply in replies], len(before) + len(prompt)


def _reply(fields: Fields, key: str, given: Any) -> list[dict[str, Any]]:
    if isinstance(given, str):
        return [{"role": "assistant", "content": given}]
    found = None if given is None else fields.read_messages(key, given)
    if found and isinstance(given, Mapping) and "role" not in given and "from" not in given:
        found[0]["role"] = "assistant"
    return found or []


def _reply_key(value: Record) -> str | None:
    known = next((key for key in _REPLIES if value.get(key) is not None), None)
    if known is None and value.get("answer") is not None and any(k in value for k in _REWARDS):
        return None if any(key in value for key in _CHATS) else "answer"
    return known


def _each(value: Any, n: int) -> Sequence[Any]:
    """A value for each of the replies: its list where it has one as long, else the one for all."""
    return value if isinstance(value, list) and len(value) == n and n > 1 else [value] * n


def _reward(fields: Fields, given: Any) -> tuple[float | None, dict[str, Any]]:
    if isinstance(given, Mapping):
        components = numbers(given)
        return next((components[name] for name in _TOTALS if name in components), None), components
    if isinstance(given, list) and len(given) == 1:
        given = given[0]
    return (None if given is None else fields.read_number("reward", given)), {}


def _say_left_out(fields: Fields) -> None:
    """Notes, once a file, the keys whose lists and mappings no column holds."""
    for key, item in fields.record.items():
        if isinstance(item, (list, dict)) and item and key not in _KNOWN:
            text = f"{key}: holds a {type(item).__name__}, which no column can; it is left out, in all lines."
            fields.problems.once(fields.path, "keys_left_out", text, fields.line)
