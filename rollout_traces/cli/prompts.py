"""`rollout-traces prompts`: the prompts of a run, or one of them over steps, splits and runs."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, cast

import typer

from rollout_traces.cli import options
from rollout_traces.cli.printing import print_fields, print_rows
from rollout_traces.model.text import counted, step_range

OF_PROMPTS = {
    "prompt key": "prompt_key",
    **{name: name for name in ("source", "visits", "rollouts", "solved", "tried")},
    "reward": "mean_reward",
    **{name: name for name in ("trend", "spread", "wasted", "prompt")},
}
"""Columns of the table of prompts: heading, field."""
OF_VISITS = {
    **{name: name for name in ("run", "split", "step", "rollouts", "solved", "tried")},
    "mean reward": "mean_reward",
    "tokens": "n_sampled",
    "stopped": "stop_reasons",
    "kept": "ids",
}
SHOWN_IDS = 3


def prompts(
    run: str | None = None,
    *,
    source: options.From,
    key: str | None = None,
    sort: Annotated[str, typer.Option("--sort", "-s")] = "solved",
    split: options.OneSplit = "rollout",
    steps: str | None = None,
    limit: options.Limit = options.SHOWN,
    as_json: options.AsJson = False,
) -> None:
    """List prompts by how often they are solved, by its trend, by variance or by waste.

    Example: rollout-traces prompts my-run --sort waste

    Args:
        run: A run; all by default.
        key: One prompt's key: all its rollouts over time.
        sort: solved, easiest, trend, variance, waste, visits or tokens.
        steps: Steps, such as 10:20.
        limit: Most prompts.
    """
    from rollout_traces.analysis import Selection, list_prompts, prompt_over_time
    from rollout_traces.analysis.prompts import Order

    store = source.open()
    name = options.run_name(store, run) if run is not None else None
    if key is not None:
        visits = prompt_over_time(store.table(), key, runs=[name] if name else [])
        if as_json:
            print_rows([asdict(visit) for visit in visits])
            return
        shown = [replace(visit, ids=tuple(map(store.uid, visit.ids[:SHOWN_IDS]))) for visit in visits]
        print_fields(shown, OF_VISITS, title=key)
        return
    which = Selection(name, split, step_range(steps))
    found = list_prompts(store.table(), which, order=cast(Order, sort), limit=limit)
    if as_json:
        print_rows([asdict(p) for p in found.prompts], total=found.total, keyless=found.keyless)
        return
    print_fields(found.prompts, OF_PROMPTS, title=f"{len(found.prompts)} of {found.total} prompts")
    if found.keyless:
        typer.echo(f"without a prompt key: {counted(found.keyless, 'rollout')}")
