"""Hides pieces of text that the caller's hook names, and the tokens that wrote them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.model.plain_values import with_texts
from rollout_traces.model.spans import TEXTS
from rollout_traces.model.text import short_hash, words
from rollout_traces.model.transcript import ToolCall, Transcript, Turn

Redact = Callable[[Mapping[str, Any]], Sequence[str]]
"""Sees one message of a trace and returns the pieces of its text to hide. What is not part of the conversation
(ground truths, answers, extras) it sees as messages of the role `metadata`."""
HIDDEN = "█"
"""Stands for each hidden character."""
_LABELS = words(
    "sources engine_ids discard_reasons stop_reasons sample_ids parsed_answers ground_truths extras"
)


class Redaction:
    """Applies a hook to transcripts; where a piece cannot be placed exactly, the whole turn is hidden.

    Args:
        hook: names what to hide.
        counters: `messages_redacted`, `redactions_widened`, `redact_errors`.
    """

    def __init__(self, hook: Redact, counters: Counter[str]) -> None:
        self.hook = hook
        self._counters = counters

    def apply(
        self, transcript: Transcript
    ) -> tuple[Transcript, Callable[[Mapping[str, Any]], dict[str, Any]]]:
        """Hides the pieces that the hook names.

        A piece that is in a message but not in the raw text of its turn (it was unescaped, say) hides the
        whole turn, and so does a hook that fails.

        Returns:
            The transcript with hidden characters as `HIDDEN` and their token ids as -1, and a function
            that hides the same pieces in the fields that go with it.
        """
        pieces: set[str] = set()
        turns = []
        hidden: list[tuple[int, int]] = []
        start = 0
        for turn, message in zip(transcript.turns, transcript.messages(), strict=True):
            wanted = self._pieces_of(message, turn)
            pieces |= wanted
            if wanted:
                self._counters["messages_redacted"] += 1
            spans = _spans(turn.raw, wanted)
            hidden += [(start + a, start + b) for a, b in spans]
            turns.append(_hide_turn(turn, wanted, spans))
            start += len(turn.raw)
        hide = _Hider(pieces)
        tokens = replace(transcript.tokens, input_ids=_hide_ids(transcript, hidden))
        given = transcript.given_messages
        changed = replace(
            transcript,
            turns=tuple(turns),
            tokens=tokens,
            warnings=tuple(hide(list(transcript.warnings))),
            tools=tuple(self._hide_beside(hide, list(transcript.tools))),
            given_messages=None if given is None else tuple(self._hide_given(hide, one) for one in given),
        )
        return changed, lambda fields: self._hide_fields(hide, fields)

    def labels(self, batch: PackedBatch) -> PackedBatch:
        """Hides pieces in the names that rows are labelled and sorted by.

        Prompt keys given by the trainer, often the prompts, become step summaries: equal ones stay equal.
        """
        lists = dict(batch.row_lists)
        for key in _LABELS:
            if lists.get(key) is not None:
                lists[key] = self._hide_beside(_Hider(set()), list(lists[key]))
        if lists.get("timings") is not None:
            lists["timings"] = self._hide_timings(lists["timings"])
        if lists.get("prompt_keys") is not None:
            lists["prompt_keys"] = [
                None if key is None else short_hash(str(key)).hex() for key in lists["prompt_keys"]
            ]
        return replace(batch, row_lists=lists)

    def _hide_timings(self, rows: Sequence[Any]) -> list[Any]:
        """Hides pieces in names of timings and of spans; a step has few names and many spans."""
        hidden: dict[str, Any] = {}

        def of(text: str) -> Any:
            if text not in hidden:
                hidden[text] = self._hide_beside(_Hider(set()), text)
            return hidden[text]

        return [
            [{key: of(value) if key in TEXTS else value for key, value in span.items()} for span in row]
            if isinstance(row, list)
            else self._hide_beside(_Hider(set()), row)
            for row in rows
        ]

    def _hide_fields(self, hide: _Hider, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Hides pieces in a trace's fields; of the fields' names, only those of extras come from the caller."""
        hidden = {}
        for name, value in fields.items():
            ours, slash, theirs = name.partition("/")
            named = ours + slash + (self._hide_beside(hide, theirs) if theirs else "")
            hidden[named] = self._hide_beside(hide, value)
        return hidden

    def _named(self, message: Mapping[str, Any]) -> set[str] | None:
        """The pieces that the hook names; None where it fails, which must not let anything through."""
        try:
            return {str(piece) for piece in self.hook(message) if piece}
        except Exception:  # noqa: BLE001  counted
            self._counters["redact_errors"] += 1
            return None

    def _hide_given(self, hide: _Hider, message: Mapping[str, Any]) -> dict[str, Any]:
        """Hides pieces in a message that the trainer gave: those that the hook names in the whole message, and in each text."""
        content = message.get("content")
        text = content if isinstance(content, str) else "" if content is None else str(content)
        named = self._named({**message, "content": text})
        if named is None:
            return {"role": str(message.get("role")), "content": HIDDEN}
        return dict(self._hide_beside(hide, _Hider(named)(dict(message))))

    def _hide_beside(self, hide: _Hider, value: Any) -> Any:
        """Hides pieces in a rollout's further data: the rollout's own pieces, and those that the hook names there."""

        def hidden(text: str) -> str:
            named = self._named({"role": "metadata", "content": text})
            return HIDDEN * len(text) if named is None else hide(_Hider(named)(text))

        return with_texts(value, hidden)

    def _pieces_of(self, message: Mapping[str, Any], turn: Turn) -> set[str]:
        wanted = self._named(message)
        if wanted is None:
            return {turn.raw, turn.content, *([turn.thinking] if turn.thinking else [])} - {""}
        if all(piece in turn.raw or _escaped(piece) in turn.raw for piece in wanted):
            return wanted
        self._counters["redactions_widened"] += 1
        return wanted | {turn.raw}


