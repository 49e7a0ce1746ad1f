"""`rollout-traces lanes`: where a step's time went, and which rollouts held it up."""

from __future__ import annotations

from contextlib import closing

import typer

from rollout_traces.cli import options
from rollout_traces.cli.printing import print_json, print_table
from rollout_traces.errors import StoreError
from rollout_traces.model.text import duration
from rollout_traces.model.units import MS


def lanes(
    run: options.OneRun = None,
    *,
    source: options.From,
    step: int | None = None,
    split: options.OneSplit = "rollout",
    by: str = "",
    as_json: options.AsJson = False,
) -> None:
    """Show where a step's time went: how long each engine worked and was idle, and which rollouts hold the step up.

    Example: rollout-traces lanes my-run --step 12

    Args:
        step: The step; the newest by default.
        by: A lane for each engine, source or rollout; the first that is known by default.
    """
    from rollout_traces.analysis.in_words import percent
    from rollout_traces.inspector.pages.lanes import step_time
    from rollout_traces.inspector.workspace import SplitView, Workspace, as_plain

    store = source.open()
    name = options.run_name(store, run)
    steps = [info.step for info in store.steps(name, split)]
    if not steps:
        raise StoreError(f"{name} has no rollouts in {split}.")
    options.check_step(store, name, split, step)
    reading = Workspace(server_url=source.server_url, space=source.space, projects=(store.project,))
    with closing(reading) as workspace:
        workspace.refresh(store.project)
        view = SplitView(workspace, store.project, name, split)
        found = step_time(view, steps[-1] if step is None else step, by)
    if as_json:
        print_json(as_plain(found))
        return
    rows = [
        [lane.name, lane.n_rollouts, lane.n_spans, duration(lane.busy), percent(lane.idle)]
        for lane in found.lanes
    ]
    title = f"{name}, step {found.step}: {duration(found.ms / MS)}, {found.n_timed} of {found.n_rows} rollouts timed"
    if found.n_timed:
        print_table([found.by, "rollouts", "spans", "busy", "idle"], rows, title=title)
    else:
        typer.secho(title, bold=True)
    for phase in found.phases:
        typer.echo(f"{phase.name} of step {phase.step}: {duration((phase.end - phase.start) / MS)}")
    if found.tail is not None:
        typer.echo(f'{found.tail.text}\n  rollout-traces list {name} --all --where "{found.tail.where}"')
    for text in (*found.said, *found.unobserved):
        typer.echo(text)
