"""The canonical batch: what a trainer hands over for one step and split.

Arrays may be torch tensors on any device, numpy arrays or plain lists. What makes a batch looks at shapes and
dtypes alone; it never reads, moves or copies a value, so it is free on the training thread and needs
no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import numpy as np

from rollout_traces.errors import BatchError
from rollout_traces.model.batch_checks import (
    PACKED_KEYS,
    ROW_FLOATS,
    as_array,
    check_not_packed,
    check_row_array,
    check_row_list,
)
from rollout_traces.model.text import fresh_name
from rollout_traces.model.transcript import FLOAT_TRACKS

SPLITS = ("rollout", "eval-rollout")
"""Training rollouts, and evaluation rollouts."""

REQUIRED = ("input_ids", "attention_mask", "loss_mask")
MASKS = ("attention_mask", "loss_mask", "response_mask")
TOKEN_KEYS = ("response_mask", "turn_ids", "versions", *FLOAT_TRACKS)
"""Optional [B, T] keys. `advantages` may also be [B]."""

NAMED_FLOATS = ("reward_components", "sample_metrics")
_ARRAYS = (*REQUIRED, *TOKEN_KEYS, *ROW_FLOATS)
_OF_BATCH = ("train_version", "pad_id")


class ListElement(str):
    """The id of a group that is an element of a list without `group_ids`.

    Args:
        call: distinguishes the lists of several calls apart.
        index: its place in the list, dropped (None) elements counted.
    """

    index_in_list: int

    def __new__(cls, call: str, index: int) -> ListElement:
        element = super().__new__(cls, f"{call} element {index}")
        element.index_in_list = index
        return element


@dataclass(frozen=True, eq=False)
class RolloutBatch:
    """B rollouts of one step and split, padded to T tokens on any side, unshifted.

    A row's tokens are `input_ids[b][attention_mask[b]]`, and `loss_mask[b, t]` speaks of
    `input_ids[b, t]`. Masks may be bool, int or float; ids int32 or int64.

    A row that attends to no token came without tokens: what speaks of tokens is unobserved, and its `messages`
    are its conversation. `from_messages` makes a batch of such rows.

    Attributes:
        input_ids: int [B, T].
        attention_mask: [B, T]; 1 where there is a token.
        loss_mask: [B, T]; 1 where the token contributes to the loss.
        response_mask: [B, T]; 1 where the policy sampled the token. When absent: `versions >= 0` where
            versions exist, else the loss mask, noted as assumed.
        turn_ids: int [B, T]; number of the sampled turn, -1 = not sampled.
        versions: int [B, T]; policy version that sampled the token, -1 = not sampled.
        logprobs: float [B, T], nats; from the rollout engine.
        prox_logprobs: float [B, T], nats; recomputed with the weights before the update.
        new_logprobs: float [B, T], nats; recomputed with the weights after it.
        ref_logprobs: float [B, T], nats; of the reference model.
        advantages: float [B, T] or [B].
        values: float [B, T]; the critic's.
        entropies: float [B, T], nats.
        token_rewards: float [B, T]; where `rewards` is absent their sum over a row is its reward.
        loss_weights: float [B, T].
        rewards: float [B], or [B, T] taken as `token_rewards`. None in a list is unknown, and so is what a numpy
            mask hides; NaN is a NaN, and flagged.
        raw_rewards: float [B]; before shaping or scaling.
        reward_components: name -> float [B].
        sample_metrics: name -> float [B].
        group_ids: B hashable values; rows with an equal one answer the same prompt in this step.
        prompt_keys: B strings that make two rollouts of different steps answers to the same prompt.
        sample_ids: B values by which later joins find their row.
        sources: B names of the environment or data set.
        engine_ids: B names of the engine that sampled the row.
        parsed_answers: B values; None where no answer was found.
        successes: B bools; None where unknown.
        reward_statuses: B of `ok`, `timeout`, `error`.
        stop_reasons: B strings.
        discard_reasons: B strings; None = used for training.
        messages: B lists of OpenAI-style messages; the structured truth of a row, or None.
        tools: B lists of tool definitions, or None.
        images: B lists of images that the row's tokens stand for, in order: paths of PNG, JPEG, GIF or WebP files,
            or their bytes; None for a row without. Those of rows that become traces are kept, paths being read
            beside the trainer, so the files have to stay until then.
        ground_truths: B values.
        timings: B lists of spans `{kind, start, end, turn, engine, version, name, error}`, see docs/schema.md
            (`rt.Spans` notes them); or B mappings name -> seconds. There `turn/0`, `turn/1`, ... are those of the
            turns that the policy sampled, `tool/0`, ... of the tools' turns, `start` when the row began, on one
            clock for the rows of an episode.
        extras: B mappings of scalars to show beside the row.
        episode_ids: B strings; rows with an equal one are of one run of an environment (branches,
            compactions, sub-agents, retries), and count once in groups and pass rates.
        parents: B sample ids of the row of the same episode that this one left; None at the first.
        origins: B texts `file:record` that say where an imported row was read from; None for all others.
        known_columns: B mappings of ledger columns to numbers, for what is known of a row whose tokens are not
            (`n_sampled`, `mean_logprob`, ...); they stand where nothing else tells, or None.
        ledger_rows: B mappings of ledger columns to values, for rollouts that are copied with their ledger: numbers and
            flags hold as they were stored, whatever the copy's tokens say; None for all others.
        train_version: the policy version being trained; without it staleness is unknown.
        pad_id: the padding token, for what cannot tell it otherwise.

    Raises:
        BatchError: a required key is missing or shapes disagree; the text names the key, what was
            seen and what was expected.
    """

    input_ids: Any
    attention_mask: Any
    loss_mask: Any
    response_mask: Any = None
    turn_ids: Any = None
    versions: Any = None
    logprobs: Any = None
    prox_logprobs: Any = None
    new_logprobs: Any = None
    ref_logprobs: Any = None
    advantages: Any = None
    values: Any = None
    entropies: Any = None
    token_rewards: Any = None
    loss_weights: Any = None
    rewards: Any = None
    raw_rewards: Any = None
    reward_components: Mapping[str, Any] = field(default_factory=dict)
    sample_metrics: Mapping[str, Any] = field(default_factory=dict)
    group_ids: Any = None
    prompt_keys: Any = None
    sample_ids: Any = None
    sources: Any = None
    engine_ids: Any = None
    parsed_answers: Any = None
    successes: Any = None
    reward_statuses: Any = None
    stop_reasons: Any = None
    discard_reasons: Any = None
    messages: Any = None
    tools: Any = None
    images: Any = None
    ground_truths: Any = None
    timings: Any = None
    extras: Any = None
    episode_ids: Any = None
    parents: Any = None
    origins: Any = None
    known_columns: Any = None
    ledger_rows: Any = None
    train_version: int | None = None
    pad_id: int | None = None

    def __post_init__(self) -> None:
        for key in REQUIRED:
            if getattr(self, key) is None:
                raise BatchError(
                    f"RolloutBatch: required key {key!r} is missing (None). "
                    f"Expected an array [B, T]; required keys are {', '.join(REQUIRED)}."
                )
        values = self.__dict__
        for key in _OF_BATCH:
            if isinstance(values[key], (str, bytes, list, tuple, dict)):
                raise BatchError(
                    f"{key}: seen {values[key]!r}. Expected an int, or None where it is unknown."
                )
        for key in _ARRAYS:
            if values[key] is not None:
                values[key] = as_array(key, values[key])
        self._check_ids()
        B_T = tuple(self.input_ids.shape)
        self._move_token_rewards(B_T)
        for key in (*REQUIRED, *TOKEN_KEYS):
            if values[key] is not None:
                self._check_token_key(key, B_T)
        for key in ROW_FLOATS:
            if values[key] is not None:
                values[key] = check_row_array(key, values[key], B_T[0])
        for key in NAMED_FLOATS:
            values[key] = self._named(key, B_T[0])
        for key in ROW_LISTS:
            if values[key] is not None:
                check_row_list(key, values[key], B_T[0])

    @property
    def n_rows(self) -> int:
        """Number of rollouts, B."""
        return int(self.input_ids.shape[0])

    def to_torch(self, device: Any = "cpu") -> RolloutBatch:
        """The same rollouts with tensors in place of arrays; an unknown reward is NaN.

        Args:
            device: where the tensors lie.
        """
        import torch

        def tensor(values: Any) -> Any:
            return torch.as_tensor(
                np.ma.filled(values, np.nan) if np.ma.isMaskedArray(values) else values
            ).to(device)

        changed: dict[str, Any] = {
            key: tensor(getattr(self, key)) for key in _ARRAYS if getattr(self, key) is not None
        }
        for key in NAMED_FLOATS:
            changed[key] = {name: tensor(each) for name, each in getattr(self, key).items()}
        return replace(self, **changed)

    @classmethod
    def from_messages(cls, messages: Sequence[Sequence[Mapping[str, Any]]], **columns: Any) -> RolloutBatch:
        """A batch of B rollouts without tokens.

        Args:
            messages: B conversations, each a list of OpenAI-style messages.
            **columns: any field [B] of the class: `rewards`, `group_ids`, `stop_reasons`, ...

        Returns:
            The batch, T = 0.

        Raises:
            BatchError: see the class.
        """
        nothing = np.zeros((len(messages), 0), np.int32)
        masks = nothing.astype(bool)
        return cls(
            input_ids=nothing, attention_mask=masks, loss_mask=masks, messages=list(messages), **columns
        )

    def as_group(self, group_id: str) -> RolloutBatch:
        """The same rollouts as one group, unless they say which groups they are of.

        Args:
            group_id: what the group is called.
        """
        if self.group_ids is not None:
            return self
        grouped = object.__new__(RolloutBatch)  # it was checked when it was made
        grouped.__dict__.update(self.__dict__, group_ids=[group_id] * self.n_rows)
        return grouped

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RolloutBatch:
        """Builds a batch from a mapping of canonical keys; keys it does not know are left out.

        Args:
            data: canonical keys to arrays; shapes as in the class.

        Returns:
            The batch.

        Raises:
            BatchError: see the class.
        """
        known = {key: value for key, value in data.items() if key in FIELD_NAMES}
        missing = [key for key in REQUIRED if key not in known]
        if missing:
            raise BatchError(
                f"batch: required key {missing[0]!r} is missing. Seen keys: "
                f"{', '.join(sorted(map(str, data))) or 'none'}. Expected {', '.join(REQUIRED)} as arrays [B, T]."
            )
        check_not_packed(data, known["input_ids"])
        return cls(**known)

    @classmethod
    def from_prompt_response(
        cls, prompt_ids: Sequence[Any], response_ids: Sequence[Any], **columns: Any
    ) -> RolloutBatch:
        """Joins prompts and responses of differing lengths into one right-padded batch.

        Args:
            prompt_ids: B sequences of token ids.
            response_ids: B sequences of token ids, what the policy sampled and what came between.
            **columns: further fields of the batch. Those of a token hold B sequences, one value a response
                token, or None for a row where it is unknown; without `loss_mask` every response token is in the
                loss. Those of a row are passed on as they are.

        Returns:
            The batch [B, T], T the longest prompt and response together.

        Raises:
            BatchError: a row's values are not one a response token; the text names the key, the row and both
                lengths. Else as in the class.
        """
        joined = join_prompt_response(prompt_ids, response_ids, columns)
        return cls(**joined)

    @classmethod
    def from_any(cls, data: Any) -> list[RolloutBatch]:
        """Builds the batches that a logging call was given.

        Args:
            data: a `RolloutBatch`, one mapping of arrays, or a sequence of either. In a sequence each
                element without `group_ids` is one group, AReaL's convention; None elements are
                trajectories that the trainer dropped and are passed over.

        Returns:
            One batch an element, in order.

        Raises:
            BatchError: something else was given, or an element cannot be understood.
        """
        if isinstance(data, RolloutBatch):
            return [data]
        if isinstance(data, Mapping):
            return [cls.from_dict(data)]
        if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
            call = fresh_name()
            return [
                batch.as_group(ListElement(call, index))
                for index, element in enumerate(data)
                if element is not None
                for batch in cls.from_any(element)
            ]
        raise BatchError(
            f"batch: seen {type(data).__name__}. Expected a RolloutBatch, a mapping of arrays, or a list of mappings."
        )

    def _check_ids(self) -> None:
        shape = tuple(self.input_ids.shape)
        if len(shape) != 2:
            raise BatchError(
                f"input_ids: seen shape {shape}, dtype {self.input_ids.dtype}. Expected [B, T]: "
                "one row a rollout. Add the missing axis, or pad the rows to one length."
            )
        if "float" in str(self.input_ids.dtype) or "complex" in str(self.input_ids.dtype):
            raise BatchError(
                f"input_ids: seen dtype {self.input_ids.dtype}. Expected integers (int32 or int64)."
            )

    def _move_token_rewards(self, B_T: tuple[int, ...]) -> None:
        rewards = self.rewards
        if rewards is not None and tuple(rewards.shape) == B_T and B_T[1] != 1 and self.token_rewards is None:
            object.__setattr__(self, "token_rewards", rewards)
            object.__setattr__(self, "rewards", None)

    def _check_token_key(self, key: str, B_T: tuple[int, ...]) -> None:
        value = getattr(self, key)
        shape = tuple(value.shape)
        if shape == B_T or (key == "advantages" and shape == B_T[:1]):
            return
        expected = f"[B, T] = {B_T}" + (f" or [B] = {B_T[:1]}" if key == "advantages" else "")
        raise BatchError(
            f"{key}: seen shape {shape}, dtype {value.dtype}. Expected {expected}, the shape of input_ids. "
            "Masks and tracks are unshifted: one value a token."
        )

    def _named(self, key: str, B: int) -> dict[str, Any]:
        value = getattr(self, key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise BatchError(
                f"{key}: seen {type(value).__name__}. Expected a mapping from name to an array [B]."
            )
        return {
            str(name): check_row_array(f"{key}[{name!r}]", as_array(f"{key}[{name!r}]", column), B)
            for name, column in value.items()
            if column is not None
        }


def join_prompt_response(
    prompt_ids: Sequence[Any], response_ids: Sequence[Any], columns: Mapping[str, Any]
) -> dict[str, Any]:
    """Fields of a `RolloutBatch` from prompts and responses; see `RolloutBatch.from_prompt_response`."""
    if len(prompt_ids) != len(response_ids):
        raise BatchError(
            f"prompt_ids: {len(prompt_ids)} rows, response_ids: {len(response_ids)}. Expected one prompt a response."
        )
    starts = [len(row) for row in prompt_ids]
    stops = [start + len(row) for start, row in zip(starts, response_ids, strict=True)]
    shape = (len(starts), max(stops, default=0))
    ids, attention = np.zeros(shape, np.int64), np.zeros(shape, bool)
    for b, (prompt, response) in enumerate(zip(prompt_ids, response_ids, strict=True)):
        ids[b, : starts[b]], ids[b, starts[b] : stops[b]] = prompt, response
        attention[b, : stops[b]] = True
    given = {"loss_mask": [np.ones(len(row), bool) for row in response_ids], **columns}
    tracks = {
        key: _behind_prompts(key, given[key], starts, stops, shape)
        for key in ("loss_mask", *TOKEN_KEYS)
        if given.get(key) is not None and not _is_one_a_row(key, given[key])
    }
    return {**given, "input_ids": ids, "attention_mask": attention, **tracks}


def _is_one_a_row(key: str, values: Any) -> bool:
    """Tells whether `advantages` are given one a row and not one a token."""
    return key == "advantages" and not any(hasattr(row, "__len__") for row in values if row is not None)


def _behind_prompts(
    key: str, rows: Sequence[Any], starts: Sequence[int], stops: Sequence[int], shape: tuple[int, int]
) -> Any:
    """B sequences of response values as an array [B, T]; unknown outside the responses."""
    if len(rows) != shape[0]:
        raise BatchError(f"{key}: {len(rows)} rows. Expected {shape[0]}, one a response.")
    if key in MASKS:
        array: Any = np.zeros(shape, bool)
    elif key in ("versions", "turn_ids"):
        array = np.full(shape, -1, np.int64)
    else:
        array = np.ma.masked_array(np.full(shape, np.nan, np.float32), mask=True)
    for b, row in enumerate(rows):
        if row is None:
            continue
        if len(row) != stops[b] - starts[b]:
            raise BatchError(
                f"{key}: row {b} has {len(row)} values. Expected {stops[b] - starts[b]}, one a response token."
            )
        array[b, starts[b] : stops[b]] = row
    return array


FIELD_NAMES = frozenset(item.name for item in fields(RolloutBatch))
ROW_LISTS = tuple(
    item.name for item in fields(RolloutBatch) if item.name not in (*_ARRAYS, *NAMED_FLOATS, *_OF_BATCH)
)
"""Keys of B values that may be of any kind."""


def keys_left_out(data: Mapping[str, Any]) -> dict[str, str | None]:
    """Keys that `RolloutBatch.from_dict` does not know.

    Returns:
        The key as it was given -> the canonical key nearest to it, None where none is near or that one was given too.
    """
    nearest = {
        str(key): _nearest(str(key)) for key in data if key not in FIELD_NAMES and key not in PACKED_KEYS
    }
    return {key: None if known in data else known for key, known in nearest.items()}


@lru_cache
def _nearest(key: str) -> str | None:
    return next(iter(get_close_matches(key, sorted(FIELD_NAMES), n=1)), None)
