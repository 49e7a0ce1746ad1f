"""Which alerts a fault raises that a run's rollouts get at a step and keep.

    python -m tests.alarms.one_cause [flag ...]

Each fault of `tests.flags.planted` is planted in most rows of healthy steps of 24 rollouts. The run has 25 healthy
steps and 6 faulty ones. One line a fault: the steps and sentences of its alerts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from rollout_traces.decode import TranscriptDecoder
from rollout_traces.ledger.columns import Ledger
from rollout_traces.model.transcript import Alert
from tests.alarms.healthy_runs import alerts_while_running, flagged_ledger
from tests.flags.planted import GROUP, ROW, Fault, Planted, faults_for
from tests.flags.steps import Step, healthy_step, made_up_conversations
from tests.generator import tiny_tokenizer

N_ROWS = 24
HEALTHY, FAULTY = 25, 6


def in_most_rows(fault: Fault, healthy: Step) -> Step:
    """A copy of a step with a fault in three rows of each group; in all that it changes, where it changes several."""
    step = healthy.copy()
    for first in range(0, len(step.rows), len(GROUP)):
        for at in range(3):
            group = [first + (at + place - (ROW - GROUP[0])) % len(GROUP) for place in range(len(GROUP))]
            others = [row for row in range(len(step.rows)) if row not in group]
            order = [*others[: GROUP[0]], *group, *others[GROUP[0] :]]
            part = Step(step.tokenizer, [step.rows[row] for row in order], step.group_size, step.origin)
            planted = fault.plant(part)
            for place, row in enumerate(order):
                step.rows[row] = part.rows[place]
            step.group_size = part.group_size
            if len(planted.rows) == len(step.rows):
                return step
            if planted.rows == GROUP:
                break
    return step


@lru_cache(32)
def _before(
    healthy: Step,
    decoder: TranscriptDecoder,
    without: tuple[str, ...],
    parameters: tuple[tuple[str, Any], ...],
) -> Ledger:
    looked_for = Fault("", "", lambda step: Planted(), without=without, parameters=dict(parameters))
    return flagged_ledger(healthy, decoder, looked_for)


def alerts_of_run(fault: Fault, healthy: Step, decoder: TranscriptDecoder) -> list[tuple[int, Alert]]:
    """The alerts of a run that a fault comes to, each with its step."""
    before = _before(healthy, decoder, fault.without, tuple(fault.parameters.items()))
    after = flagged_ledger(in_most_rows(fault, healthy), decoder, fault)
    steps = enumerate([before] * HEALTHY + [after] * FAULTY)
    return [(step, alert) for step, found in alerts_while_running(steps) for alert in found]


def of_all_faults(names: Sequence[str] = ()) -> Iterator[tuple[Fault, list[tuple[int, Alert]]]]:
    """Each fault, and what it raises."""
    tokenizer = tiny_tokenizer("qwen3")
    decoder = TranscriptDecoder(tokenizer)
    healthy = healthy_step(tokenizer, made_up_conversations(N_ROWS), "made up")
    for fault in faults_for(tokenizer):
        if not names or fault.flag in names:
            yield fault, alerts_of_run(fault, healthy, decoder)


if __name__ == "__main__":
    for fault, raised in of_all_faults(sys.argv[1:]):
        said = "; ".join(f"{step} {alert.level} {alert.text}" for step, alert in raised)
        print(f"{fault.flag}: {fault.what}: {said or 'NONE'}", flush=True)
