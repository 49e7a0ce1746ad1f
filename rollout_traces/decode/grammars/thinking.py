"""Thinking blocks: text between an opening and a closing marker."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rollout_traces.decode.grammars.grammar import Malformed, Region, Scan, TextSpan


@dataclass(frozen=True, eq=False)
class ThinkingTags:
    """A pair of markers around reasoning.

    Attributes:
        name: the family.
        opening: literal marker before the reasoning.
        closing: literal marker after it.
        markers: other scaffolding of the family.
    """

    name: str
    opening: str
    closing: str
    markers: tuple[str, ...] = ()

    @property
    def opener(self) -> str:
        """The opening marker as a regular expression."""
        return re.escape(self.opening)

    @property
    def closers(self) -> tuple[str, ...]:
        """The closing marker, which may stand alone when the template opened the block."""
        return (self.closing,)

    def in_template(self, chat_template: str) -> bool:
        """Tells whether either marker stands in the template, escapes of its string literals undone."""
        return self.opening in chat_template or self.closing in chat_template

    def read(self, scan: Scan, at: int) -> Region | Malformed | None:
        """Reads to the closing marker, or to the end of the text."""
        inside = at + len(self.opening)
        close = scan.find(self.closing, inside)
        if close < 0:
            spans = (TextSpan("marker", at, inside), TextSpan("thinking", inside, len(scan.text)))
            return Region(spans=spans, thinking_closed=False)
        return Region(
            spans=(
                TextSpan("marker", at, inside),
                TextSpan("thinking", inside, close),
                TextSpan("marker", close, close + len(self.closing)),
            )
        )


@dataclass(frozen=True, eq=False)
class TypedThinking(ThinkingTags):
    """Tags that a model was asked or learned to write although its template knows nothing of them.

    They count where the text begins, or where they begin a line and are closed; elsewhere they are content: a
    pattern in code, a tag that is spoken of.
    """

    def read(self, scan: Scan, at: int) -> Region | Malformed | None:
        """Reads the block unless it is a mere mention of the opening tag."""
        block = scan.begins_text(at) or (scan.begins_line(at) and scan.find(self.closing, at) >= 0)
        return super().read(scan, at) if block else None


FAMILIES = (
    ThinkingTags("think", "<think>", "</think>"),
    ThinkingTags("thinking", "<thinking>", "</thinking>"),
    ThinkingTags("thought", "<thought>", "</thought>"),
    ThinkingTags("reasoning", "<reasoning>", "</reasoning>"),
    ThinkingTags("mistral_think", "[THINK]", "[/THINK]"),
    ThinkingTags("kimi_think", "◁think▷", "◁/think▷"),
    ThinkingTags("seed_think", "<seed:think>", "</seed:think>"),
    ThinkingTags("cohere_think", "<|START_THINKING|>", "<|END_THINKING|>"),
    ThinkingTags("gemma_thought", "<|channel>thought", "<channel|>"),
    ThinkingTags("apriel_reasoning", "Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"),
    ThinkingTags("inner_prefix", "<|inner_prefix|>", "<|inner_suffix|>"),
)
"""Families whose markers stand in chat templates."""

TYPED_FAMILIES = (
    TypedThinking("typed_think", "<think>", "</think>"),
    TypedThinking("typed_thinking", "<thinking>", "</thinking>"),
    TypedThinking("typed_reasoning", "<reasoning>", "</reasoning>"),
)
"""Families that are looked for in every model's text."""
