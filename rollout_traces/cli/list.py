"""`rollout-traces list`: projects, runs, steps, rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollout_traces.cli import options
from rollout_traces.cli.printing import print_rows, print_table
from rollout_traces.errors import ConfigError
from rollout_traces.model.text import listed, words

if TYPE_CHECKING:
    from rollout_traces.store import RowPage, Store

WHAT = ("rollouts", "steps", "columns", "runs", "projects")
TAKEN = {
    "steps": ("--split", "--steps"),
    "columns": ("--all",),
    "runs": (),
    "projects": (),
}
"""Options that choose what is listed, beside `--limit`; of rollouts every one does."""
SHOWN = words("step group sample reward advantage n_sampled n_turns staleness_max stop_reason")
"""Columns of a rollout that are shown where any row knows them."""


def list_(
    which: options.Which,
    what: str | None = None,
    *,
    source: options.From,
    sort: options.Sort = None,
    columns: str | None = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=0)] = None,
    after: str | None = None,
    as_json: options.AsJson = False,
) -> None:
    """List rollouts by any filter and sort, or steps, columns, runs and projects.

    Example: rollout-traces list run-001 -p gsm8k -w "reward < 0.5 and flags has 'truncated'" -s -n_sampled
    Example: rollout-traces list runs

    Args:
        what: rollouts (the default), steps, columns, runs or projects.
        columns: Columns to show, comma separated.
        limit: Most rows; 20 rollouts, and all of anything else, by default.
        after: Cursor of the page before, as it printed it.
    """
    if what is None and which.run in WHAT:
        which, what = options.word_alone(which, what)
    what = what or "rollouts"
    if what not in WHAT:
        raise ConfigError(f"{what!r}; expected {', '.join(WHAT)}.")
    if what in TAKEN:
        _check_taken(what, which, {"--sort": sort, "--columns": columns, "--after": after})
    if what == "projects":
        _projects(limit, as_json)
        return
    store = source.open()
    if which.run is not None:
        store.run(which.run)
    if what in ("steps", "rollouts"):
        options.check_split(store, which)
    if what == "runs":
        _runs(store, which, limit, as_json)
    elif what == "columns":
        _print([asdict(info) for info in store.columns(which.rows)], limit, as_json)
    elif what == "steps":
        _print(_steps(store, which), limit, as_json)
    else:
        names = _named(store, which, columns)
        page = store.search(
            **which.asked(), order_by=sort, limit=options.SHOWN if limit is None else limit, after=after
        )
        if not page.total and not as_json and (n := store.search(rows=which.rows, limit=1).total):
            kept = "" if which.all_rows else "kept "
            typer.echo(f"Nothing matches: 0 of {n:,} {kept}rollouts in {store.source.label}.")
            return
        _rollouts(store, page, names, as_json)


def _check_taken(what: str, which: options.Which, further: dict[str, str | None]) -> None:
    given = {
        "--split": which.split,
        "--steps": which.steps,
        "--where": which.where,
        "--text": which.text,
        "--all": which.all_rows,
        **further,
    }
    taken = TAKEN[what]
    if refused := [name for name, value in given.items() if value and name not in taken]:
        takes = ", ".join((*taken, "--limit"))
        raise ConfigError(f"{', '.join(refused)}: of rollouts alone; `list {what}` takes {takes}.")


def _projects(limit: int | None, as_json: bool) -> None:
    from rollout_traces.store.places import local_projects, trackio_dir

    found = [{"project": name} for name in local_projects()]
    if found or as_json:
        _print(found, limit, as_json, f"in {trackio_dir()}")
    else:
        typer.echo(options.NO_PROJECTS.format(trackio_dir()))


def _runs(store: Store, which: options.Which, limit: int | None, as_json: bool) -> None:
    found = store.runs() if which.run is None else [store.run(which.run)]
    if as_json:
        print_rows([asdict(info) for info in found[:limit]], total=len(found))
        return
    from rollout_traces.store.rows import RUN_TABLE, run_cells

    rows = [run_cells(info) for info in found[:limit]]
    print_table(RUN_TABLE, rows, title=f"{_counted(rows, found)}in {store.source.label}")


def _steps(store: Store, which: options.Which) -> list[dict[str, Any]]:
    first, last = which.between
    found = []
    for info in [store.run(which.run)] if which.run is not None else store.runs():
        for split in [which.split] if which.split is not None else info.splits:
            found += [
                {"run": info.name, "split": split, **asdict(step)}
                for step in store.steps(info.id, split)
                if (first is None or step.step >= first) and (last is None or step.step <= last)
            ]
    for row in found:
        row.pop("digest_id")
    return found


def _named(store: Store, which: options.Which, columns: str | None) -> list[str]:
    """The columns that were asked for by name."""
    names = list(listed(columns or ""))
    known = {info.name for info in store.columns(which.rows)} if names else set()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(
            f"no column {', '.join(map(repr, unknown))}; `rollout-traces list columns` shows what there is."
        )
    return names


def _rollouts(store: Store, page: RowPage, names: list[str], as_json: bool) -> None:
    if as_json:
        rows = [{name: row[name] for name in names} if names else row.as_dict() for row in page.rows]
        print_rows(rows, total=page.total, next=page.next)
        return
    if not names:
        several = [n for n in ("run", "split") if len({row[n] for row in page.rows}) > 1]
        known = [name for name in SHOWN if any(row[name] is not None for row in page.rows)]
        found = any(row["snippet"] is not None for row in page.rows)
        names = ["uid", *several, *known, "flags", "snippet" if found else "prompt"]
    shown = [[row["uid"] or row.id if name == "uid" else row[name] for name in names] for row in page.rows]
    print_table(names, shown, title=f"{len(page.rows)} of {page.total} in {store.source.label}")
    if page.next is not None:
        typer.echo(f"more with --after {page.next}")
    if not page.total:
        options.say_nothing_kept(store, "lists")


def _counted(rows: Sequence[Any], found: Sequence[Any]) -> str:
    return f"{len(rows)} of {len(found)} " if len(rows) < len(found) else ""


def _print(found: list[dict[str, Any]], limit: int | None, as_json: bool, where: str = "") -> None:
    rows = found[:limit]
    if as_json:
        print_rows(rows, total=len(found))
    else:
        names = list(found[0]) if found else ["nothing"]
        title = f"{_counted(rows, found)}{where}".strip()
        print_table(names, [[row[name] for name in names] for row in rows], title=title)
