"""open-instruct: `<run>_rollouts_<shard>.jsonl`, ids and logprobs of prompt and response."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_traces.model.text import MOST
from rollout_traces.sources.base import TRAIN, Claim, Fields, Found, Head, LinesFormat
from rollout_traces.sources.rows import RolloutRow, numbers


class OpenInstruct(LinesFormat):
    """`prompt_tokens, response_tokens, reward, advantage, finish_reason, prompt_idx, ground_truth, logprobs`."""

    name = "open-instruct"
    title = "open-instruct, saved rollouts"
    tokens = "yes"

    def claim(self, head: Head) -> Claim | None:
        if not head.has("prompt_tokens", "response_tokens", "reward"):
            return None
        name = head.path.name.partition("_rollouts_")[0]
        lacks = ("mask of tool output (all of the response counts as sampled)", "policy versions")
        return Claim(head.path.parent / name, None, TRAIN, lacks)

    def read(self, fields: Fields, found: Found) -> Iterator[RolloutRow]:
        value = fields.record
        step = fields.whole("step")
        prompt, response = value.get("prompt_tokens"), value.get("response_tokens")
        if step is None or not isinstance(prompt, list) or not isinstance(response, list):
            text = "step, prompt_tokens or response_tokens is missing; the row is passed over."
            fields.note("rows_refused", text)
            return
        mask = [0] * len(prompt) + [1] * len(response)
        logprobs = value.get("logprobs")
        tracks = {}
        if isinstance(logprobs, list) and len(logprobs) == len(response):
            tracks["logprobs"] = [None] * len(prompt) + logprobs
        elif logprobs is not None:
            seen = f"{len(logprobs)} values" if isinstance(logprobs, list) else repr(logprobs)[:MOST]
            text = (
                f"logprobs: seen {seen}. Expected {len(response)}, one a response token; they are left out."
            )
            fields.note("logprobs_that_do_not_fit", text)
        yield RolloutRow(
            step=step,
            split=TRAIN,
            input_ids=prompt + response,
            loss_mask=mask,
            tracks=tracks,
            reward=fields.number("reward"),
            advantage=fields.number("advantage"),
            group=value.get("prompt_idx"),
            sample_id=value.get("sample_idx"),
            source=str(value["dataset"]) if value.get("dataset") is not None else None,
            ground_truth=value.get("ground_truth"),
            stop_reason=value.get("finish_reason"),
            metrics=numbers(value.get("request_info"), but=("tool_calleds",)),
        )
