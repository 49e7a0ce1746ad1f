"""verl: `rollout_data_dir/<step>.jsonl` and `validation_data_dir/<step>.jsonl`.

Prompts and responses were decoded with special tokens left out: roles inside the prompt are gone, and so is
what was a token and what was masked.
"""

from __future__ import annotations

from collections.abc import Iterator

from rollout_traces.model.text import SAID
from rollout_traces.sources.base import EVAL, Claim, Fields, Found, Head, LinesFormat, number_in, split_of
from rollout_traces.sources.rows import NO_TOKENS, RolloutRow, numbers, scalars

_KIND_OF_FOLDER = r"(?:rollout|validation|val|train|generation)s?(?:[_\-](?:data|dir|dump|generations?|rollouts?|samples?))*"
"""Names of folders that say what lies in them and not which run it is of."""
_FIELDS = ("input", "output", "gts", "score", "step", "uid", "request_id")


class Verl(LinesFormat):
    """`input, output, gts, score, step` and whatever the reward function returned."""

    name = "verl"
    title = "verl, rollout_data_dir or validation_data_dir"

    def claim(self, head: Head) -> Claim | None:
        if not head.has("input", "output", "score") or head.keys & {"messages", "input_prompt"}:
            return None
        step = number_in(r"^(\d+)\.jsonl", head.path.name)
        lacks = [*NO_TOKENS, "roles inside the prompt", "stop reasons"]
        split = split_of(*head.names[1:3])
        if head.lacks("uid"):
            where = " in validation" if split == EVAL else ""
            lacks.append(f"groups{where} (equal prompts are one)")
        return Claim(head.above(_KIND_OF_FOLDER), step, split, lacks)

    def read(self, fields: Fields, found: Found) -> Iterator[RolloutRow]:
        value = fields.record
        step = fields.whole("step") if "step" in value else found.claim.step
        if step is None:
            fields.note("rows_without_step", f"step: seen {value.get('step')!r}. Expected an integer.")
            return
        prompt, reply = value.get("input"), value.get("output")
        if not value.keys() & {"input", "output", "score"}:
            text = (
                f"has {', '.join(value) or 'no keys'}. Expected input, output and score; it is passed over."
            )
            fields.note("rows_refused", text[:SAID])
            return
        if not isinstance(prompt, str) or not isinstance(reply, str):
            fields.note("rows_without_text", "input and output: expected text; the row has its score alone.")
        uid = value.get("uid")
        group, episode = _group_and_episode(uid) if isinstance(uid, str) else (None, None)
        row = RolloutRow(
            step=step,
            split=found.claim.split,
            prompt_text=prompt if isinstance(prompt, str) else None,
            reply_text=reply if isinstance(reply, str) else None,
            reward=fields.number("score"),
            group=group,
            episode=episode,
            sample_id=uid if uid is not None else value.get("request_id"),
            ground_truth=value.get("gts"),
            source=value["data_source"] if isinstance(value.get("data_source"), str) else None,
            metrics=numbers(value, but=(*_FIELDS, "acc")),
            success=bool(value["acc"]) if isinstance(value.get("acc"), (bool, int, float)) else None,
            parsed_answer=value.get("pred"),
            extras={k: v for k, v in scalars(value, but=(*_FIELDS, "pred")).items() if isinstance(v, str)},
        )
        yield row


def _group_and_episode(uid: str) -> tuple[str, str | None]:
    """The prompt, and its rollout, of `<prompt>_<rollout>_<output>`; other uids are the group's as they are."""
    parts = uid.rsplit("_", 2)
    is_whole = len(parts) == 3 and parts[1].isdigit() and parts[2].isdigit()
    return (parts[0], f"{parts[0]}_{parts[1]}") if is_whole else (uid, None)
