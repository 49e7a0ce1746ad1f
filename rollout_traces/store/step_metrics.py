"""The metrics of a run's steps, as they were logged, else computed from the ledger by the functions that logged them; steps
at a glance, and what their run does not compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from rollout_traces.errors import StoreError
from rollout_traces.ledger.columns import NULL_INT, Ledger, any_known
from rollout_traces.settings.run_settings import RunSettings
from rollout_traces.store.asking import EVERYTHING, Steps
from rollout_traces.store.rows import StepInfo
from rollout_traces.store.store import Store
from rollout_traces.trace.conversion import read_details

Metrics = dict[str, float]


def logged_metrics(store: Store, run: str, split: str, keys: Sequence[str]) -> dict[int, Metrics]:
    """Reads what a run logged of its steps.

    Args:
        run: id or name of the run.
        split: `rollout` or `eval-rollout`.
        keys: keys without the split.

    Returns:
        Step -> its values by key; where a step was logged twice, the later value.
    """
    found: dict[int, Metrics] = {}
    series = store.metrics(run)
    for key in keys:
        steps, values = series.get(f"{split}/{key}", ([], []))
        for step, value in zip(steps, values, strict=True):
            found.setdefault(step, {})[key] = value
    return found


def ledger_metrics(ledger: Ledger, split: str, keys: Sequence[str], settings: RunSettings) -> Metrics:
    """A step's metrics as its ledger gives them; those that need the tokens are absent.

    Args:
        ledger: the step's rows. Those that came after it was closed are not looked at, and of several attempts
            at the step the last one is.
        split: `rollout` or `eval-rollout`.
        keys: keys or patterns without the split.
        settings: what the run declares.

    Returns:
        Values by key, without the split.
    """
    from rollout_traces.metrics import rollout_metrics  # what was logged needs none of it

    rows = of_closed_step(ledger)
    # the table has a column for every row as soon as one of them knows it; a step's own ledger does not
    known = Ledger({name: column for name, column in rows.columns.items() if any_known(name, column)})
    found = rollout_metrics(None, known, keys=list(keys), split=split, settings=settings)
    return {key.removeprefix(f"{split}/"): value for key, value in found.items()}


def step_metrics(
    store: Store, run: str, split: str, keys: Sequence[str], steps: Steps = EVERYTHING
) -> dict[int, Metrics]:
    """The metrics of every step, under their own names.

    Args:
        run: id or name of the run.
        split: `rollout` or `eval-rollout`.
        keys: keys without the split.
        steps: first and last step, both included.

    Returns:
        Step -> its values by key. A key that the run logged at some step is what was logged; one that it logs
        at none is computed from the ledger, where that is enough. Steps without a log and a ledger, as other
        tools leave them, are computed from their traces.
    """
    logged = logged_metrics(store, run, split, keys)
    never_logged = [key for key in keys if not any(key in metrics for metrics in logged.values())]
    settings = RunSettings.from_config(store.config(run))
    result = {step: metrics for step, metrics in logged.items() if _between(step, steps)}
    if never_logged:
        for step, rows in by_step(store.ledger_rows(run, split, steps)):
            result[step] = result.get(step, {}) | ledger_metrics(rows, split, never_logged, settings)
    for step, rows in by_step(_of_traces(store, run, split, steps, result)):
        result[step] = ledger_metrics(rows, split, keys, settings)
    return result


def _between(step: int, steps: Steps) -> bool:
    return (steps[0] is None or step >= steps[0]) and (steps[1] is None or step <= steps[1])


def _of_traces(store: Store, run: str, split: str, steps: Steps, known: Container[int]) -> Ledger:
    """The rows of the steps that have neither a log nor a ledger, as their traces give them."""
    missing = [
        info.step for info in store.steps(run, split) if _between(info.step, steps) and info.step not in known
    ]
    if not missing:
        return Ledger({})
    ledger = store.kept_rows(run, split, (min(missing), max(missing)))
    return ledger.take(np.flatnonzero(np.isin(ledger.get("step"), missing)))


def by_step(ledger: Ledger) -> list[tuple[int, Ledger]]:
    """The rows of each step, steps in order."""
    steps = ledger.get("step")
    order = np.argsort(steps, kind="stable")
    edges = np.flatnonzero(np.diff(steps[order])) + 1
    parts = np.split(order, edges) if len(order) else []
    return [(int(steps[rows[0]]), ledger.take(rows)) for rows in parts]


def of_closed_step(ledger: Ledger) -> Ledger:
    """The rows that a step's metrics speak of: none that came late, and those of the last attempt."""
    kept = np.ones(ledger.n_rows, bool)
    if "late" in ledger.columns:
        late = ledger.columns["late"]
        kept &= (late != 1) | (late == NULL_INT)
    if "attempt" in ledger.columns:
        attempts = ledger.columns["attempt"].tolist()
        last = max((attempt for attempt in attempts if attempt is not None), default=None)
        kept &= np.asarray([attempt == last for attempt in attempts], bool)
    return ledger if kept.all() else ledger.take(np.flatnonzero(kept))


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
MOST_RUNS = 5
"""Runs that are looked at for what is off."""


