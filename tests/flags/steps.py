"""Healthy steps to plant faults in: real conversations where they are at hand, made-up ones otherwise."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollout_traces.capture.host_copy import capture
from rollout_traces.decode import TranscriptDecoder
from rollout_traces.flags.detect import FlagErrors, Population, TracedRow, combine, flag_population, flag_row
from rollout_traces.ledger.build import build_ledger
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.model.transcript import Flag, Transcript
from rollout_traces.settings.run_settings import RunSettings
from tests import generator, service_desk
from tests.generator import Conversation

STEP = 10
TOKEN_KEYS = ("loss_mask", "turn_ids", "versions", "logprobs", "prox_logprobs", "entropies", "advantages")


@dataclass
class Row:
    """One rollout as arrays [n]; tests change them in place.

    Attributes:
        ids: int64.
        sampled: bool, what the policy really sampled.
        tracks: the other per-token arrays by canonical key.
        messages: what was rendered.
        values: per-row values by canonical key (`rewards`, `stop_reasons`, ...).
    """

    ids: np.ndarray
    sampled: np.ndarray
    tracks: dict[str, np.ndarray]
    messages: tuple[dict[str, Any], ...] = ()
    values: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def runs(self) -> list[tuple[int, int]]:
        """Start and stop of each run of sampled tokens."""
        edges = np.flatnonzero(np.diff(np.concatenate([[0], self.sampled.astype(int), [0]])))
        return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]

    def splice(self, start: int, stop: int, ids: Sequence[int], *, sampled: bool) -> None:
        """Replaces the tokens `[start, stop)`; the new ones look like their neighbour before."""
        new = np.asarray(ids, np.int64)
        like = (
            max(start - 1, 0)
            if sampled is bool(self.sampled[max(start - 1, 0)])
            else min(start, len(self) - 1)
        )

        def put(old: np.ndarray, values: Any) -> np.ndarray:
            filled = np.full(len(new), values, old.dtype)
            return np.concatenate([old[:start], filled, old[stop:]])

        tracks = {key: put(value, value[like]) for key, value in self.tracks.items()}
        self.ids = np.concatenate([self.ids[:start], new, self.ids[stop:]])
        self.sampled = put(self.sampled, sampled)
        self.tracks = tracks


@dataclass(eq=False)
class Step:
    """Rows of one step, in groups, and the tokenizer that wrote them."""

    tokenizer: Any
    rows: list[Row]
    group_size: int
    origin: str

    @property
    def pad_id(self) -> int | None:
        """The tokenizer's padding token, else the one that ends a text, which trainers pad with then."""
        pad = self.tokenizer.pad_token_id
        return self.tokenizer.eos_token_id if pad is None else pad

    def copy(self) -> Step:
        """A step whose rows can be changed without changing this one's."""
        return Step(self.tokenizer, copy.deepcopy(self.rows), self.group_size, self.origin)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def bare_header(self) -> list[int]:
        """The generation prompt's tokens without the white space at its end."""
        return self.encode(self._generation_prompt().rstrip())

    def header(self) -> list[int]:
        """The generation prompt's tokens."""
        return self.encode(self._generation_prompt())

    def user_turn(self, text: str) -> list[int]:
        """What the template writes after an assistant's answer: its end marker and a user's turn."""
        return self._after_answer({"role": "user", "content": text})

    def tool_turn(self, text: str) -> list[int]:
        """What the template writes after an assistant's end marker: a tool's result."""
        return self._after_answer({"role": "tool", "content": text, "name": "look_up"})[1:]

    def _after_answer(self, message: Mapping[str, Any]) -> list[int]:
        opening = [{"role": "user", "content": "Aqq"}, {"role": "assistant", "content": "Bqq"}]
        written = self.tokenizer.apply_chat_template([*opening, message], tokenize=False)
        return self.encode(written.partition("Bqq")[2])

    def _generation_prompt(self) -> str:
        probe = [{"role": "user", "content": "Aqq"}]
        without, with_it = (
            self.tokenizer.apply_chat_template(probe, tokenize=False, add_generation_prompt=add)
            for add in (False, True)
        )
        return with_it[len(without) :]

    def batch(self, *, without: Sequence[str] = (), train_version: int | None = STEP) -> PackedBatch:
        """The hand-over, left-padded and captured.

        Args:
            without: canonical keys to leave out.
            train_version: the version being trained.
        """
        B, T = len(self.rows), max(map(len, self.rows)) + 2
        arrays: dict[str, Any] = {
            "input_ids": np.zeros((B, T), np.int64),
            "attention_mask": np.zeros((B, T), bool),
        }
        for b, row in enumerate(self.rows):
            arrays["input_ids"][b, T - len(row) :] = row.ids
            arrays["attention_mask"][b, T - len(row) :] = True
            for key, values in row.tracks.items():
                arrays.setdefault(key, np.zeros((B, T), values.dtype))[b, T - len(row) :] = values
        for key in sorted({key for row in self.rows for key in row.values}):
            column = [row.values.get(key) for row in self.rows]
            arrays[key] = np.asarray(column, float) if key in ("rewards", "raw_rewards") else column
        kept = {key: value for key, value in arrays.items() if key not in without}
        kept.setdefault("group_ids", np.arange(B) // self.group_size)
        given = RolloutBatch(train_version=train_version, pad_id=self.pad_id, **kept)
        return capture([given], step=STEP, split="rollout")


def population_of(
    batch: PackedBatch, parameters: Mapping[str, Any] | None = None, settings: RunSettings | None = None
) -> Population:
    """What population detectors see of a hand-over."""
    return Population(batch, build_ledger(batch), parameters or {}, settings or RunSettings())


@dataclass(frozen=True, eq=False)
class Flagged:
    """What all detectors found on some rows.

    Attributes:
        flags: row -> its flags.
        transcripts: row -> its transcript.
        errors: detectors that raised.
    """

    flags: dict[int, list[Flag]]
    transcripts: dict[int, Transcript]
    errors: FlagErrors

    def named(self, name: str, row: int) -> list[Flag]:
        """The flags of one name on a row."""
        return [flag for flag in self.flags[row] if flag.name == name]


def find_flags(
    batch: PackedBatch,
    decoder: TranscriptDecoder,
    tokenizer: Any,
    *,
    rows: Sequence[int] | None = None,
    only: Sequence[str] | None = None,
    parameters: Mapping[str, Any] | None = None,
    settings: RunSettings | None = None,
) -> Flagged:
    """Flags as the worker finds them: population detectors, decoding, row detectors."""
    errors = FlagErrors()
    seen = range(batch.n_rows) if rows is None else rows
    by_row = flag_population(population_of(batch, parameters, settings), only=only, errors=errors)
    transcripts = dict(zip(seen, decoder.decode_batch(batch, list(seen)), strict=True))
    flags = {}
    for row, transcript in transcripts.items():
        traced = TracedRow(transcript, batch, row, parameters or {}, tokenizer)
        flags[row] = combine(by_row.get(row, ()), flag_row(traced, only=only, errors=errors), transcript)
    return Flagged(flags, transcripts, errors)


def desk_conversations(limit: int | None = None) -> list[Conversation]:
    """The conversations of the service desk up to their last assistant message."""
    made = []
    for record in service_desk.records()[:limit]:
        messages = [_with_plain_values(message) for message in record.messages]
        while messages[-1]["role"] != "assistant":
            messages.pop()
        made.append(Conversation(tuple(messages), record.reward))
    return made


def made_up_conversations(n: int) -> list[Conversation]:
    """Announcement problems with tool calls; every fourth one asks twice."""
    return [
        generator.conversation(
            seed, n_calls=1 + seed % 2, n_retries=int(seed % 4 == 1), prompt_seed=seed // 4
        )
        for seed in range(n)
    ]


def healthy_step(tokenizer: Any, conversations: Sequence[Conversation], origin: str) -> Step:
    """A step as a sound trainer hands it over: masks, versions, logprobs that agree, groups of four, no ties."""
    rng = np.random.default_rng(0)
    rows = []
    rewards = np.asarray(
        [c.reward + 0.2 * (i % 4) + 0.01 * rng.random() for i, c in enumerate(conversations)]
    )
    grouped = rewards.reshape(-1, 4)
    advantages = ((grouped - grouped.mean(1, keepdims=True)) / grouped.std(1, keepdims=True)).reshape(-1)
    for index, conversation in enumerate(conversations):
        rollout = generator.encode(tokenizer, conversation, tools=None)
        n, sampled = len(rollout.input_ids), rollout.sampled
        logprobs = np.where(sampled, -rng.exponential(0.35, n), 0).astype(np.float32)
        tracks = {
            "loss_mask": sampled.astype(np.int64),
            "turn_ids": rollout.turn_ids,
            "versions": np.where(sampled, STEP, -1),
            "logprobs": logprobs,
            "prox_logprobs": np.where(sampled, logprobs + rng.normal(0, 0.01, n), 0).astype(np.float32),
            "entropies": np.where(sampled, rng.gamma(1.0, 0.3, n), 0).astype(np.float32),
            "advantages": np.where(sampled, advantages[index], 0).astype(np.float32),
        }
        values = {
            "rewards": float(rewards[index]),
            "stop_reasons": "stop",
            "prompt_keys": f"task {index // 4}",
        }
        rows.append(Row(rollout.input_ids, sampled.copy(), tracks, rollout.messages, values))
    return Step(tokenizer, rows, 4, origin)


def _with_plain_values(message: Mapping[str, Any]) -> dict[str, Any]:
    plain = dict(message) | {"content": message["content"] or ""}
    if "tool_calls" in message:
        plain["tool_calls"] = [
            {
                **call,
                "function": {
                    "name": call["function"]["name"],
                    "arguments": json.loads(call["function"]["arguments"]),
                },
            }
            for call in message["tool_calls"]
        ]
    return plain
