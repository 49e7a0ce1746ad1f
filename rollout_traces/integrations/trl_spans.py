"""When TRL sampled a batch and called its reward functions, as spans that all rows of the batch share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rollout_traces.model.spans import Span, Spans


class TrlSpans:
    """Notes the spans of one call of `_generate_and_score_completions`.

    TRL samples a whole batch at once, so its rows share a start and an end. Where it has tools, the turns behind the
    first are of the rows that called one, which TRL does not tell: they are unobserved, and so are reward models.

    Args:
        trainer: the trainer.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._spans = Spans()

    def begin(self) -> None:
        """Forgets the call before."""
        self._spans = Spans()

    @property
    def noted(self) -> list[Span]:
        """The spans of every row of the batch."""
        return list(self._spans.noted)

    def around_sampling(self, generate: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps `_generate_single_turn`, whose first call is for all rows."""

        @functools.wraps(generate)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if any(span["kind"] == "generate" for span in self._spans.noted):
                return generate(*args, **kwargs)
            rank = self._trainer.accelerator.process_index
            version = int(self._trainer.state.global_step)
            with self._spans("generate", turn=0, engine=f"rank {rank}", version=version):
                return generate(*args, **kwargs)

        return wrapped

    @contextmanager
    def scoring(self, names: Sequence[str]) -> Iterator[None]:
        """Times the trainer's reward functions while it calls them.

        Args:
            names: what each is called.
        """
        own = getattr(self._trainer, "reward_funcs", None)
        if not isinstance(own, list) or len(own) != len(names):
            yield
            return
        self._trainer.reward_funcs = [self._timed(each, name) for each, name in zip(own, names, strict=True)]
        try:
            yield
        finally:
            self._trainer.reward_funcs = own

    def _timed(self, function: Any, name: str) -> Any:
        if not inspect.isroutine(function):  # a model, or an object of which TRL may ask more
            return function
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with self._spans("score", name=name):
                    return await function(*args, **kwargs)

            return awaited

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with self._spans("score", name=name):
                return function(*args, **kwargs)

        return called
