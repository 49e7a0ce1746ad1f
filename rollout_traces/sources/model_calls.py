"""Calls of a model with exact ids, one after the other: where each continues the one before, they are one row's tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rollout_traces.sources.rows import RolloutRow


@dataclass(frozen=True, eq=False)
class ModelCall:
    """One call.

    Attributes:
        prompt: ids of its prompt.
        completion: ids that were sampled.
        logprobs: of these, nats; None where they were not recorded.
    """

    prompt: Sequence[int]
    completion: Sequence[int]
    logprobs: Sequence[float | None] | None = None


def branches_of(calls: Iterable[ModelCall]) -> list[list[ModelCall]]:
    """The calls in order, those together of which each prompt begins with all ids of a call before.

    Args:
        calls: calls of one rollout.

    Returns:
        A list of calls a branch, in the order of the branches' first calls.
    """
    branches: list[list[ModelCall]] = []
    for call in calls:
        for branch in reversed(branches):
            before = [*branch[-1].prompt, *branch[-1].completion]
            if list(call.prompt[: len(before)]) == before:
                branch.append(call)
                break
        else:
            branches.append([call])
    return branches


def add_tokens(row: RolloutRow, calls: Sequence[ModelCall]) -> None:
    """Gives a row the ids of its last call; completions of earlier calls are found at their place in its prompt.

    A completion that is not there, since the context was rewritten after it, is left out.

    Args:
        row: the row.
        calls: at least one.
    """
    ids = [*calls[-1].prompt, *calls[-1].completion]
    mask = [0] * len(ids)
    logprobs: list[float | None] = [None] * len(ids)
    for call in calls:
        start, stop = len(call.prompt), len(call.prompt) + len(call.completion)
        if ids[start:stop] != list(call.completion):
            continue
        mask[start:stop] = [1] * len(call.completion)
        if call.logprobs is not None and len(call.logprobs) == len(call.completion):
            logprobs[start:stop] = call.logprobs
    row.input_ids, row.response_mask, row.loss_mask = ids, mask, mask
    if any(value is not None for value in logprobs):
        row.tracks["logprobs"] = logprobs
