"""prime-rl token exports: `token_exports/step_N/rank_R.jsonl`, what the trainer's loss saw, token by token.

They hold the rollouts of `traces.jsonl` once more, without their rewards: a run of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

from rollout_traces.sources.base import TRAIN, Claim, Fields, Found, Head, LinesFormat, number_in
from rollout_traces.sources.rows import RolloutRow

_TRACKS = {
    "inference_logprobs": "logprobs",
    "trainer_logprobs": "prox_logprobs",
    "entropy": "entropies",
    "advantages": "advantages",
    "rl_weights": "loss_weights",
}


class TokenExport(LinesFormat):
    """`token_ids, loss_mask, advantages, inference_logprobs, trainer_logprobs, entropy, mismatch_kl`."""

    name = "token-export"
    title = "prime-rl, token exports"
    tokens = "yes"

    def claim(self, head: Head) -> Claim | None:
        if not head.has("token_ids", "loss_mask", "inference_logprobs"):
            return None
        step = number_in(r"^step_(\d+)$", head.path.parent.name)
        lacks = ("rewards", "groups", "conversations", "stop reasons", "which rollouts were not trained on")
        return Claim(head.above(r"step_\d+"), step, TRAIN, lacks)

    def read(self, fields: Fields, found: Found) -> Iterator[RolloutRow]:
        value = fields.record
        ids, mask = value.get("token_ids"), value.get("loss_mask")
        step = fields.whole("step")
        step = found.claim.step if step is None else step
        if not isinstance(ids, list) or not isinstance(mask, list) or len(ids) != len(mask) or step is None:
            text = (
                "step, token_ids or loss_mask is missing, or they differ in length; the row is passed over."
            )
            fields.note("rows_refused", text)
            return
        tracks = {}
        for key, name in _TRACKS.items():
            values = value.get(key)
            if isinstance(values, list) and len(values) == len(ids) and any(v is not None for v in values):
                tracks[name] = values
        place = f"{value.get('rank', 0)}-{value.get('export_sequence_idx', fields.line - 1)}"
        yield RolloutRow(
            step=step,
            split=TRAIN,
            input_ids=ids,
            loss_mask=mask,
            tracks=tracks,
            sample_id=place,
            source=value.get("env_name"),
            group=-1,
        )
