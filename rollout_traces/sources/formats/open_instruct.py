"""open-instruct: `<run>_rollouts_<shard>.jsonl`, ids and logprobs of prompt and response."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_traces.sources.base import TRAIN, Claim, Format, Found, Head, ReadOptions
from rollout_traces.sources.fields import Fields
from rollout_traces.sources.lines import json_lines
from rollout_traces.sources.problems import Problems
from rollout_traces.sources.rows import RolloutRow, numbers


class OpenInstruct(Format):
    """`prompt_tokens, response_tokens, reward, advantage, finish_reason, prompt_idx, ground_truth, logprobs`."""

    name = "open-instruct"
    title = "open-instruct, saved rollouts"
    tokens = "yes"

    def claim(self, head: Head) -> Claim | None:
        if not head.has("prompt_tokens", "response_tokens", "reward"):
            return None
        name = head.path.name.partition("_rollouts_")[0]
        lacks = ("mask of tool output (all of the response counts as sampled)", "policy versions")
        return Claim(head.path.parent / name, None, TRAIN, lacks, head.path.name)

    def rows(
        self, found: Found, problems: Problems, options: ReadOptions, start: int = 0, line: int = 0
    ) -> Iterator[tuple[RolloutRow, int, int]]:
        for record in json_lines(found.path, problems, start, line):
            value = record.value
            fields = Fields(value, found.path, record.number, problems)
            step = fields.whole("step")
            prompt, response = value.get("prompt_tokens"), value.get("response_tokens")
            if step is None or not isinstance(prompt, list) or not isinstance(response, list):
                text = "step, prompt_tokens or response_tokens is missing; the row is passed over."
                problems.add(found.path, "rows_refused", text, record.number)
                continue
            mask = [0] * len(prompt) + [1] * len(response)
            logprobs = value.get("logprobs")
            tracks = {}
            if isinstance(logprobs, list) and len(logprobs) == len(response):
                tracks["logprobs"] = [None] * len(prompt) + logprobs
            elif logprobs is not None:
                seen = f"{len(logprobs)} values" if isinstance(logprobs, list) else repr(logprobs)[:80]
                text = f"logprobs: seen {seen}. Expected {len(response)}, one a response token; they are left out."
                problems.add(found.path, "logprobs_that_do_not_fit", text, record.number)
            info = value.get("request_info") if isinstance(value.get("request_info"), dict) else {}
            truth = value.get("ground_truth")
            yield (
                RolloutRow(
                    step=step,
                    split=TRAIN,
                    line=record.number,
                    input_ids=prompt + response,
                    loss_mask=mask,
                    tracks=tracks,
                    reward=fields.number("reward"),
                    advantage=fields.number("advantage"),
                    group=value.get("prompt_idx"),
                    sample_id=value.get("sample_idx"),
                    source=str(value["dataset"]) if value.get("dataset") is not None else None,
                    ground_truth=truth,
                    stop_reason=value.get("finish_reason"),
                    metrics=numbers(info, but=("tool_calleds",)),
                ),
                record.stop,
                record.number,
            )
