"""AReaL: `{rollout,eval-rollout}/<newest version>/<task>.jsonl`, one line a rollout.

Special tokens are kept in the text. `prompt_len` is the length less the sampled tokens, which is no prompt
where a rollout has several turns, so it is not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rollout_traces.sources.base import EVAL, TRAIN, Claim, Fields, Found, Head, LinesFormat, number_in
from rollout_traces.sources.rows import NO_TOKENS, RolloutRow

_DIGITS = 12
"""Digits of a task that its file is called after, at most: files of a step are in the order of their tasks."""


class Areal(LinesFormat):
    """`task_id, sample_idx, seqlen, prompt_len, head_version, tail_version, reward, prompt, completion`."""

    name = "areal"
    title = "AReaL, dumped trajectories"

    def claim(self, head: Head) -> Claim | None:
        if not head.has("task_id", "seqlen", "reward") or not head.keys & {"completion", "segments"}:
            return None
        step = number_in(r"^(-?\d+)$", head.path.parent.name)
        split = EVAL if "eval" in head.above(r"-?\d+").name else TRAIN
        root = head.above(r"-?\d+", f"{TRAIN}|{EVAL}")
        lacks = (*NO_TOKENS, "versions inside a rollout", "stop reasons")
        return Claim(root, step, split, lacks, head.path.stem.zfill(_DIGITS))

    def read(self, fields: Fields, found: Found) -> Iterator[RolloutRow]:
        value = fields.record
        step = found.claim.step if found.claim.step is not None else fields.whole("tail_version")
        if step is None:
            text = "neither the folder nor tail_version says which step it is of; it is passed over."
            fields.note("rows_without_step", text)
            return
        prompt, reply = _texts(value)
        task = value.get("task_id")
        n_tokens = fields.number("seqlen")
        yield RolloutRow(
            step=step,
            split=found.claim.split,
            prompt_text=prompt,
            reply_text=reply,
            reward=fields.number("reward"),
            group=f"task {task}",
            sample_id=f"{task}-{value.get('sample_idx', fields.line - 1)}",
            metrics={} if n_tokens is None else {"seqlen": n_tokens},
        )


def _texts(value: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Prompt and everything after it; a newer dump has segments in place of the two."""
    segments = value.get("segments")
    if isinstance(segments, list):
        texts = [str(s.get("text", "")) for s in segments if isinstance(s, dict)]
        return (texts[0] if texts else None), "".join(texts[1:])
    prompt, reply = value.get("prompt"), value.get("completion")
    return (prompt if isinstance(prompt, str) else None), (reply if isinstance(reply, str) else None)
