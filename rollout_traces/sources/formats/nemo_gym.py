"""NeMo Gym: `rollouts.jsonl`, a request and a response of OpenAI's Responses with the reward, with ids where the model gave them.

Failures lie in a file of their own, `rollouts_failures.jsonl`; they have no reward, whatever number stands there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rollout_traces.model.model_calls import merge_calls
from rollout_traces.sources.base import Claim, Fields, Found, Head, LinesFormat, split_of
from rollout_traces.sources.rows import (
    NO_TOKENS,
    RolloutRow,
    add_tokens,
    call_of,
    note_calls_left_out,
    numbers,
    scalars,
)

_REQUEST = "responses_create_params"
_FAILURE = "_ng_failure_class"
_IDS = re.compile(rb'"generation_token_ids":\s*\[\s*\d')
_KNOWN = (_REQUEST, "response", "reward", "_ng_task_index", "_ng_rollout_index", "agent_ref", _FAILURE)


class NemoGym(LinesFormat):
    """`responses_create_params, response, reward, _ng_task_index, _ng_rollout_index, agent_ref` and what the task adds."""

    name = "nemo-gym"
    title = "NeMo Gym, rollouts"
    tokens = "where the model gave them"

    def claim(self, head: Head) -> Claim | None:
        if not head.has(_REQUEST) or not head.keys & {"response", _FAILURE}:
            return None
        lacks = ["the training step (a collection is step 0)", "advantages"]
        if not _IDS.search(head.raw) and not head.has(_FAILURE):
            lacks = [*NO_TOKENS, *lacks]
        return Claim(head.path.parent, 0, split_of(head.path.name), lacks)

    def read(self, fields: Fields, found: Found) -> Iterator[RolloutRow]:
        value = fields.record
        request, response = value.get(_REQUEST) or {}, value.get("response") or {}
        output = [item for item in response.get("output") or [] if isinstance(item, Mapping)]
        prompt = fields.read_messages("input", request.get("input")) or []
        reply = (fields.read_messages("output", output) or []) if output else []
        failure = value.get(_FAILURE)
        others = {k: v for k, v in value.items() if k not in _KNOWN}
        incomplete = (response.get("incomplete_details") or {}).get("reason")
        row = RolloutRow(
            step=0,
            split=found.claim.split,
            messages=[*_system(request), *prompt, *reply] or None,
            n_prompt_messages=len(_system(request)) + len(prompt),
            tools=request.get("tools") or None,
            reward=None if failure else fields.number("reward"),
            reward_status="error" if failure else None,
            discard_reason="failed" if failure else None,
            group=fields.whole("_ng_task_index"),
            sample_id=fields.text("_ng_rollout_index"),
            source=(value.get("agent_ref") or {}).get("name"),
            stop_reason="length" if incomplete == "max_output_tokens" else incomplete,
            metrics=numbers(others),
            extras={k: v for k, v in scalars({**others, "failure": failure}).items() if isinstance(v, str)},
        )
        calls = [
            call_of(item["prompt_token_ids"], item["generation_token_ids"], item.get("generation_log_probs"))
            for item in output
            if item.get("prompt_token_ids") and item.get("generation_token_ids")
        ]
        if calls:
            last = merge_calls(calls)[-1]
            add_tokens(row, last)
            note_calls_left_out(fields.note, len(calls) - len(last.calls))
        yield row


def _system(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    said = request.get("instructions")
    return [{"role": "system", "content": said}] if isinstance(said, str) and said else []
