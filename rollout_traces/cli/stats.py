"""`rollout-traces stats`: what happened at each step, or how a column is spread."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Annotated, Any

import typer

from rollout_traces.cli import options
from rollout_traces.cli.tables import cell, print_json, print_table

BAR = 40


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("stats")(options.expanded(stats))


def stats(
    column: Annotated[
        str | None, typer.Argument(help="A column to count; one line a step when none is named.")
    ] = None,
    *,
    source: options.From,
    which: options.Which,
    bins: Annotated[int, typer.Option(help="Bins of a numeric column with more values than that.")] = 12,
    as_json: options.AsJson = False,
) -> None:
    """Summarise every step from its ledger, or count the values of one column.

    Example: rollout-traces stats -p gsm8k reward -w "flags has 'truncated'"
    """
    store = source.open()
    if column is None and (which.where or which.text or which.ledger):
        raise typer.BadParameter(
            "--where, --text and --ledger count the values of a column: name one, such as reward."
        )
    if column is None:
        from rollout_traces.store.summary import summarise_steps

        _print_rows(
            [asdict(s) for s in summarise_steps(store, which.run, which.split, which.between)], as_json
        )
        return
    asked = which.asked()
    options.check_split(store, which)
    kinds = {info.name: info.kind for info in store.columns(which.rows)}
    numeric = kinds.get(column) == "number"
    values = store.facets(column, **asked, limit=bins + 2 if numeric else 50)
    if numeric and sum(value is not None for value, _ in values) > bins:
        found = store.histogram(column, bins, **asked)
        names = [f"{low:.4g} … {high:.4g}" for low, high in zip(found.edges, found.edges[1:], strict=False)]
        counted = [*zip(names, found.counts, strict=True)] + (
            [("unknown", found.unknown)] if found.unknown else []
        )
    else:
        if numeric:
            values.sort(key=lambda counted: math.inf if counted[0] is None else counted[0])
        counted = [("unknown" if value is None else cell(value), n) for value, n in values]
    if as_json:
        print_json([{"value": value, "count": count} for value, count in counted])
        return
    most = max((count for _, count in counted), default=0) or 1
    rows = [[value, count, "█" * round(BAR * count / most)] for value, count in counted]
    print_table([column, "rollouts", ""], rows)


def _print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(rows)
    elif not rows:
        typer.echo("no steps yet")
    else:
        names = [name for name in rows[0] if any(row[name] not in (None, "", {}) for row in rows)]
        print_table(names, [[row[name] for name in names] for row in rows])
