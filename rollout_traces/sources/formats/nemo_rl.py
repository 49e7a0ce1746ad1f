"""NeMo-RL: `train_data_step<N>.jsonl` with tokens, `val_data_step<N>.jsonl` with conversations.

Every value is a list of one: the writer slices its batch row by row. Token rows are right-padded to the
batch's length; `input_lengths` says how far they go.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rollout_traces.sources.base import EVAL, TRAIN, Claim, Fields, Found, Head, LinesFormat, number_in
from rollout_traces.sources.chat import messages_of
from rollout_traces.sources.rows import NO_TOKENS, RolloutRow, number


class NemoRl(LinesFormat):
    """`content, rewards, input_lengths, token_ids, token_loss_mask, sample_loss_mask, advantages, ...logprobs, idx`."""

    name = "nemo-rl"
    title = "NeMo-RL, train_data and val_data"
    tokens = "training files only"

    def claim(self, head: Head) -> Claim | None:
        train = number_in(r"^train_data_step(\d+)\.jsonl", head.path.name)
        val = number_in(r"^val_data_step(\d+)\.jsonl", head.path.name)
        known = head.keys & {"content", "rewards", "token_ids"}
        if (train is None and val is None and not head.has("content", "rewards", "idx")) or not known:
            return None
        step = train if train is not None else val
        lacks = ["groups (rows of equal prompts are one)", "policy versions", "stop reasons"]
        if train is None:
            lacks = [*NO_TOKENS, *lacks]
        root = head.path.parent
        return Claim(root, step if step is not None else 0, EVAL if val is not None else TRAIN, lacks)

    def read(self, fields: Fields, found: Found) -> Iterator[RolloutRow]:
        value = {key: _one(item) for key, item in fields.record.items()}
        row = RolloutRow(
            step=found.claim.step or 0,
            split=found.claim.split,
            reward=Fields(value, fields.path, fields.line, fields.problems).number("rewards"),
            sample_id=fields.record.get("idx", fields.line - 1),
            source=_agent(value.get("agent_ref")),
        )
        _add(row, value)
        yield row


def _add(row: RolloutRow, value: dict[str, Any]) -> None:
    content = value.get("content")
    if isinstance(content, list) and content and all(isinstance(part, dict) for part in content):
        row.messages = messages_of(content)
    elif isinstance(content, list) and all(isinstance(part, str) for part in content):
        row.prompt_text, row.reply_text = (content[0] if content else None), "".join(content[1:])
    elif isinstance(content, str):
        row.reply_text = content
    ids = value.get("token_ids")
    if not isinstance(ids, list):
        return
    n = int(value.get("input_lengths") or len(ids))
    row.input_ids = ids[:n]
    mask = value.get("token_loss_mask")
    if not isinstance(mask, list) or len(mask) != len(ids):
        raise ValueError(f"token_loss_mask beside {len(ids)} token ids")
    row.loss_mask = mask[:n]
    if number(value.get("sample_loss_mask")) == 0:
        row.response_mask, row.loss_mask = row.loss_mask, [0] * n
    for key, name in (
        ("generation_logprobs", "logprobs"),
        ("prev_logprobs", "prox_logprobs"),
        ("advantages", "advantages"),
    ):
        track = value.get(key)
        if isinstance(track, list) and len(track) == len(ids):
            row.tracks[name] = track[:n]
        elif key == "advantages" and isinstance(track, (int, float)):
            row.advantage = float(track)
    filtered = number(value.get("filtered_rewards"))
    if filtered is not None:
        row.raw_reward = row.reward


def _one(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _agent(reference: Any) -> str | None:
    return str(reference["name"]) if isinstance(reference, dict) and "name" in reference else None
