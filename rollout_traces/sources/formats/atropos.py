"""Atropos: `data_path_to_save_groups`, a scored group a line, with the ids that the trainer gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rollout_traces.sources.base import TRAIN, Claim, Fields, Found, Head, LinesFormat
from rollout_traces.sources.rows import RolloutRow, scalars

NOT_IN_LOSS = -100
"""In a mask: the token is in no loss, and was not sampled."""
_TRACKS = {"inference_logprobs": "logprobs", "ref_logprobs": "ref_logprobs", "advantages": "advantages"}


class Atropos(LinesFormat):
    """`tokens, masks, scores` and more, a list of as many as the group has rollouts each."""

    name = "atropos"
    title = "Atropos, scored groups"
    tokens = "yes"

    def claim(self, head: Head) -> Claim | None:
        if not head.has("tokens", "masks", "scores"):
            return None
        lacks = ["steps (all are step 0)", "versions", "stop reasons"]
        lacks += ["logprobs"] if head.lacks("inference_logprobs") else []
        return Claim(head.path.parent, None, TRAIN, lacks)

    def read(self, fields: Fields, found: Found) -> Iterator[RolloutRow]:
        group = fields.record
        for n, (ids, mask) in enumerate(zip(group["tokens"], group["masks"], strict=True)):
            if len(ids) != len(mask):
                raise ValueError(f"{len(mask)} mask values beside {len(ids)} tokens")
            sampled = [int(value != NOT_IN_LOSS) for value in mask]
            messages = _of(group, "messages", n)
            row = RolloutRow(
                step=0,
                split=TRAIN,
                input_ids=ids,
                loss_mask=sampled,
                response_mask=sampled,
                messages=None if messages is None else fields.read_messages("messages", messages),
                messages_are_given=False,
                reward=fields.read_number("scores", group["scores"][n]),
                group=f"group {fields.line}",
                sample_id=n,
                extras=scalars(_of(group, "overrides", n)),
            )
            for key, name in _TRACKS.items():
                values = _of(group, key, n)
                if isinstance(values, list) and len(values) == len(ids):
                    row.tracks[name] = [
                        value if own else None for value, own in zip(values, sampled, strict=True)
                    ]
            yield row


def _of(group: Mapping[str, Any], key: str, n: int) -> Any:
    """A rollout's own of what a group has a list of, where it has one."""
    values = group.get(key)
    return values[n] if isinstance(values, list) and n < len(values) else None
