"""The rows of a batch while TRL samples, calls tools and scores: their stages, and their spans.

TRL samples a whole batch at once: rows of one turn share its start and its end. Tools are called a row after another.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from rollout_traces.integrations.base import Arguments, arguments_of, contained, inside
from rollout_traces.integrations.followed import Followed
from rollout_traces.model.spans import Span, Spans

TOOLS = ("_sync_tool_dicts", "_async_tool_dicts")
"""Attributes in which TRL has the tools of each row, name -> function, while it samples."""


class TrlRows:
    """Follows the rows of one call of `_generate_and_score_completions`.

    What a reward model takes is unobserved: it is no function.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.rows: list[Followed] = []
        self._ids: list[list[int]] = []

    def begin(self, rows: Sequence[Followed]) -> None:
        """Follows these rows, and no longer those of the call before."""
        self.rows = list(rows)
        self._ids = []

    def end(self, stage: str, detail: str | None = None) -> None:
        """Every row has come to an end: `done`, or `aborted`."""
        for row in self.rows:
            row.live.stage(stage, detail)

    @property
    def noted(self) -> list[list[Span]]:
        """The spans of each row."""
        return [row.noted for row in self.rows]

    def around_sampling(self, generate: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps `_generate_single_turn`, whose first call is for all rows, and each further one for those that called tools."""

        @functools.wraps(generate)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            given = arguments_of(generate, args, kwargs)
            rows = contained("trl")(self._begin_turn)(given) or []
            clock = Spans()
            with clock("generate"):
                result = generate(*args, **kwargs)
            contained("trl")(self._end_turn)(rows, clock.noted[0], given, result)
            return result

        return wrapped

    @contextmanager
    def calling_tools(self) -> Iterator[None]:
        """Follows the tools that TRL calls inside, where it has them a row."""
        own = {name: getattr(self._trainer, name, None) for name in TOOLS}
        for name, tools in own.items():
            followed = contained("trl")(self._followed_tools)(tools)
            if followed is not None:
                setattr(self._trainer, name, followed)
        try:
            yield
        finally:
            for name, tools in own.items():
                if tools is not None:
                    setattr(self._trainer, name, tools)

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
        self._trainer.reward_funcs = [self._scored(each, name) for each, name in zip(own, names, strict=True)]
        try:
            yield
        finally:
            self._trainer.reward_funcs = own

    def _followed_tools(self, tools: Any) -> list[dict[str, Any]] | None:
        """The tools of each row, followed; None where they are not known a row."""
        if not isinstance(tools, list) or len(tools) != len(self.rows):
            return None
        return [
            {tool: inside(function, partial(row.tool, tool)) for tool, function in of_row.items()}
            for of_row, row in zip(tools, self.rows, strict=True)
        ]

    def _begin_turn(self, given: Arguments) -> list[int]:
        """The places of the rows that a call samples."""
        rows = self._rows_of(given.get("prompt_ids") or []) if self._ids else list(range(len(self.rows)))
        for at in rows:
            self.rows[at].live.stage("sampling")
        return rows

    def _rows_of(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """Whose conversations so many prompts go on with, in their order; only those that nobody else's is like."""
        found, free = [], list(range(len(self._ids)))
        for prompt in prompts:
            at = next((row for row in free if prompt[: len(self._ids[row])] == self._ids[row]), None)
            if at is None:
                return []
            found.append(at)
            free = [row for row in free if row > at]
        return found

    def _end_turn(self, rows: Sequence[int], span: Span, given: Arguments, result: Sequence[Any]) -> None:
        prompts = given.get("prompt_ids")
        sampled = result if _are_ids(result) else result[0 if prompts is not None else 1]
        if not self._ids:
            self._ids = [list(ids) for ids in prompts] if prompts is not None else [[]] * len(rows)
        known = {
            "engine": f"rank {self._trainer.accelerator.process_index}",
            "version": int(self._trainer.state.global_step),
        }
        for at, place in enumerate(rows):
            row = self.rows[place]
            row.note({**span, "turn": row.turns, **known})
            ids = list(sampled[at])
            row.sampled(ids)
            if prompts is not None:
                self._ids[place] = [*prompts[at], *ids]

    def _scored(self, function: Any, name: str) -> Any:
        """A reward function that is timed; all rows share its span."""
        if not inspect.isroutine(function):  # a model, or an object of which TRL may ask more
            return function
        return inside(function, partial(self._scoring, name))

    @contextmanager
    def _scoring(self, name: str) -> Iterator[None]:
        for row in self.rows:
            row.live.stage("scoring", name)
        clock = Spans()
        try:
            with clock("score", name=name):
                yield
        finally:
            for row in self.rows:
                row.note(dict(clock.noted[0]))


def _are_ids(result: Any) -> bool:
    """Tells whether a call returned the sampled ids alone, as `RLOOTrainer`'s does."""
    return bool(len(result)) and bool(len(result[0])) and isinstance(result[0][0], int)
