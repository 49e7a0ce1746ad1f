"""TRL's `GRPOTrainer`, `RLOOTrainer`, which shares its batch, and what Unsloth makes of both.

    from rollout_traces.integrations import trl
    trl.attach(trainer, max_rollout_traces_per_step=32)

TRL's batch is left-padded prompts and right-padded completions. Rewards are not in it: they are what
`_calculate_rewards` returned in the same call, and so are prompts, completions and logged extras. (`trainer._logs`
merges reward functions of one name and forgets all but a generation batch.) Training rollouts sampled at
`state.global_step == k` belong to the scalars that TRL logs at k + 1; evaluation is logged at k.

While TRL samples, calls tools and scores, its rows have stages and spans: it samples a whole batch at once, so rows of
one turn share its start and its end; tools are called a row after another.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from typing import Any

from transformers import TrainerCallback

from rollout_traces.errors import BatchError
from rollout_traces.integrations.base import (
    Arguments,
    arguments_of,
    attach_when_built,
    contained,
    inside,
    watched,
)
from rollout_traces.integrations.followed import Followed, prompt_text
from rollout_traces.integrations.trl_batch import (
    ScoredCompletions,
    TrlCallback,
    attach_callback,
    batches_from,
)
from rollout_traces.logger.rollout_logger import RolloutLogger
from rollout_traces.model.spans import Span, Spans

__all__ = ["ScoredCompletions", "attach", "batches_from", "install", "install_recompiled", "install_rloo"]


def attach(trainer: Any, *, logger: RolloutLogger | None = None, **options: Any) -> TrainerCallback:
    """Logs what a built trainer samples.

    Args:
        trainer: a `GRPOTrainer` or a relative.
        logger: where to log; else one is made when the first rollouts come, on the Trackio run that TRL
            opened, or on one of its own.
        **options: arguments of that `RolloutLogger`; environment variables `ROLLOUT_TRACES_...` win.

    Returns:
        The callback that flushes before TRL closes its run; it is already added, unless the trainer lacks
        what a hook needs.
    """
    return attach_callback(_TrlObserver, "trl", trainer, logger, options)


def install() -> None:
    """Makes every `GRPOTrainer` built from now on log, as `rollout-traces run` does."""
    attach_when_built("trl", "trl.trainer.grpo_trainer", "GRPOTrainer", attach)


def install_recompiled() -> None:
    """Makes the classes that Unsloth puts in the place of TRL's log."""
    install()
    install_rloo()


def install_rloo() -> None:
    """Makes every `RLOOTrainer` built from now on log."""
    attach_when_built("trl", "trl.trainer.rloo_trainer", "RLOOTrainer", attach)


@dataclass(frozen=True)
class _Generated:
    """One completion before it is padded: its length, why it stopped, 1 where the policy sampled."""

    length: int
    stop_reason: str
    sampled: Sequence[int]


@dataclass(frozen=True)
class _Rewarded:
    """The arguments and the result of `_calculate_rewards`, for this rank's B rows.

    Attributes:
        names: F reward functions' names, made unique.
        rewards_B_F: one value a row and function; NaN where a function gave none.
        prompts: B prompts, texts or lists of messages.
        completions: B completions, texts or lists of messages.
        extras: column that a reward function logged -> B values.
    """

    names: Sequence[str]
    rewards_B_F: Any
    prompts: Sequence[Any]
    completions: Sequence[Any]
    extras: Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class _Place:
    """The step and split that the rows of a call are logged at, and a group number for each."""

    step: int
    split: str
    groups: Sequence[int]


