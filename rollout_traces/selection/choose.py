"""Policies by name, and the one way in which they are applied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

from rollout_traces.errors import ConfigError
from rollout_traces.selection.all_rows import all_rows
from rollout_traces.selection.base import Selected, SelectionPolicy, SelectionRequest
from rollout_traces.selection.extremes import extremes
from rollout_traces.selection.first import first
from rollout_traces.selection.fixed_prompts import fixed_prompts
from rollout_traces.selection.portfolio import portfolio
from rollout_traces.selection.random_rows import random_rows

POLICIES: Mapping[str, SelectionPolicy] = {
    "portfolio": portfolio,
    "fixed_prompts": fixed_prompts,
    "first": first,
    "random": random_rows,
    "extremes": extremes,
    "all": all_rows,
}
"""The policies that `RolloutLogger(selection=...)` knows by name."""


def policy_named(selection: str | Callable[[SelectionRequest], Any]) -> SelectionPolicy:
    """The policy of a name.

    Args:
        selection: a key of `POLICIES`, or a callable, which is returned as it is. It may answer with
            `Selected` values or with plain row numbers.

    Raises:
        ConfigError: no policy has that name.
    """
    if not isinstance(selection, str):
        return cast(SelectionPolicy, selection)
    if selection not in POLICIES:
        raise ConfigError(
            f"selection: seen {selection!r}. Expected one of {', '.join(POLICIES)}, or a callable that takes "
            "a SelectionRequest and returns row numbers."
        )
    return POLICIES[selection]


def default_policy(split: str) -> SelectionPolicy:
    """`fixed_prompts` for evaluation, so that the same prompts are seen every time; `portfolio` for training."""
    return fixed_prompts if split.startswith("eval") else portfolio


def choose(policy: SelectionPolicy, request: SelectionRequest) -> list[Selected]:
    """Applies a policy and holds it to its promise.

    Args:
        policy: the policy.
        request: what it may see. A limit of 0 or less, or no rows, chooses nothing; for `all` the limit
            is the number of rows.

    Returns:
        Different rows, at most `request.limit` of them; what a policy answers beyond that is cut.

    Raises:
        ConfigError: the answer is not a sequence of rows of the hand-over.
    """
    n = request.ledger.n_rows
    if request.limit <= 0 or n == 0:
        return []
    if policy is all_rows:
        request = replace(request, limit=n)
    chosen: dict[int, Selected] = {}
    for answer in _answers(policy, request):
        selected = _checked(policy, answer)
        if not 0 <= selected.row < n:
            raise ConfigError(
                f"selection {_name(policy)}: seen row {selected.row}. Expected rows from 0 to {n - 1}."
            )
        chosen.setdefault(selected.row, selected)
    return list(chosen.values())[: request.limit]


def _answers(policy: SelectionPolicy, request: SelectionRequest) -> Iterable[Any]:
    answers = policy(request)
    if not isinstance(answers, Iterable):
        raise ConfigError(
            f"selection {_name(policy)}: seen {type(answers).__name__}. Expected a sequence of row numbers."
        )
    return answers


def _checked(policy: SelectionPolicy, answer: Any) -> Selected:
    try:
        given = answer if isinstance(answer, Selected) else Selected(answer, _name(policy), 1.0)
        row = int(given.row)
        if row != given.row:
            raise ValueError(f"row {given.row!r} is no row number")
        return Selected(row, str(given.selected_by), float(given.probability))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"selection {_name(policy)}: seen {answer!r} ({type(answer).__name__}). Expected a row number, or Selected with a row number, a "
            "reason and a probability."
        ) from error


def _name(policy: SelectionPolicy) -> str:
    return getattr(policy, "__name__", type(policy).__name__)