class _Hider:
    """Hides pieces in strings, and in strings inside lists and mappings."""

    def __init__(self, pieces: set[str]) -> None:
        self._pieces = sorted(
            {form for piece in pieces for form in (piece, _escaped(piece))}, key=len, reverse=True
        )

    def __call__(self, value: Any) -> Any:
        return with_texts(value, self._hidden)

    def _hidden(self, text: str) -> str:
        for piece in self._pieces:
            text = text.replace(piece, HIDDEN * len(piece))
        return text


def _hide_turn(turn: Turn, pieces: set[str], spans: Sequence[tuple[int, int]]) -> Turn:
    if not pieces:
        return turn
    hide = _Hider(pieces)
    raw = list(turn.raw)
    for a, b in spans:
        raw[a:b] = HIDDEN * (b - a)
    text = "".join(raw)
    return replace(
        turn,
        raw=text,
        raw_bytes=text.encode("utf-8", "replace"),
        content=hide(turn.content),
        thinking=hide(turn.thinking),
        tool_calls=tuple(_hide_call(call, hide) for call in turn.tool_calls),
        warnings=tuple(hide(list(turn.warnings))),
    )


def _hide_call(call: ToolCall, hide: _Hider) -> ToolCall:
    return replace(call, name=hide(call.name), arguments=hide(call.arguments), raw=hide(call.raw))


def _spans(text: str, pieces: set[str]) -> list[tuple[int, int]]:
    """The positions of the pieces in a text, written plainly or as JSON."""
    found = []
    for piece in {form for wanted in pieces for form in (wanted, _escaped(wanted))}:
        at = text.find(piece)
        while at >= 0:
            found.append((at, at + len(piece)))
            at = text.find(piece, at + 1)
    return found


def _hide_ids(transcript: Transcript, hidden: Sequence[tuple[int, int]]) -> np.ndarray:
    tokens = transcript.tokens
    ids = tokens.input_ids.copy()
    for a, b in hidden:
        touches = (tokens.char_starts < b) & (tokens.char_stops > a)
        inside = (
            (tokens.char_starts == tokens.char_stops) & (tokens.char_starts >= a) & (tokens.char_starts <= b)
        )
        ids[touches | inside] = -1
    return ids


def _escaped(piece: str) -> str:
    return json.dumps(piece, ensure_ascii=False)[1:-1]
