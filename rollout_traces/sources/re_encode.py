"""Token ids for rollouts that came as text: made with a tokenizer, and marked as made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from rollout_traces.decode.decoder import TranscriptDecoder
from rollout_traces.sources.rows import RE_ENCODED, RolloutRow

_CHECKED = 64
"""Rows whose ids are looked up in the tokenizer's vocabulary."""


class ReEncoder:
    """Gives rows of text the ids that a tokenizer and its chat template make of them.

    The ids may differ from those that were trained on: text does not say how it was cut into tokens, nor
    which tokens of it were in the loss. So what the policy wrote counts as sampled and as trained.

    Args:
        tokenizer: a transformers tokenizer.

    Attributes:
        counts: rows `re_encoded`, and `rendering_failed` where the template refused a conversation.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.counts: Counter[str] = Counter()
        self._decoder = TranscriptDecoder(tokenizer)
        self._n_ids = self._n_unknown = self._n_checked = 0

    def add_ids(self, row: RolloutRow) -> None:
        """Gives a row ids and masks where it has none; looks whether the ids of others fit the tokenizer."""
        if row.input_ids is not None:
            self._check(row.input_ids)
            return
        marked = row.prompt_text is not None and row.messages is None and self._is_marked(row.prompt_text)
        messages = row.conversation()
        if marked:
            ids = self._encode((row.prompt_text or "") + (row.reply_text or ""))
            n_prompt = len(self._encode(row.prompt_text or ""))
        elif messages:
            rendered = self._render(messages, row.tools)
            if rendered is None:
                return
            ids, n_prompt = rendered, 0
        else:
            return
        sampled = self._written_by_policy(ids, messages or [], row, n_prompt)
        row.input_ids, row.response_mask, row.loss_mask = ids, sampled, sampled
        row.extras = {**row.extras, "ids_from": RE_ENCODED}
        self.counts["re_encoded"] += 1

    def unknown_share(self) -> float:
        """Share of the dump's own ids that the tokenizer does not know, over the rows looked at."""
        return self._n_unknown / self._n_ids if self._n_ids else 0.0

    def _check(self, ids: Sequence[int]) -> None:
        if self._n_checked < _CHECKED:
            self._n_checked += 1
            self._n_ids += len(ids)
            self._n_unknown += int(self._decoder.detokenizer.unknown(np.asarray(ids, np.int64)).sum())

    def _is_marked(self, text: str) -> bool:
        specials = getattr(self.tokenizer, "all_special_tokens", ()) or ()
        return any(token in text for token in specials)

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _render(self, messages: Sequence[Mapping[str, Any]], tools: Any) -> list[int] | None:
        if not getattr(self.tokenizer, "chat_template", None):
            return self._encode("".join(str(message.get("content") or "") for message in messages))
        try:
            text = self.tokenizer.apply_chat_template(
                [_with_parsed_arguments(m) for m in messages], tools=tools or None, tokenize=False
            )
        except Exception:  # noqa: BLE001  a template raises what it likes; the row stays without ids, counted
            self.counts["rendering_failed"] += 1
            return None
        return self._encode(text)

    def _written_by_policy(
        self, ids: Sequence[int], messages: Sequence[Mapping[str, Any]], row: RolloutRow, n_prompt: int
    ) -> list[int]:
        """1 for the tokens of assistant turns after the prompt, end markers included."""
        n = row.n_prompt_messages or 0
        before = sum(message.get("role") == "assistant" for message in messages[:n])
        turns = [t for t in self._decoder.decode(ids).turns if t.role == "assistant"]
        sampled = [0] * len(ids)
        if not turns and n_prompt:
            return [0] * n_prompt + [1] * (len(ids) - n_prompt)
        for turn in turns[before:]:
            start = max(turn.body_start, n_prompt)
            stop = min(turn.stop, turn.body_stop + 1)
            for at in range(start, stop):
                sampled[at] = 1
        return sampled


def _with_parsed_arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    """Templates expect a call's arguments as a mapping, not as JSON text."""
    calls = []
    for call in message.get("tool_calls") or ():
        function = dict(call.get("function") or {})
        if isinstance(function.get("arguments"), str):
            try:
                function["arguments"] = orjson.loads(function["arguments"] or "{}")
            except orjson.JSONDecodeError:
                function["arguments"] = {"text": function["arguments"]}
        calls.append({**call, "function": function})
    return {**message, **({"tool_calls": calls} if calls else {})}
