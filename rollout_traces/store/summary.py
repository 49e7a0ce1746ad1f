"""What is known of steps at a glance: a line each with metrics and flags, and what their run does not compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rollout_traces.store.scope import EVERYTHING, Steps
from rollout_traces.store.step_metrics import step_metrics
from rollout_traces.store.store import Store

SHOWN = (
    "reward/mean",
    "reward/std",
    "group/tie_share",
    "stop/length_share",
    "tokens/completion/mean",
    "staleness/max",
)
"""The metrics of a step that are shown, by key without the split."""


What = Literal["flags_off", "metrics_off"]


@dataclass(frozen=True)
class StepFigures:
    """A step of a split in figures.

    Attributes:
        run: the run's name.
        split: the split.
        step: the step.
        rollouts: rollouts of the step; the traced ones where it has no ledger.
        traced: rollouts kept as traces.
        metrics: key of `SHOWN` -> its value, where the step has it: as it was logged, else from the ledger.
        flags: how many rollouts have each flag, most frequent first.
    """

    run: str
    split: str
    step: int
    rollouts: int
    traced: int
    metrics: Mapping[str, float]
    flags: Mapping[str, int]

    def as_dict(self) -> dict[str, Any]:
        """One flat row, metrics under their keys, None where unknown."""
        place = {"run": self.run, "split": self.split, "step": self.step}
        counts = {"rollouts": self.rollouts, "traced": self.traced}
        return place | counts | {key: self.metrics.get(key) for key in SHOWN} | {"flags": dict(self.flags)}


def summarise_steps(
    store: Store, run: str | None = None, split: str | None = None, steps: Steps = EVERYTHING
) -> list[StepFigures]:
    """Every step of a run, or of all runs; rows that a later attempt superseded are left out.

    Args:
        store: the store.
        run: id or name of a run.
        split: a split.
        steps: first and last step, both included.
    """
    figures = []
    for info in [store.run(run)] if run is not None else store.runs():
        for name in [split] if split is not None else info.splits:
            rows = _counts(store, info.id, name, steps)
            metrics = step_metrics(store, info.id, name, SHOWN, steps)
            figures += [
                StepFigures(
                    info.name, name, step, n_rows, traced, metrics.get(step, {}), dict(flags.most_common())
                )
                for step, (n_rows, traced, flags) in sorted(rows.items())
            ]
    return figures


def _counts(store: Store, run: str, split: str, steps: Steps) -> dict[int, tuple[int, int, Counter[str]]]:
    """Step -> its rollouts, the traced ones among them, and how many carry each flag."""
    columns = ["step", "traced", "flags", "superseded"]
    found: dict[int, tuple[int, int, Counter[str]]] = {}
    table = store.rollouts(columns=columns, runs=[run], splits=[split], steps=steps)
    for step, traced, flags, superseded in zip(*(table[name].to_pylist() for name in columns), strict=True):
        if superseded:
            continue
        n_rows, n_traced, counts = found.get(step, (0, 0, Counter()))
        counts.update(flags if isinstance(flags, list) else ())
        found[step] = (n_rows + 1, n_traced + bool(traced), counts)
    return found


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


def notes_in(store: Store, run: str, split: str, step: int) -> list[str]:
    """What a step's summary notes of what was put right, or could not be understood."""
    digest = next((info.digest_id for info in store.steps(run, split) if info.step == step), None)
    found = store.record(digest).metadata.get("notes") if digest else None
    return [note for note in found if isinstance(note, str)] if isinstance(found, list) else []
