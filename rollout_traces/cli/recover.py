"""`rollout-traces recover`: stores what killed trainers left behind."""

from __future__ import annotations

from typing import Annotated

import typer

from rollout_traces.cli.tables import print_table


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("recover")(recover_spools)


def recover_spools(
    project: Annotated[str | None, typer.Option("--project", "-p", help="One project only.")] = None,
    look: Annotated[bool, typer.Option("--list", help="Only say what waits.")] = False,
) -> None:
    """Store what was handed over and never stored because its trainer was killed.

    Example: rollout-traces recover -p gsm8k
    """
    from rollout_traces.worker.recovery import find_left, recover

    found = [left for left in find_left(project) if left.n_records]
    if not found:
        typer.echo("Nothing waits on this node.")
        return
    print_table(
        ("project", "run", "waiting", "state", "folder"),
        [
            (
                left.project,
                left.run_name,
                left.n_records,
                "its trainer or worker is alive" if left.in_use else "left behind",
                str(left.folder.path),
            )
            for left in found
        ],
    )
    if look:
        return
    failed = 0
    for left in found:
        if left.in_use:
            continue
        still = recover(left)
        failed += still > 0
        outcome = "all stored" if not still else f"{still} records still wait, see {left.folder.log}"
        typer.echo(f"{left.project}/{left.run_name}: {outcome}")
    if failed:
        raise typer.Exit(1)
