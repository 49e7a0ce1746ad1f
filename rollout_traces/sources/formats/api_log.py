"""Logs of model APIs: a request beside its response, Anthropic's or OpenAI's, and lines of their batch files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rollout_traces.model.text import SAID, text_of
from rollout_traces.sources.base import Claim, Fields, Found, Head, LinesFormat, split_of
from rollout_traces.sources.chat import Record
from rollout_traces.sources.rows import NO_TOKENS, RolloutRow, mapping_of, numbers

_STOPS = {"max_tokens": "length", "max_output_tokens": "length", "end_turn": "stop", "stop_sequence": "stop"}


class ApiLog(LinesFormat):
    """`request` and `response`; or of a batch `custom_id` with `params`, `body`, `result` or `response`."""

    name = "api-log"
    title = "logs and batch files of Anthropic's and OpenAI's APIs"

    def claim(self, head: Head) -> Claim | None:
        if not head.has("request", "response") and not (
            head.has("custom_id") and head.keys & {"params", "body", "result", "response"}
        ):
            return None
        lacks = (*NO_TOKENS, "rewards", "groups (equal prompts are one)", "steps (all are step 0)")
        split = split_of(head.path.name, head.path.parent.name)
        return Claim(head.path.parent, None, split, lacks)

    def read(self, fields: Fields, found: Found) -> Iterator[RolloutRow]:
        request = mapping_of(fields.first("request", "params", "body"))
        request = mapping_of(request.get("body", request))
        response = mapping_of(fields.first("response", "result"))
        response = mapping_of(response.get("body", response.get("message", response)))
        prompt = [
            *_system(request.get("system", request.get("instructions"))),
            *(fields.read_messages("messages", _first(request, "messages", "input", "prompt")) or []),
        ]
        answers = _answers(response)
        usage = numbers(response.get("usage"))
        if not answers and not prompt:
            failed = str(fields.first("error", "result", "response"))[:SAID]
            text = f"holds no request and no answer that is known ({failed}); it is passed over."
            fields.note("rows_refused", text)
            return
        for n, (message, stop) in enumerate(answers or [(None, None)]):
            reply = [] if message is None else fields.read_messages("response", message) or []
            known = (
                {"n_sampled": value}
                if (value := usage.get("output_tokens", usage.get("completion_tokens")))
                else {}
            )
            yield RolloutRow(
                step=0,
                split=found.claim.split,
                messages=[*prompt, *reply] or None,
                n_prompt_messages=len(prompt),
                tools=request.get("tools") if isinstance(request.get("tools"), list) else None,
                sample_id=fields.text("custom_id") if n == 0 else f"{fields.text('custom_id')}-{n}",
                group=f"request {fields.line}" if len(answers) > 1 else None,
                stop_reason=_STOPS.get(str(stop), stop) if isinstance(stop, str) else None,
                known_columns=known if len(answers) == 1 else {},
                metrics=usage if len(answers) == 1 else {},
                extras={"model": model}
                if isinstance(model := response.get("model", request.get("model")), str)
                else {},
            )


def _answers(response: Record) -> list[tuple[Any, Any]]:
    """Each answer of a response, as messages, and why it ended."""
    choices = response.get("choices")
    if isinstance(choices, list):
        given = [choice for choice in choices if isinstance(choice, Mapping)]
        return [
            (c.get("message", {"role": "assistant", "content": c.get("text")}), c.get("finish_reason"))
            for c in given
        ]
    if isinstance(response.get("output"), list):
        return [(response["output"], mapping_of(response.get("incomplete_details")).get("reason", "stop"))]
    if "content" in response:
        return [({"role": "assistant", "content": response["content"]}, response.get("stop_reason"))]
    return []


def _system(given: Any) -> list[dict[str, Any]]:
    return [{"role": "system", "content": text_of(given)}] if given else []


def _first(value: Record, *keys: str) -> Any:
    return next((value[key] for key in keys if value.get(key) is not None), None)
