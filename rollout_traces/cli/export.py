"""`rollout-traces export`: the rollouts of any query as a file."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal

from rollout_traces.cli import options
from rollout_traces.cli.printing import print_json
from rollout_traces.errors import ConfigError
from rollout_traces.model.text import counted
from rollout_traces.model.whole_files import writing_to

if TYPE_CHECKING:
    from rollout_traces.export.training import TrainingManifest
    from rollout_traces.store import Store

OF_TRAINING = typer.Option(rich_help_panel="Training data")


def export(
    which: options.Which,
    out: Path | None = None,
    *,
    source: options.From,
    sort: options.Sort = None,
    file_format: Annotated[str | None, typer.Option("--format", "-f")] = None,
    tokens: bool = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n")] = None,
    partition_by: str | None = None,
    no_conversations: bool = False,
    thinking: Annotated[str, OF_TRAINING] = "content",
    margin: Annotated[float, OF_TRAINING] = 0.0,
    match_length: Annotated[float | None, OF_TRAINING] = None,
    test_share: Annotated[float, OF_TRAINING] = 0.0,
    near_duplicates: Annotated[float, OF_TRAINING] = 0.9,
    evaluation: Annotated[bool, OF_TRAINING] = False,
    as_json: options.AsJson = False,
) -> None:
    """Write rollouts to JSONL or parquet, or training data to a folder, with a manifest; or a run as a site.

    The file comes last, after the run where one is meant. A site is a folder that any web server serves.

    Example: rollout-traces export run-001 site -p gsm8k -f site
    Example: rollout-traces export run-001 good.parquet -p gsm8k -w "reward >= 1 and trained = 1"

    Args:
        out: File or folder to write.
        file_format: jsonl or parquet, by the file's name by default; atif; scout; site; training data: sft,
            dpo, reward, hub or hub-sts.
        tokens: Add token ids, masks and every track.
        limit: Most rollouts; all by default.
        partition_by: Write the columns of all rollouts as a folder of parquet, split by these: run,step.
        no_conversations: With --partition-by: columns alone.
        thinking: Thinking: content, reasoning_content or drop.
        margin: dpo: by how much the better reward is above.
        match_length: dpo: lengths of a pair differ by this share at most.
        test_share: Share of the prompts that go to the file test.
        near_duplicates: Shared five-word runs of a near-duplicate; 0 keeps all.
        evaluation: Take evaluation and its prompts too.
    """
    from rollout_traces.export import CONVERSATIONS, EVERY_FORMAT, ExportQuery, export_partitioned
    from rollout_traces.export import export as write
    from rollout_traces.export.training import export_training
    from rollout_traces.export.training_samples import FORMATS as TRAINING_FORMATS
    from rollout_traces.export.training_samples import TrainingOptions

    store = source.open()
    if out is None:
        which, name = options.word_alone(which, None)
        if name is None:
            raise ConfigError("name the file or folder to write.")
        if name in {info.name for info in store.runs()}:
            raise ConfigError(f"{name} is a run. Name the file or folder to write after it.")
        out = Path(name)
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
        options.remember(str(out.resolve()))
        typer.echo(f"{counted(rows, 'rollout')}: {out}")
        return
    if file_format == "site":
        if which.where or which.text or which.steps or which.all_rows or sort or limit or tokens:
            raise ConfigError("a site holds a run, or one --split of it: no other choice is taken.")
        _write_site(store, source, which, out, as_json)
        return
    query = ExportQuery(**which.asked(), order_by=sort, limit=limit)
    if file_format in CONVERSATIONS:
        typer.echo(f"{counted(CONVERSATIONS[file_format](store, out, query), 'rollout')}: {out}")
        return
    if file_format in TRAINING_FORMATS:
        made = TrainingOptions(
            str(file_format), thinking, margin, match_length, test_share, near_duplicates or None, evaluation
        )
        _print_training(export_training(store, out, made, query), out, as_json)
        return
    if file_format is not None and file_format not in EVERY_FORMAT:
        raise ConfigError(f"--format {file_format!r}, expected one of {', '.join(EVERY_FORMAT)}.")
    with options.progress_bar("exporting") as report:
        manifest = write(store, out, query, file_format=file_format, tokens=tokens, progress=report)
    if as_json:
        print_json(asdict(manifest))
    else:
        typer.echo(
            f"{manifest.rows:,} of {counted(manifest.matched, 'rollout')}, {decimal(manifest.bytes)}: {out}"
        )
    if not manifest.matched and not which.all_rows:
        options.say_nothing_kept(store, "writes")


def _write_site(store: Store, source: options.From, which: options.Which, out: Path, as_json: bool) -> None:
    from rollout_traces.inspector.site import write_site
    from rollout_traces.inspector.workspace import Workspace

    options.check_split(store, which)
    run = options.run_name(store, which.run)
    project = store.project
    splits = None if which.split is None else [which.split]
    reading = Workspace(server_url=source.server_url, space=source.space, projects=(project,))
    with closing(reading) as workspace, options.progress_bar("exporting") as report, writing_to(out):
        rows, size = write_site(workspace, project, run, out, splits, report)
    if as_json:
        print_json({"rows": rows, "bytes": size, "folder": str(out)})
    else:
        typer.echo(f"{counted(rows, 'rollout')}, {decimal(size)}: {out}/index.html, for any web server.")


def _print_training(manifest: TrainingManifest, out: Path, as_json: bool) -> None:
    if as_json:
        print_json(asdict(manifest))
        return
    said = ", ".join(f"{n:,} {name}" for name, n in manifest.splits.items())
    typer.echo(f"{said} of {counted(manifest.made_from.matched, 'rollout')}: {out}")
    for reason, n in manifest.left_out.items():
        typer.echo(f"  left out: {n:,}, {reason}")
