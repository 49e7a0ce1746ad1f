"""Which rows of a closed step become traces."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from rollout_traces.ledger.columns import Ledger
from rollout_traces.model.counted_warnings import Warnings
from rollout_traces.sink.stored import StoredRow
from rollout_traces.steps.open_step import ClosedStep
from rollout_traces.steps.options import StepOptions
from rollout_traces.steps.selection import Selected, SelectionRequest, choose, policy_named

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredStep:
    """What an earlier worker stored of a step before it was stopped.

    Attributes:
        is_summarised: its step summary is stored: only traces may be missing.
        chosen: uid -> how the row was chosen, as the step summary or the traces say.
        n_traced: traces that the step has already, without those of `chosen`; a late part has what they leave of the cap.
    """

    is_summarised: bool = False
    chosen: Mapping[str, StoredRow] = field(default_factory=dict)
    n_traced: int = 0


def choose_rows(
    step: ClosedStep,
    ledger: Ledger,
    options: StepOptions,
    stored: StoredStep,
    traced_prompts: Mapping[str, int],
    counters: Counter[str],
) -> list[Selected]:
    """The rows that become traces.

    What an earlier worker began to store was its choice and stays the choice. Rows whose tokens the memory budget
    gave up are no candidates, and the others' probabilities say so.

    Args:
        step: the step.
        ledger: its rows, flags included.
        options: the cap and the policy.
        stored: what an earlier worker stored of it.
        traced_prompts: prompt key -> traces of it so far.
        counters: a policy that fails is counted here.

    Returns:
        Rows, each with its reason and its probability over the whole step.
    """
    if stored.is_summarised:
        return _stored_choice(step, stored.chosen)
    candidates = np.flatnonzero(~step.given_up)
    request = SelectionRequest(
        ledger.take(candidates),
        options.max_traces - stored.n_traced,
        options.seed,
        traced_prompts,
        step.key.step,
        step.key.split,
    )
    try:
        chosen = choose(options.policy(step.key.split), request)
    except Exception as error:  # noqa: BLE001  a caller's policy may fail; the first rows are taken instead
        Warnings(counters).count("selection_errors", f"the first rows are taken instead: {error!r}")
        chosen = choose(policy_named("first"), request)
    kept = step.kept_probability
    chosen = [
        replace(item, row=int(candidates[item.row]), probability=item.probability * kept) for item in chosen
    ]
    if set(stored.chosen) - {step.batch.uid(item.row) for item in chosen}:
        return _stored_choice(step, stored.chosen)
    return chosen


def _stored_choice(step: ClosedStep, stored: Mapping[str, StoredRow]) -> list[Selected]:
    rows = {step.batch.uid(row): row for row in range(step.batch.n_rows)}
    chosen = [
        Selected(rows[uid], known.selected_by, known.probability)
        for uid, known in stored.items()
        if uid in rows
    ]
    return sorted(chosen, key=lambda item: item.row)
