"""verifiers before v1: `results.jsonl` of an evaluation, one rollout a line, and `metadata.json` beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rollout_traces.model.text import words
from rollout_traces.model.units import MS
from rollout_traces.sources.base import EVAL, Claim, Fields, Found, Head, LinesFormat
from rollout_traces.sources.lines import loads
from rollout_traces.sources.rows import NO_TOKENS, RolloutRow, number, numbers, scalars

_FIELDS = words(
    "example_id prompt completion answer info reward timing is_truncated stop_condition metrics tool_defs task id"
)


class VerifiersResults(LinesFormat):
    """`example_id, prompt, completion, answer, info, reward, timing, is_truncated, stop_condition, metrics`."""

    name = "verifiers-results"
    title = "verifiers, results.jsonl of an evaluation"

    def claim(self, head: Head) -> Claim | None:
        if not head.has("example_id", "prompt", "completion", "reward"):
            return None
        lacks = (*NO_TOKENS, "the training step (an evaluation is step 0)")
        return Claim(head.path.parent, 0, EVAL, lacks)

    def read(self, fields: Fields, found: Found) -> Iterator[RolloutRow]:
        value = fields.record
        prompt = fields.messages("prompt") or []
        reply = value.get("completion")
        reply = (
            [{"role": "assistant", "content": reply}]
            if isinstance(reply, str)
            else fields.messages("completion") or []
        )
        named = value.get("metrics") if isinstance(value.get("metrics"), dict) else None
        timing = value.get("timing")
        usage = value.get("token_usage")
        n_sampled = number(usage.get("output_tokens")) if isinstance(usage, dict) else None
        yield RolloutRow(
            step=0,
            split=EVAL,
            messages=[*prompt, *reply] or None,
            n_prompt_messages=len(prompt),
            tools=_listed(value.get("tool_defs")),
            reward=fields.number("reward"),
            metrics=numbers(named if named is not None else value, but=_FIELDS),
            group=f"example {value.get('example_id')}",
            prompt_key=f"example-{value.get('example_id')}",
            source=value.get("task") if isinstance(value.get("task"), str) else None,
            ground_truth=value.get("answer") or None,
            stop_reason="length" if value.get("is_truncated") else value.get("stop_condition"),
            timings=_seconds(timing) or None,
            known_columns={} if n_sampled is None else {"n_sampled": n_sampled},
            extras=scalars(value.get("info")),
        )


def _seconds(timing: Any) -> dict[str, float]:
    """Seconds by name: of a part its duration, of what older versions wrote in milliseconds a thousandth."""
    if not isinstance(timing, dict):
        return {}
    parts = {name: part.get("duration") for name, part in timing.items() if isinstance(part, dict)}
    flat = {name: value for name, value in timing.items() if name != "start_time"}
    found = {name: value for name, value in numbers(flat | parts).items() if value is not None}
    return {
        name.removesuffix("_ms"): value / MS if name.endswith("_ms") else value
        for name, value in found.items()
    }


def _listed(value: Any) -> list[Any] | None:
    if isinstance(value, str):
        try:
            value = loads(value.encode())
        except ValueError:
            return None
    return value if isinstance(value, list) and value else None
