"""tinker-cookbook: `iteration_N/{train,eval_*}_rollout_summaries.jsonl`, lengths and rewards without any text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rollout_traces.sources.base import TRAIN, Claim, Fields, Found, Head, LinesFormat, split_of
from rollout_traces.sources.rows import NO_TOKENS, RolloutRow, number, numbers


class Tinker(LinesFormat):
    """`split, iteration, group_idx, traj_idx, tags, total_reward, final_reward, trajectory_metrics, steps`."""

    name = "tinker"
    title = "tinker-cookbook, rollout summaries"

    def claim(self, head: Head) -> Claim | None:
        if not head.has("group_idx", "traj_idx", "total_reward", "steps"):
            return None
        lacks = ("text", *NO_TOKENS, "stop reasons")
        return Claim(head.above("iteration.*"), None, split_of(head.path.name), lacks)

    def read(self, fields: Fields, found: Found) -> Iterator[RolloutRow]:
        value = fields.record
        step, group = fields.whole("iteration"), value.get("group_idx")
        if step is None:
            text = f"iteration: seen {value.get('iteration')!r}. Expected an integer; the row is passed over."
            fields.note("rows_without_step", text)
            return
        steps = [s for s in _listed(value.get("steps")) if isinstance(s, dict)]
        tags = [str(tag) for tag in _listed(value.get("tags"))]
        known = {"n_sampled": sum(number(s.get("ac_len")) or 0 for s in steps), "n_turns": len(steps)}
        if steps and isinstance(steps[0].get("ob_len"), int):
            known["n_prompt"] = steps[0]["ob_len"]
        yield RolloutRow(
            step=step,
            split=TRAIN if value.get("split") == "train" else split_of(str(value.get("split")), "eval"),
            reward=fields.number("total_reward"),
            components=numbers({"final_reward": value.get("final_reward")}),
            group=group,
            sample_id=f"{group}-{value.get('traj_idx')}",
            source=tags[0] if tags else None,
            metrics=numbers(value.get("trajectory_metrics")),
            known_columns=known,
            train_version=value.get("sampling_client_step"),
        )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
