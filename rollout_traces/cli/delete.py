"""`rollout-traces delete`: takes rollouts out of a project of this machine."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.filesize import decimal

from rollout_traces.cli import options
from rollout_traces.cli.printing import print_json, print_table
from rollout_traces.errors import ConfigError, StoreError
from rollout_traces.model.text import counted, step_range
from rollout_traces.model.units import GIGABYTE, MEGABYTE

if TYPE_CHECKING:
    from rollout_traces.store import Store
    from rollout_traces.store.removal import RemovalPlan
    from rollout_traces.worker.recovery import Left

SHOWN_PLACES = 40
"""Steps that are listed one by one."""
_AGE = re.compile(r"(\d{1,6})\s*([hdw])\Z")
_UNITS = {"h": "hours", "d": "days", "w": "weeks"}


def delete(
    run: str | None = None,
    *,
    project: options.Project = None,
    split: options.Split = None,
    steps: options.StepRange = None,
    where: options.Where = "",
    prompt: str | None = None,
    rollout: str | None = None,
    older_than: str | None = None,
    keep_gb: float | None = None,
    yes: bool = False,
    as_json: options.AsJson = False,
) -> None:
    """Delete a run, steps, a prompt or a rollout; says what would go, and goes ahead with --yes alone.

    Takes them out of Trackio's database on this machine, with their images, labels and notes, the spools of
    whole runs, the index and side tables. Copies on servers, on Spaces and in exports stay. Logged scalars and
    media go with whole runs alone.

    Example: rollout-traces delete run-001 -p gsm8k --steps :100

    Args:
        run: A run: its name or id, or the beginning of either. Without one, an option has to name what goes.
        project: Trackio project, or where an export lies: a folder, s3://…, hf://datasets/…; not needed where there is
            only one.
        split: rollout or eval-rollout; all by default.
        steps: One step, or a range: 12, 10:20, 10:, :20.
        where: Filter, such as "reward < 0.5 and flags has 'truncated'".
        prompt: Every rollout of this prompt_key.
        rollout: One rollout, by its uid or trace id.
        older_than: Retention: steps last written longer ago, such as 30d, 12h, 8w.
        keep_gb: Retention: the oldest steps, until traces take no more than this.
        yes: Delete. Without it, only says what would go.
    """
    selected = run is not None or split is not None or steps is not None or where or prompt or rollout
    retained = older_than is not None or keep_gb is not None
    if bool(selected) == retained:
        both = "seen both; --older-than and --keep-gb take whole steps of all runs. " if retained else ""
        raise ConfigError(
            f"{both}Name what goes: a run, --split, --steps, --where, --prompt or --rollout; or else --older-than"
            " or --keep-gb."
        )
    from rollout_traces.store.removal import plan_removal
    from rollout_traces.worker.recovery import find_left

    store = options.From(project).open()
    if retained:
        plan = _retention(store, older_than, keep_gb)
    else:
        runs, splits = (None if one is None else [one] for one in (run, split))
        condition = _condition(where, prompt, rollout)
        plan = plan_removal(store, condition, runs, splits, step_range(steps))
    spooled = [left for left in find_left(store.project) if left.manifest.run_id in plan.run_ids]
    _say(plan, spooled, yes, as_json)
    if plan.is_empty or not yes:
        return
    _carry_out(store, plan, spooled)
    if not as_json:
        typer.echo("Deleted.")


def _condition(where: str, prompt: str | None, rollout: str | None) -> str:
    from rollout_traces.store.query.nodes import literal

    parts = [f"({where})"] if where else []
    if prompt is not None:
        parts.append(f"prompt_key = {literal(prompt)}")
    if rollout is not None:
        parts.append(f"(uid = {literal(rollout)} or id = {literal(rollout)})")
    return " and ".join(parts)


def _retention(store: Store, older_than: str | None, keep_gb: float | None) -> RemovalPlan:
    from rollout_traces.store.removal import plan_retention

    age = None
    if older_than is not None:
        found = _AGE.match(older_than)
        if found is None:
            raise ConfigError(f"--older-than {older_than!r}: expected such as 12h, 30d or 8w.")
        age = timedelta(**{_UNITS[found[2]]: int(found[1])})
    if keep_gb is not None and not keep_gb >= 0:
        raise ConfigError(f"--keep-gb {keep_gb}: expected 0 or more.")
    return plan_retention(store, age, None if keep_gb is None else int(keep_gb * GIGABYTE))


def _say(plan: RemovalPlan, spooled: list[Left], yes: bool, as_json: bool) -> None:
    waiting = sum(left.n_records for left in spooled)
    summary = {
        "runs": sorted(plan.runs.values()),
        "rollouts": plan.rollouts,
        "traced": plan.traced,
        "traces_and_summaries": len(plan.traces),
        "ledgers_rewritten": len(plan.ledger_rows),
        "steps": len(plan.places),
        "megabytes": round(plan.text_bytes / MEGABYTE, 3),
        "labels": sum(plan.labels.values()),
        "media_files": len(plan.media),
        "waiting_in_spools": waiting,
        "deleted": yes and not plan.is_empty,
    }
    if as_json:
        print_json(summary)
        return
    if plan.is_empty:
        typer.echo("Nothing matches; nothing goes.")
        return
    rows = [[*place, n] for place, n in plan.places.items()]
    print_table(["run", "split", "step", "rollouts"], rows[:SHOWN_PLACES], title=f"project {plan.project}")
    if len(rows) > SHOWN_PLACES:
        typer.echo(f"… and {counted(len(rows) - SHOWN_PLACES, 'more step')}")
    typer.echo(
        f"Rollouts: {plan.rollouts:,}, {plan.traced:,} of them traced."
        f" Traces and step summaries: {len(plan.traces):,}, {decimal(plan.text_bytes)}."
        f" Ledgers that lose rows: {len(plan.ledger_rows):,}."
    )
    for name in sorted(plan.runs.values()):
        typer.echo(f"Run {name} goes as a whole, with its scalars, configuration and alerts.")
    if plan.labels:
        typer.echo(
            f"{sum(plan.labels.values())} labels and notes on {counted(len(plan.labels), 'rollout')} go."
        )
    if plan.media:
        typer.echo(f"{len(plan.media)} media files go.")
    if waiting:
        goes = sum(left.n_records for left in spooled if left.manifest.run_id in plan.runs)
        typer.echo(f"{waiting} records wait in spools of these runs; {goes} of them go with whole runs.")
    if not yes:
        typer.echo("Nothing was deleted. Go ahead with --yes.")


def _carry_out(store: Store, plan: RemovalPlan, spooled: list[Left]) -> None:
    from rollout_traces.sink import folder as trackio_folder
    from rollout_traces.store.columns import remove_rows

    for left in spooled:
        if left.in_use:
            raise StoreError(f"run {left.run_name!r} is being logged. Stop it first; nothing was deleted.")
        if left.n_records and left.manifest.run_id not in plan.runs:
            raise StoreError(
                f"run {left.run_name!r}: {left.n_records} records wait in {left.folder.path} and would come back."
                " `rollout-traces recover` stores them; nothing was deleted."
            )
    for left in spooled:
        if left.manifest.run_id in plan.runs:
            left.folder.remove()
    trackio_folder.remove_traces(plan.project, plan.traces, plan.ledger_rows)
    trackio_folder.remove_runs(plan.project, plan.runs)
    failed = trackio_folder.remove_media(plan.media)
    if failed:
        typer.echo(f"{failed} media files could not be deleted.", err=True)
    if not trackio_folder.shrink(plan.project):
        typer.echo("Somebody is writing: the file shrinks at the next deletion.", err=True)
    remove_rows(Path(store.side_folder), plan.traces)
    store.live.forget(plan.runs)
    store.index_anew()
    store.labels.forget(plan.labels.keys())
