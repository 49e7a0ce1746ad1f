"""What healthy runs of real conversations wear, which alerts they raise, and which incidents they have.

    python -m tests.alarms.healthy_runs [--steps 100] [--project NAME]

Each step of a run draws tasks of the conversations of the data folder (made-up ones where it is missing) and hands
over all trials of each, as tokens of a real tokenizer with logprobs that agree; every rollout is decoded and flagged
as the worker does it. One line a tokenizer: rollouts, those with a flag of severity error, those that carry any
flag, those that wear one, properties of the run, alerts, incidents. With `--project` a Trackio project is read instead.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollout_traces.alarms.alerts import alerts_of, incidents_of
from rollout_traces.alarms.figures import figures_of
from rollout_traces.alarms.online import Trail, judge
from rollout_traces.alarms.worn import rises, usual_flags, worn
from rollout_traces.analysis import diagnose
from rollout_traces.analysis.selections import RunScope
from rollout_traces.decode import TranscriptDecoder
from rollout_traces.flags import REGISTRY
from rollout_traces.ledger.build import build_ledger
from rollout_traces.ledger.columns import Ledger
from rollout_traces.model.transcript import Alert
from tests.analysis.builders import table
from tests.decode.real_tokenizers import load_tokenizer
from tests.flags.planted import Fault
from tests.flags.steps import Step, desk_conversations, find_flags, healthy_step

TOKENIZERS = ("qwen2_5", "qwen3", "llama3_2")
TASKS, TRIALS = 8, 4
ERRORS = {name for name, spec in REGISTRY.items() if spec.severity == "error"}


@dataclass(frozen=True)
class Looked:
    """What a reader sees of a run.

    Attributes:
        n_rows: its rollouts.
        n_errors: those that carry a flag of severity error.
        n_flagged: those that carry any flag.
        n_wearing: those that wear one.
        usual: properties of the run and their shares.
        alerts: step and sentence of each that was raised while the run went.
        incidents: names of those that the whole run shows.
    """

    n_rows: int
    n_errors: int
    n_flagged: int
    n_wearing: int
    usual: dict[str, float]
    alerts: tuple[tuple[int, str], ...]
    incidents: tuple[str, ...]

    @property
    def share(self) -> float:
        """Share of the rows that wear anything."""
        return self.n_wearing / self.n_rows

    def line(self, name: str) -> str:
        """The run in a line."""
        usual = ", ".join(f"{flag} {share:.1%}" for flag, share in self.usual.items())
        return (
            f"{name:14} {self.n_rows:6} rows, {self.n_errors} with an error, {self.n_flagged / self.n_rows:6.1%} "
            f"carry a flag, {self.share:5.1%} wear one; usual: {usual or 'none'}; "
            f"alerts: {self.alerts or 'none'}; incidents: {', '.join(self.incidents) or 'none'}"
        )


def look(ledgers: Iterable[tuple[int, Ledger]]) -> Looked:
    """Reads a run's steps as worker and inspector do.

    Args:
        ledgers: step and ledger, ascending.
    """
    known = list(ledgers)
    rows = [
        {**ledger.row(b), "step": step, "id": f"{step}-{b}", "traced": ledger.get("trace_uid")[b] is not None}
        for step, ledger in known
        for b in range(ledger.n_rows)
    ]
    scope = RunScope(table(rows), "run", "rollout")
    usual = usual_flags(scope)
    risen = rises(scope, usual)
    flagged = [(row["step"], row.get("source"), tuple(row.get("flags") or ())) for row in rows]
    return Looked(
        n_rows=len(rows),
        n_errors=sum(bool(ERRORS & set(flags)) for _, _, flags in flagged),
        n_flagged=sum(bool(flags) for _, _, flags in flagged),
        n_wearing=sum(bool(worn(flags, step, source, usual, risen).names) for step, source, flags in flagged),
        usual={name: each.share for name, each in usual.items()},
        alerts=tuple((step, alert.text) for step, found in alerts_while_running(known) for alert in found),
        incidents=tuple(each.name for each in incidents_of(diagnose(scope.relations, "run"), {})),
    )


def alerts_while_running(ledgers: Iterable[tuple[int, Ledger]]) -> Iterable[tuple[int, list[Alert]]]:
    """The alerts of each step of a run."""
    trail = Trail()
    for step, ledger in ledgers:
        judged = judge(trail, figures_of(ledger, step, trail.names))
        trail = judged.trail
        yield step, alerts_of(judged, step, ledger.n_rows, "rollout", {})


def real_run(tokenizer: Any, decoder: TranscriptDecoder, n_steps: int) -> Iterable[tuple[int, Ledger]]:
    """The ledgers of a healthy run, every rollout kept.

    Args:
        tokenizer: what the conversations are written in.
        decoder: its decoder.
        n_steps: steps.
    """
    conversations = desk_conversations()
    whole = healthy_step(tokenizer, conversations, "desk")
    n_tasks = len(whole.rows) // TRIALS
    for step in range(n_steps):
        rng = np.random.default_rng(step)
        tasks = rng.permutation(n_tasks)[:TASKS]
        rows = [whole.rows[task * TRIALS + trial] for task in tasks for trial in range(TRIALS)]
        yield step, flagged_ledger(with_fresh_logprobs(Step(tokenizer, rows, TRIALS, "desk"), rng), decoder)


def with_fresh_logprobs(step: Step, rng: np.random.Generator) -> Step:
    """The step's rows as sampled again: the same tokens, other logprobs."""
    fresh = step.copy()
    for row in fresh.rows:
        n = len(row)
        logprobs = np.where(row.sampled, -rng.exponential(0.35, n), 0).astype(np.float32)
        row.tracks["logprobs"] = logprobs
        row.tracks["prox_logprobs"] = np.where(row.sampled, logprobs + rng.normal(0, 0.01, n), 0).astype(
            np.float32
        )
    return fresh


def flagged_ledger(step: Step, decoder: TranscriptDecoder, fault: Fault | None = None) -> Ledger:
    """The ledger of a step whose rows were all kept, with the flags that the worker would find.

    Args:
        step: the rows.
        decoder: their tokenizer's.
        fault: what was planted; its thresholds and what it leaves out of the hand-over hold.
    """
    batch = step.batch(without=fault.without if fault else ())
    found = find_flags(batch, decoder, step.tokenizer, parameters=fault.parameters if fault else None)
    assert not found.errors.total, found.errors.first
    ledger = build_ledger(batch)
    n = batch.n_rows
    flags, uids, chosen = np.empty(n, object), np.empty(n, object), np.full(n, "random", object)
    for row in range(n):
        flags[row] = tuple(dict.fromkeys(flag.name for flag in found.flags[row]))
        uids[row] = f"t{row}"
    decoded = {"flags": flags, "trace_uid": uids, "selected_by": chosen}
    return Ledger({**ledger.columns, **decoded})


def stored_run(project: str, split: str = "rollout") -> Iterable[tuple[int, Ledger]]:
    """The ledgers of a project's first run."""
    import rollout_traces as rt
    from rollout_traces.store.step_metrics import by_step

    store = rt.open_store(project=project)
    return by_step(store.ledger(store.runs()[0].id, split))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--project")
    options = parser.parse_args(arguments)
    if options.project:
        for split in ("rollout", "eval-rollout"):
            print(look(stored_run(options.project, split)).line(split))
        return
    for name in TOKENIZERS:
        tokenizer = load_tokenizer(name)
        print(look(real_run(tokenizer, TranscriptDecoder(tokenizer), options.steps)).line(name), flush=True)


if __name__ == "__main__":
    main()
