"""`rollout-traces stats`: what happened at each step, or how a column is spread."""

from __future__ import annotations

import math
from itertools import compress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollout_traces.cli import options
from rollout_traces.cli.printing import cell, print_rows, print_table
from rollout_traces.errors import ConfigError, StoreError
from rollout_traces.model.text import listed

if TYPE_CHECKING:
    from rollout_traces.store import Store

BAR = 40


def stats(
    which: options.Which,
    column: str | None = None,
    *,
    source: options.From,
    by: list[str] | None = None,
    mean: list[str] | None = None,
    std: list[str] | None = None,
    least: Annotated[list[str] | None, typer.Option("--min")] = None,
    most: Annotated[list[str] | None, typer.Option("--max")] = None,
    total: Annotated[list[str] | None, typer.Option("--sum")] = None,
    p50: list[str] | None = None,
    p95: list[str] | None = None,
    p99: list[str] | None = None,
    bins: int = 12,
    as_json: options.AsJson = False,
) -> None:
    """Summarise every step, count the values of one column, or give figures by the values of others.

    Runs and splits are never mixed. Figures with --by, --mean and the like speak of all rollouts; a column is counted
    over the kept ones, with --all over all.

    Example: rollout-traces stats run-001 reward
    Example: rollout-traces stats -p gsm8k --by source --mean mismatch_k3 --p95 n_sampled

    Args:
        column: A column to count; one line a step when none is named.
        by: Tell the values of this column apart; may be repeated.
        mean: Columns, repeated or with commas.
        std: Columns, repeated or with commas.
        least: Columns.
        most: Columns.
        total: Columns.
        p50: Columns, repeated or with commas.
        p95: Columns, repeated or with commas.
        p99: Columns, repeated or with commas.
        bins: Bins of a numeric column with more values than that.
    """
    from rollout_traces.store.questions import Measure

    moments = {"mean": mean, "std": std, "min": least, "max": most, "sum": total}
    asked = {**moments, "p50": p50, "p95": p95, "p99": p99}
    measures = [Measure(name, each) for name, columns in asked.items() for each in _listed(columns)]
    store = source.open()
    if column is None and which.run is not None and _is_column(store, which):
        which, column = options.word_alone(which, column)
    elif column is None and which.run is not None:
        _check_run(store, which.run)
    if column is not None and (measures or by):
        raise ConfigError(f"--by, --mean and the like take columns by themselves; leave {column!r} out.")
    options.check_split(store, which)
    if measures or by:
        found = store.aggregate(_listed(by), measures, **(which.asked() | {"rows": "all"}))
        rows = found.to_pylist()
        _print_rows(rows, as_json)
        unknown = [name for name in found.column_names if all(row[name] is None for row in rows)]
        if rows and unknown and not as_json:
            typer.echo(f"unobserved in these rollouts: {', '.join(unknown)}")
    elif column is not None:
        _count(store, column, which, bins, as_json)
    elif which.where or which.text or which.all_rows:
        raise ConfigError(
            "--where, --text and --all count the values of a column: name one, such as reward, or --by and --mean."
        )
    else:
        from rollout_traces.store.step_metrics import summarise_steps

        rows = summarise_steps(store, which.run, which.split, which.between)
        _print_rows(rows if as_json else [_as_shown(row) for row in rows], as_json)


def _is_column(store: Store, which: options.Which) -> bool:
    """Tells whether the one word given names a column, and no run."""
    runs = {name for info in store.runs() for name in (info.name, info.id)}
    return which.run not in runs and which.run in {info.name for info in store.columns(which.rows)}


def _check_run(store: Store, word: str) -> None:
    """Says so where the one word given names neither a run nor a column.

    Raises:
        StoreError: it names neither.
    """
    try:
        store.run(word)
    except StoreError as error:
        said = f"{error} Nor is it a column; `rollout-traces list columns` shows what there is."
        raise StoreError(said) from None


def _count(store: Store, column: str, which: options.Which, bins: int, as_json: bool) -> None:
    """Prints how a column is spread, run by run and split by split."""
    runs = [store.run(which.run)] if which.run is not None else store.runs()
    there = [(run, split) for run in runs for split in run.splits if which.split in (None, split)]
    asked = [which.asked() | {"run": run.id, "split": split} for run, split in there]
    places = [each for each in zip(there, asked, strict=True) if store.count(**each[1])]
    several = [len({one.id for (one, _), _ in places}) > 1, len({split for (_, split), _ in places}) > 1]
    counted: list[dict[str, Any]] = []
    for (run, split), question in places:
        place = dict(compress((("run", run.name), ("split", split)), several))
        spread = _spread(store, column, question, bins)
        counted += [place | {"value": value, "count": count} for value, count in spread]
    if as_json:
        print_rows(counted)
        return
    highest = max((each["count"] for each in counted), default=0) or 1
    rows = [[*each.values(), "█" * round(BAR * each["count"] / highest)] for each in counted]
    title = "all rollouts" if which.all_rows else "kept rollouts alone; --all counts every rollout"
    print_table([*compress(("run", "split"), several), column, "rollouts", ""], rows, title=title)


def _spread(store: Store, column: str, asked: dict[str, Any], bins: int) -> list[tuple[str, int]]:
    from rollout_traces.model.plain_values import finite_or_text

    kinds = {info.name: info.kind for info in store.columns(asked["rows"])}
    numeric = kinds.get(column) == "number"
    values = store.facets(column, **asked, limit=bins + 2 if numeric else 50)
    if numeric and sum(value is not None for value, _ in values) > bins:
        found = store.histogram(column, bins, **asked)
        names = [f"{low:.4g} … {high:.4g}" for low, high in zip(found.edges, found.edges[1:], strict=False)]
        beyond = [(finite_or_text(value), n) for value, n in found.infinite]
        unknown = [("unknown", found.unknown)] if found.unknown else []
        return [*zip(names, found.counts, strict=True), *beyond, *unknown]
    if numeric:
        values.sort(key=lambda counted: math.inf if counted[0] is None else counted[0])
    return [("unknown" if value is None else cell(finite_or_text(value)), n) for value, n in values]


def _as_shown(step: dict[str, Any]) -> dict[str, Any]:
    """A step's row for the table.

    Beside the number of all rollouts stands that of the late ones, which no logged metric holds; beside a flag that
    needs text, of how many rollouts it is known, where these are not all.
    """
    from rollout_traces.flags import needs_text

    shown = {name: value for name, value in step.items() if name != "late"}
    if step["traced"] < step["rollouts"]:
        known = f" of {step['traced']:,} kept"
        shown["flags"] = {
            name: f"{n:,}{known}" if needs_text(name) else n for name, n in step["flags"].items()
        }
    return shown | ({"rollouts": f"{step['rollouts']:,}, {step['late']:,} late"} if step["late"] else {})


def _listed(columns: list[str] | None) -> list[str]:
    """Columns of a repeated option, each of which may name several with commas."""
    return [name for given in columns or () for name in listed(given)]


def _print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_rows(rows)
    elif not rows:
        typer.echo("no rollouts yet")
    else:
        names = [name for name in rows[0] if any(row[name] not in (None, "", {}) for row in rows)]
        print_table(names, [[row[name] for name in names] for row in rows])