def summarise_steps(
    store: Store, run: str | None = None, split: str | None = None, steps: Steps = EVERYTHING
) -> list[dict[str, Any]]:
    """Every step of a run, or of all runs; rows that a later attempt superseded are left out.

    Args:
        run: id or name of a run.
        steps: first and last step, both included.

    Returns:
        A flat row a step: `run`, `split`, `step`, `rollouts`, `late` (those of them that came after the step was closed,
        which the metrics do not speak of), `traced`, the keys of `SHOWN` (as they were logged, else from the ledger,
        None where unknown), and `flags`: rollouts with each, most frequent first.
    """
    found = []
    for info in [store.run(run)] if run is not None else store.runs():
        for name in [split] if split is not None else info.splits:
            rows = _counts(store, info.id, name, steps)
            metrics = step_metrics(store, info.id, name, SHOWN, steps)
            for step, (counts, flags) in sorted(rows.items()):
                place = {"run": info.name, "split": name, "step": step}
                of_rows = {what: counts[what] for what in ("rollouts", "late", "traced")}
                figures = {key: metrics.get(step, {}).get(key) for key in SHOWN}
                found.append({**place, **of_rows, **figures, "flags": dict(flags.most_common())})
    return found


def _counts(store: Store, run: str, split: str, steps: Steps) -> dict[int, tuple[Counter[str], Counter[str]]]:
    """Step -> its rollouts, the late and the traced ones among them, by these words; and how many carry each flag."""
    columns = ["step", "traced", "late", "flags"]
    found: dict[int, tuple[Counter[str], Counter[str]]] = {}
    table = store.rollouts("not superseded", columns, [run], [split], steps)
    for step, traced, late, flags in zip(*(table[name].to_pylist() for name in columns), strict=True):
        counts, of_flags = found.setdefault(step, (Counter(), Counter()))
        counts.update({"rollouts": 1, "late": int(late), "traced": int(traced)})
        of_flags.update(flags if isinstance(flags, list) else ())
    return found


def steps_of(store: Store, run: str, split: str) -> list[int]:
    """The steps at which a run logged a split.

    Raises:
        StoreError: there is none.
    """
    splits = store.splits(run)
    steps = [info.step for info in store.steps(run, split)] if split in splits else []
    if not steps:
        raise StoreError(
            f"run {run} has no split {split or 'eval-rollout'}; it has {', '.join(splits) or 'no rollouts'}. "
            "Log evaluations with split='eval-rollout' and prompt keys, or name their split."
        )
    return steps


def matched_steps(
    store: Store, run: str, other: str, split: str, first: int | None, second: int | None
) -> tuple[int, int, list[int], list[int]]:
    """The steps at which two evaluations are matched, and all that both runs have.

    Where none is named these are the first and the last of one run, and the last that two runs share.

    Raises:
        StoreError: there is no evaluation, none at a step that is named, or the same on both sides.
    """
    here, there = steps_of(store, run, split), steps_of(store, other, split)
    both = sorted(set(here) & set(there))
    if first is None:
        first = here[0] if other == run else (both or here)[-1]
    if second is None:
        second = (both or there)[-1]
    for name, step, steps in ((run, first, here), (other, second, there)):
        if step not in steps:
            raise StoreError(
                f"{name} has no {split} at step {step}; it has steps {', '.join(map(str, steps))}."
            )
    if other == run and first == second:
        raise StoreError(
            f"{split} has one evaluation chosen on both sides, step {first}. Choose two, or another run."
        )
    return first, second, here, there


def switched_off(store: Store, what: What) -> Iterator[tuple[str, str, str | None]]:
    """Reads the step summary of the latest step of each split of the newest runs.

    Args:
        what: `flags_off` or `metrics_off`.

    Yields:
        A run's name, a split, and what `off_in` says of it.
    """
    for run in store.runs()[-MOST_RUNS:]:
        for split in store.splits(run.name):
            yield run.name, split, off_in(store, run.name, split, what)


def off_in(store: Store, run: str, split: str, what: What) -> str | None:
    """Says what is off in one split, names and what they lack; empty for nothing, None when no step summary can say."""
    digests = [step.digest_id for step in store.steps(run, split) if step.digest_id]
    return (store.record(digests[-1]).metadata.get(what) or "") if digests else None


def notes_in(store: Store, run: str, split: str, step: int) -> list[str]:
    """Reads a step summary's notes on what was put right, or could not be understood."""
    digest = next((info.digest_id for info in store.steps(run, split) if info.step == step), None)
    found = store.record(digest).metadata.get("notes") if digest else None
    return [note for note in found if isinstance(note, str)] if isinstance(found, list) else []


def loss_histograms_in(store: Store, run: str, split: str, info: StepInfo) -> list[str]:
    """Reads the packed histograms of a step's loss tokens: of what its newest attempt closed, and of what came late."""
    if info.digest_id is None:
        return store.source.loss_histograms(store.run(run).id, split, info.step)
    summaries = [store.record(digest) for digest in store.summaries(run, split, info.step)]
    attempt = summaries[-1].metadata.get("attempt")
    of_part = {
        each.metadata.get("late"): each for each in summaries if each.metadata.get("attempt") == attempt
    }
    found = [read_details(each).get("loss_histogram") for each in of_part.values()]
    return [each for each in found if isinstance(each, str)]
