"""Calls of a model merged into rows: what agent trainers hand over and record is a prompt and an answer a turn.

Calls whose prompt goes on where a call before ended are one row, and its turns are numbered. A call whose prompt
is another one (a compaction, a sub-agent, a context that was cut) begins a row of the same episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rollout_traces.errors import BatchError
from rollout_traces.model.batch import RolloutBatch

_UNKNOWN = float("nan")


@dataclass(frozen=True)
class ModelCall:
    """One call of the policy.

    Attributes:
        prompt_ids: everything it saw.
        response_ids: what it wrote.
        logprobs: one value a response token, nats; None = unknown.
        trained: whether its response is in the loss.
        version: the policy version that wrote it; None = unknown.
        advantages: one value a response token, or one for all of them; None = unknown.
    """

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    logprobs: Sequence[float] | None = None
    trained: bool = True
    version: int | None = None
    advantages: Sequence[float] | float | None = None


@dataclass
class MergedRow:
    """Calls put end to end: the first prompt, and everything after it.

    Attributes:
        prompt_ids: what the first call saw.
        response_ids: R tokens, sampled and from the environment.
        sampled: R values, 1 where the policy wrote the token.
        trained: R values, 1 where the token is in the loss.
        turn_ids: R values, the call's number in the row; -1 = from the environment.
        logprobs: R values, NaN where unknown.
        versions: R values, -1 where the policy did not write the token, None where its version is unknown.
        advantages: R values, NaN where unknown.
        calls: which of the episode's calls these are, by their place in it.
    """

    prompt_ids: list[int]
    response_ids: list[int] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)
    turn_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int | None] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)

    def take(self, call: ModelCall, number: int) -> None:
        """Appends what the environment wrote since, and the response of the episode's call of this number."""
        turn = len(self.calls)
        self.calls.append(number)
        between = list(call.prompt_ids[len(self.prompt_ids) + len(self.response_ids) :])
        n = len(call.response_ids)
        self.response_ids += [*between, *call.response_ids]
        self.sampled += [0] * len(between) + [1] * n
        self.trained += [0] * len(between) + [int(call.trained)] * n
        self.turn_ids += [-1] * len(between) + [turn] * n
        self.versions += [-1] * len(between) + [call.version] * n
        self.logprobs += [_UNKNOWN] * len(between) + _one_a_token(call.logprobs, n)
        self.advantages += [_UNKNOWN] * len(between) + _one_a_token(call.advantages, n)

    def is_continued_by(self, call: ModelCall) -> bool:
        """Tells whether the call's prompt begins with all that the row holds."""
        n, seen = len(self.prompt_ids), call.prompt_ids
        behind = seen[n : n + len(self.response_ids)]
        return list(seen[:n]) == self.prompt_ids and list(behind) == self.response_ids


def merge_calls(calls: Sequence[ModelCall]) -> list[MergedRow]:
    """The rows of one episode.

    Raises:
        BatchError: a call's logprobs or advantages are not one a response token.
    """
    rows: list[MergedRow] = []
    for number, call in enumerate(calls):
        for key in ("logprobs", "advantages"):
            given = getattr(call, key)
            if given is not None and not isinstance(given, float) and len(given) != len(call.response_ids):
                raise BatchError(
                    f"model call {number}: {len(given)} {key}. Expected {len(call.response_ids)}, one a "
                    "response token."
                )
        row = next((row for row in reversed(rows) if row.is_continued_by(call)), None)
        if row is None:
            row = MergedRow(list(call.prompt_ids))
            rows.append(row)
        row.take(call, number)
    return rows


def batch_of_rows(rows: Sequence[MergedRow], **columns: Any) -> RolloutBatch:
    """Merged rows as one right-padded batch; a row with a call of unknown version has none.

    Args:
        rows: B rows.
        **columns: further columns of a `RolloutBatch`, one value a row.
    """
    versions = [[-1] * len(row.versions) if None in row.versions else row.versions for row in rows]
    advantages = [row.advantages for row in rows]
    if any(version != -1 for row in versions for version in row):
        columns["versions"] = versions
    if any(value == value for row in advantages for value in row):
        columns["advantages"] = advantages
    return RolloutBatch.from_prompt_response(
        [row.prompt_ids for row in rows],
        [row.response_ids for row in rows],
        loss_mask=[row.trained for row in rows],
        response_mask=[row.sampled for row in rows],
        turn_ids=[row.turn_ids for row in rows],
        logprobs=[row.logprobs for row in rows],
        **columns,
    )


def _one_a_token(values: Sequence[float] | float | None, n: int) -> list[float]:
    if values is None:
        return [_UNKNOWN] * n
    return [values] * n if isinstance(values, float) else list(map(float, values))
