"""`rollout-traces export`: the rollouts of any query as a file."""

from __future__ import annotations

from typing import Annotated

import typer

from rollout_traces.cli import options


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("export")(options.expanded(export))


def export(
    out: options.Out,
    *,
    source: options.From,
    which: options.Which,
    sort: options.Sort = None,
    file_format: Annotated[
        str | None, typer.Option("--format", "-f", help="jsonl or parquet; by the file's name by default.")
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Add token ids, masks and every track.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", help="Most rollouts; all by default.")] = None,
    partition_by: Annotated[
        str | None,
        typer.Option(
            help="Write the columns of all rollouts as a folder of parquet, split by these: run,step."
        ),
    ] = None,
    no_conversations: Annotated[
        bool, typer.Option("--no-conversations", help="With --partition-by: columns alone.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Write rollouts to JSONL or parquet, with a manifest beside the file.

    Example: rollout-traces export good.parquet -p gsm8k -w "reward >= 1 and trained = 1"
    """
    from rollout_traces.cli.progress import progress_bar
    from rollout_traces.export import ExportQuery, export_partitioned
    from rollout_traces.export import export as write

    store = source.open()
    if partition_by is not None:
        rows = export_partitioned(
            store,
            out,
            partition_by=[name.strip() for name in partition_by.split(",")],
            where=which.where,
            runs=None if which.run is None else [which.run],
            splits=None if which.split is None else [which.split],
            steps=which.between,
            text=which.text,
            conversations=not no_conversations,
            tokens=tokens,
        )
        typer.echo(f"{rows} rollouts: {out}")
        return
    query = ExportQuery(**which.asked(), order_by=sort, limit=limit)
    with progress_bar("exporting") as report:
        manifest = write(store, out, query, file_format=file_format, tokens=tokens, progress=report)
    if as_json:
        from dataclasses import asdict

        from rollout_traces.cli.tables import print_json

        print_json(asdict(manifest))
    else:
        typer.echo(f"{manifest.rows} of {manifest.matched} rollouts, {manifest.bytes / 1e6:.1f} MB: {out}")
