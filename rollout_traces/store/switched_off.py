"""What a run does not compute, and what it lacks for it, as its latest step summaries say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rollout_traces.store.store import Store

What = Literal["flags_off", "metrics_off"]


@dataclass(frozen=True)
class SwitchedOff:
    """What is off in one split of a run.

    Attributes:
        run: the run's name.
        split: `rollout` or `eval-rollout`.
        text: names and what they lack, as one sentence; empty when nothing is off, None when the split
            has no step summary that could say.
    """

    run: str
    split: str
    text: str | None


def switched_off(store: Store, what: What, *, runs: int = 5) -> Iterator[SwitchedOff]:
    """Reads the step summary of the latest step of each split.

    Args:
        store: the project.
        what: `flags_off` or `metrics_off`.
        runs: how many of the latest runs are looked at.
    """
    for run in store.runs()[:runs]:
        for split in store.splits(run.name):
            yield SwitchedOff(run.name, split, off_in(store, run.name, split, what))


def off_in(store: Store, run: str, split: str, what: What) -> str | None:
    """What is off in one split; None when no step summary can say."""
    digests = [step.digest_id for step in store.steps(run, split) if step.digest_id]
    return (store.record(digests[-1]).metadata.get(what) or "") if digests else None
