"""`rollout-traces recover`: stores what killed trainers left behind."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from rollout_traces.cli.options import nothing_waits
from rollout_traces.cli.printing import print_table
from rollout_traces.model.text import harmless

if TYPE_CHECKING:
    from rollout_traces.worker.recovery import Left


def recover(
    *,
    project: Annotated[str | None, typer.Option("--project", "-p")] = None,
    look: Annotated[bool, typer.Option("--list")] = False,
    remote: list[str] | None = None,
    all_rows_folder: list[str] | None = None,
) -> None:
    """Store what was handed over and never stored because its trainer was killed.

    What goes to a server or a Space is sent only where you name it: your write token goes along.

    Example: rollout-traces recover -p gsm8k

    Args:
        project: One project only.
        look: Only say what waits.
        remote: Also send what goes to this server or Space; asked about otherwise. Repeatable.
        all_rows_folder: Also write files of all rows to this folder, where a run was to. Repeatable.
    """
    from rollout_traces.worker.main import NamedTargets
    from rollout_traces.worker.recovery import find_left, not_all_stored
    from rollout_traces.worker.recovery import recover as store_again

    found = [left for left in find_left(project) if left.n_records]
    if not found:
        hurt = not_all_stored(project)
        for sentence in hurt or [nothing_waits(project)]:
            typer.echo(harmless(sentence))
        return
    print_table(
        ("project", "run", "waiting", "goes to", "state", "folder"),
        [
            (
                left.project,
                left.run_name,
                left.n_records,
                left.manifest.remote or "this machine",
                "its trainer or worker is alive" if left.in_use else "left behind",
                str(left.folder.path),
            )
            for left in found
        ],
    )
    if look:
        return
    failed = 0
    named = NamedTargets(tuple(remote or ()), tuple(all_rows_folder or ()))
    for left in found:
        if left.in_use:
            continue
        if not named.has_remote(left.manifest) and not _is_confirmed(left):
            said = f"{left.project}/{left.run_name}: not sent. To send it: --remote {left.manifest.remote}"
            typer.echo(harmless(said))
            failed += 1
            continue
        remotes = (left.manifest.remote,) if left.manifest.remote else ()
        still = store_again(left, NamedTargets(remotes, named.folders))
        failed += still > 0
        account = left.account
        failed += account.is_hurt and not still
        outcome = f"{account}, see {left.folder.log}" if still or account.is_hurt else "all stored"
        typer.echo(harmless(f"{left.project}/{left.run_name}: {outcome}"))
    if failed:
        raise typer.Exit(1)


def _is_confirmed(left: Left) -> bool:
    """Asks whether a run goes where its manifest says; no, where nobody is there to answer."""
    if not sys.stdin.isatty():
        return False
    question = f"Send {left.n_records} records of {left.project}/{left.run_name} to {left.manifest.remote}?"
    return typer.confirm(harmless(question), default=False)
