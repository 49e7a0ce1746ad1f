"""`rollout-traces live`: what a run samples now."""

from __future__ import annotations

import typer

from rollout_traces.cli import options
from rollout_traces.cli.printing import print_json, print_table


def live(
    run: str | None = None,
    *,
    source: options.From,
    limit: options.Limit = options.SHOWN,
    as_json: options.AsJson = False,
) -> None:
    """List the rollouts in flight, the silent and the slowest first: stage, turns, tokens, time, last words.

    Example: rollout-traces live my-run

    Args:
        run: A run; the one that was begun last by default.
        limit: Most rollouts shown.
    """
    from rollout_traces.inspector.pages.live import MOST_ROWS, landed_of, said_of
    from rollout_traces.inspector.workspace import as_plain

    store = source.open()
    look = store.live.look(run)
    found = said_of(look, {} if look is None else landed_of(store, look), limit)
    if look is None and run is not None:
        store.run(run)
    if as_json:
        print_json(as_plain(found))
        return
    if look is None:
        typer.echo("Nothing says what is in flight. A training loop says it by `logger.live(...)`.")
        return
    names = ["rollout", "step", "stage", "s", "in stage", "silent", "turns", "tokens", "source", "last words"]
    rows = [
        [
            each.id,
            each.step,
            f"{'was ' if each.fate == 'lost' else ''}{each.stage}{f' {each.detail}' if each.detail else ''}",
            *(round(value, 1) for value in (each.seconds, each.in_stage, each.silent)),
            each.turns,
            each.tokens,
            each.source,
            each.words or each.prompt,
        ]
        for each in found.rollouts
    ]
    ended = f", {found.n_ended} ended" if found.n_ended else ""
    was = f", {found.n_lost} were running" if found.n_lost else ""
    print_table(
        names, rows, title=f"{found.run}: {found.n_running} in flight, {found.n_silent} silent{was}{ended}"
    )
    if found.n_left_out:
        typer.echo(f"{found.n_left_out:,} more: --limit {min(found.n_left_out + len(rows), MOST_ROWS)}")
    for remark in found.remarks:
        typer.echo(remark)