class _TrlObserver(TrlCallback):
    """Sees every call, and hands it over."""

    def __init__(self, name: str, trainer: Any, *given: Any) -> None:
        super().__init__(name, trainer, *given)
        self.rows = TrlRows(trainer)
        self.place: _Place | None = None
        self.generated: list[_Generated] = []
        self.rewarded: _Rewarded | None = None
        self._groups: dict[str, tuple[int, int]] = {}

    def watch(self) -> None:
        """Wraps sampling, scoring, and the call around both."""
        super().watch()
        trainer = self.trainer
        if hasattr(trainer, "_generate"):
            generate = inside(trainer._generate, self.rows.calling_tools)
            trainer._generate = watched("trl", generate, after=self.on_generated)
        if hasattr(trainer, "_generate_single_turn"):
            trainer._generate_single_turn = self.rows.around_sampling(trainer._generate_single_turn)
        calculate = inside(trainer._calculate_rewards, self.scoring)
        trainer._calculate_rewards = watched("trl", calculate, after=self.on_rewards)
        trainer._generate_and_score_completions = self.hand_over(trainer._generate_and_score_completions)

    def on_generated(self, given: Arguments, result: Sequence[Any]) -> None:
        """Sees what `_generate` returned, whose lists still distinguish a truncated completion from a masked one."""
        self.generated = []
        ends = _end_ids(self.trainer)
        masks = result[2] if _are_masks(result[2]) else [[1] * len(ids) for ids in result[1]]
        self.generated = [
            _Generated(len(ids), "stop" if len(ids) and ids[-1] in ends else "length", mask)
            for ids, mask in zip(result[1], masks, strict=True)
        ]

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Follows the reward functions that are called inside."""
        with self.rows.scoring(contained("trl")(_unique)(self.trainer.reward_func_names) or []):
            yield

    def on_rewards(self, given: Arguments, rewards: Any) -> None:
        """Sees what `_calculate_rewards` has: every row's rewards by function, prompts and completions."""
        self.rewarded = None
        prompts, completions = given["prompts"], given["completions"]
        n, rank = len(prompts), self.trainer.accelerator.process_index
        self.rewarded = _Rewarded(
            names=_unique(self.trainer.reward_func_names),
            rewards_B_F=rewards[rank * n : (rank + 1) * n].detach().float().cpu().numpy(),
            prompts=list(prompts),
            completions=list(completions),
            extras={
                name: list(values)
                for name, values in getattr(self.trainer, "_pending_extra_logs", {}).items()
                if len(values) == n
            },
        )

    def hand_over(self, score: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps `_generate_and_score_completions`."""

        @functools.wraps(score)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            given = arguments_of(score, args, kwargs)
            self.generated, self.rewarded, self.place = [], None, None
            self.rows.begin(())
            contained("trl")(self._begin)(given)
            try:
                output = score(*args, **kwargs)
            except BaseException as error:
                self.rows.end("aborted", type(error).__name__)
                raise
            self.rows.end("done")
            contained("trl")(self._log)(given, output)
            return output

        return wrapped

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Closes the evaluation, which TRL logs at the step it is at."""
        contained("trl")(self.hook.close_step)(int(state.global_step), "eval-rollout")

    def _begin(self, given: Arguments) -> None:
        """Begins a rollout in flight for each row; where TRL has environments, they are reset first."""
        trainer, inputs = self.trainer, given["inputs"]
        place = self.place = self._place_of(len(inputs))
        tokenizer = _tokenizer_of(trainer)
        boots = getattr(trainer, "environment_factories", None) is not None
        rows = []
        for row, group in zip(inputs, place.groups, strict=True):
            known = {"step": place.step, "split": place.split, "source": row.get("environment")}
            live = self.hook.live(prompt_text(row.get("prompt")), group=str(group), **known)
            if boots:
                live.stage("booting")
            rows.append(Followed(live, tokenizer))
        self.rows.begin(rows)

    def _place_of(self, n_rows: int) -> _Place:
        """Finds the step and split that a call's rows are logged at, and a group for each."""
        trainer = self.trainer
        at, training = int(trainer.state.global_step), trainer.model.training
        step, split = (at + 1, "rollout") if training else (at, "eval-rollout")
        world, rank = trainer.accelerator.num_processes, trainer.accelerator.process_index
        size = trainer.num_generations
        if not training:
            size = getattr(trainer, "num_generations_eval", size)
        first = self._take_groups((step, split), -(-n_rows * world // size))
        return _Place(step, split, [first + (rank * n_rows + row) // size for row in range(n_rows)])

    def _log(self, given: Arguments, output: Mapping[str, Any]) -> None:
        inputs = given["inputs"]
        place = self.place or self._place_of(len(inputs))
        scored = self._scored(inputs, output, place.groups)
        self.hook.log_rollouts(batches_from(scored), step=place.step, split=place.split)

    def _take_groups(self, place: tuple[int, str], n_groups: int) -> int:
        """The first of so many group ids of a step and split; calls of the same one go on where the last ended."""
        step, split = place
        before, taken = self._groups.get(split, (step, 0))
        first = taken if before == step else 0
        self._groups[split] = (step, first + n_groups)
        return first

    def _scored(
        self, inputs: Sequence[Mapping[str, Any]], output: Mapping[str, Any], groups: Sequence[int]
    ) -> ScoredCompletions:
        trainer, n = self.trainer, len(inputs)
        columns = {name: [row.get(name) for row in inputs] for name in inputs[0] if name != "prompt"}
        known = len(self.generated) == n
        rewarded = self.rewarded
        if rewarded is None or len(rewarded.prompts) != n:
            raise BatchError(
                f"TRL: `_calculate_rewards` saw {0 if rewarded is None else len(rewarded.prompts)} rows. "
                f"Expected the batch's {n}."
            )
        return ScoredCompletions(
            output=output,
            completion_lengths=[row.length for row in self.generated] if known else None,
            sampled=[row.sampled for row in self.generated] if known else None,
            stop_reasons=[row.stop_reason for row in self.generated] if known else None,
            rewards={name: rewarded.rewards_B_F[:, f].tolist() for f, name in enumerate(rewarded.names)},
            reward_weights=_as_list(trainer.reward_weights),
            group_ids=groups,
            global_step=int(trainer.state.global_step),
            messages=self._messages(rewarded),
            spans=self.rows.noted,
            columns={**columns, **rewarded.extras, **self._lives()},
        )

    def _lives(self) -> dict[str, list[str]]:
        """The column that leads from rollouts in flight to what is stored of them."""
        ids = [row.live.id for row in self.rows.rows]
        return {"live": ids} if any(ids) else {}

    def _messages(self, rewarded: _Rewarded) -> list[list[Mapping[str, Any]]] | None:
        """TRL's structured conversations; wrong under a `rollout_func`, absent for plain text."""
        if getattr(self.trainer, "rollout_func", None) is not None:
            return None
        if not all(isinstance(part, list) for part in (*rewarded.prompts, *rewarded.completions)):
            return None
        return [
            [*prompt, *completion]
            for prompt, completion in zip(rewarded.prompts, rewarded.completions, strict=True)
        ]

    def _template(self) -> str | None:
        """The chat template that the trainer prompts with, where it is not the tokenizer's own."""
        own = getattr(_tokenizer_of(self.trainer), "chat_template", None)
        processor = getattr(self.trainer, "processing_class", None)
        prompting = getattr(self.trainer, "chat_template", None) or getattr(processor, "chat_template", None)
        return prompting if isinstance(prompting, str) and prompting != own else None

    def _said_by_trainer(self) -> dict[str, Any]:
        return {
            **super()._said_by_trainer(),
            "tokenizer": _tokenizer_of(self.trainer),
            "chat_template": self._template(),
            "chat_template_kwargs": getattr(self.trainer, "chat_template_kwargs", None),
        }


def _tokenizer_of(trainer: Any) -> Any:
    """The tokenizer, also where an older TRL has it as `processing_class` alone, or inside a processor."""
    processor = getattr(trainer, "processing_class", None)
    return getattr(trainer, "_tokenizer", None) or getattr(processor, "tokenizer", None) or processor


def _end_ids(trainer: Any) -> set[int]:
    """Ids that end a completion; an older TRL knows one."""
    several = getattr(trainer, "eos_token_ids", None)
    ends = [getattr(trainer, "eos_token_id", None)] if several is None else _as_list(several)
    tokenizer = _tokenizer_of(trainer)
    return {*ends, tokenizer.eos_token_id, tokenizer.pad_token_id} - {None}


def _unique(names: Sequence[str]) -> list[str]:
    """Names in order; the second of one name is `name_2`, so that two lambdas stay two reward functions."""
    unique: list[str] = []
    for name in map(str, names):
        numbered = (f"{name}_{n}" for n in count(2))
        unique.append(next(each for each in chain([name], numbered) if each not in unique))
    return unique


def _are_masks(values: Any) -> bool:
    """Tells whether it is lists of 0 and 1, as `GRPOTrainer` gives where tools are used; `RLOOTrainer` gives texts there."""
    return isinstance(values, Sequence) and all(
        isinstance(row, Sequence) and all(value in (0, 1) for value in row) for row in values
    )


def _as_list(values: Any) -> list[Any]:
    return values.tolist() if hasattr(values, "tolist") else list(values)


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
