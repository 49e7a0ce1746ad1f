"""One rollout as a hook follows it while it is sampled: its stages for the page Live, its spans for the lanes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from rollout_traces.integrations.base import contained
from rollout_traces.logger.live import LiveRollout
from rollout_traces.model.spans import Span, Spans

LAST_TOKENS = 32
"""Tokens that are decoded to say a rollout's last words."""
current: ContextVar[Followed | None] = ContextVar("rollout_traces_followed", default=None)
"""The rollout that a coroutine samples, where a hook follows it."""


class Followed:
    """Says what a rollout is in, and notes its spans. Nothing here raises but what runs inside.

    Args:
        live: what its stages are said to.
        tokenizer: decodes its last words; None: none are said.
    """

    def __init__(self, live: LiveRollout, tokenizer: Any = None) -> None:
        self.live, self.tokenizer = live, tokenizer
        self.turns = self.tokens = 0
        self._spans = Spans()

    @property
    def noted(self) -> list[Span]:
        """The spans so far."""
        return list(self._spans.noted)

    def note(self, span: Span) -> None:
        """Adds a span that several rollouts share."""
        self._spans.noted.append(span)

    @contextmanager
    def running(self) -> Iterator[None]:
        """It is sampled inside, by this coroutine; what raises aborts it."""
        token = current.set(self)
        try:
            yield
        except BaseException as error:
            self.live.stage("aborted", type(error).__name__)
            raise
        finally:
            current.reset(token)

    @contextmanager
    def sampling(self) -> Iterator[Span]:
        """A turn is sampled inside; what is known of engine and version behind it goes into the span."""
        self.live.stage("sampling")
        with self._spans("generate", turn=self.turns) as span:
            yield span

    def sampled(self, ids: Sequence[int]) -> None:
        """A turn of so many tokens is there."""
        self.turns += 1
        self.tokens += len(ids)
        words = contained("live")(last_words)(self.tokenizer, ids)
        self.live.stage("sampling", turns=self.turns, tokens=self.tokens, words=words)

    @contextmanager
    def tool(self, name: str) -> Iterator[Span]:
        """A tool of the newest turn runs inside."""
        self.live.stage("tool", name)
        with self._spans("tool", turn=max(self.turns - 1, 0), name=name) as span:
            yield span

    @contextmanager
    def scoring(self, name: str | None = None) -> Iterator[Span]:
        """It is scored inside."""
        self.live.stage("scoring", name)
        with self._spans("score", **({"name": name} if name else {})) as span:
            yield span


def last_words(tokenizer: Any, ids: Sequence[int]) -> str | None:
    """The end of what was sampled; None without a tokenizer."""
    if tokenizer is None:
        return None
    return str(tokenizer.decode(list(ids[-LAST_TOKENS:])))


def prompt_text(prompt: Any) -> str | None:
    """What a prompt asks: a text, or the last text of a list of messages."""
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, Sequence):
        return None
    texts = [message["content"] for message in prompt if _has_text(message)]
    return texts[-1] if texts else None


def _has_text(message: Any) -> bool:
    return isinstance(message, Mapping) and isinstance(message.get("content"), str)
