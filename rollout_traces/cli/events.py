"""`rollout-traces events`: a run as a timeline."""

from __future__ import annotations

from dataclasses import asdict

import typer

from rollout_traces.cli import options
from rollout_traces.cli.printing import print_rows, sentence


def events(
    run: options.OneRun = None,
    *,
    source: options.From,
    split: options.OneSplit = "rollout",
    as_json: options.AsJson = False,
) -> None:
    """List what happened in a run: settings that changed, first and last seen, change points, attempts, gaps.

    Example: rollout-traces events my-run
    """
    from rollout_traces.analysis import events as timeline

    store = source.open()
    name = options.run_name(store, run)
    from rollout_traces.analysis.runs import settings_changed

    before, changed = settings_changed(store, name)
    found = timeline(store.table(), name, split, before=before, changed=changed)
    if as_json:
        print_rows([asdict(event) for event in found])
    elif not found:
        typer.echo("nothing happened")
    for event in found if not as_json else ():
        until = f" to {event.last}" if event.last is not None and event.last != event.step else ""
        typer.echo(f"step {event.step}{until}  {event.kind}: {sentence(event.sentence)}")
