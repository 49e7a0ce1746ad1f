"""`rollout-traces flips`: which prompts two evaluations solved differently."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from rollout_traces.cli import options
from rollout_traces.cli.printing import cell, p_text, print_json, print_table
from rollout_traces.errors import ConfigError
from rollout_traces.model.text import step_range

if TYPE_CHECKING:
    from rollout_traces.analysis import Flip, Flips


SAID = {"unsure": "not sure", "kept": "solved as often", "never": "solved in neither"}
"""What outcomes are called here, as on the page Flips."""


def flips(
    run: options.OneRun = None,
    *,
    source: options.From,
    steps: str | None = None,
    against: str | None = None,
    split: str = "eval-rollout",
    threshold: float | None = None,
    limit: options.Limit = options.SHOWN,
    as_json: options.AsJson = False,
) -> None:
    """Compare two evaluations prompt by prompt: lost, won, not sure, solved as often or in neither.

    Example: rollout-traces flips my-run --steps 40:80

    Args:
        steps: Two steps, such as 40:80; the first and the last by default.
        against: Another run, at its last shared step.
        split: The evaluation split.
        threshold: Solved from this reward on.
        limit: Most prompts shown.
    """
    from rollout_traces.analysis import Selection
    from rollout_traces.analysis import flips as match
    from rollout_traces.store.step_metrics import matched_steps

    store = source.open()
    name = options.run_name(store, run)
    other = name if against is None else store.run(against).name
    asked = step_range(steps)
    first, second, here, there = matched_steps(store, name, other, split, *asked)
    if steps is None and set(here).isdisjoint(there):
        raise ConfigError(f"{name} and {other} share no step of {split}.")
    a, b = Selection(name, split, (first, first)), Selection(other, split, (second, second))
    found = match(store.table(), a, b, threshold=threshold)
    if as_json:
        print_json(asdict(found))
    else:
        print_flips(found, limit)


def print_flips(found: Flips, limit: int) -> None:
    """Prints scores, counts and the prompts that flipped."""
    typer.secho(f"{found.a} → {found.b}, solved by {found.solved_by}", bold=True)
    typer.echo(
        f"score {found.score_a:.3f} ± {found.error_a:.3f} → {found.score_b:.3f} ± {found.error_b:.3f}; difference "
        f"{found.difference:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
        + (f", McNemar p {p_text(found.p)}" if found.p is not None else "")
    )
    typer.echo(", ".join(f"{n:,} {SAID.get(name, name)}" for name, n in found.counts.items() if n))
    for remark in found.remarks:
        typer.echo(remark)
    rows = [_row(each) for each in found.prompts if each.outcome in ("lost", "won")][:limit]
    if rows:
        print_table(["", "prompt", "A", "B", "what differs", "asks"], rows)


def _row(flip: Flip) -> list[str | None]:
    solved = (f"{flip.solved_a}/{flip.trials_a}", f"{flip.solved_b}/{flip.trials_b}")
    differs = "; ".join(f"{name}: {_short(a)} → {_short(b)}" for name, (a, b) in flip.differs.items())
    return [flip.outcome, flip.prompt_key, *solved, differs, flip.prompt]


def _short(value: object) -> str:
    return cell(value) or ("unknown" if value is None else "none")
