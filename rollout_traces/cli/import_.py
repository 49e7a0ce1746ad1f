"""`rollout-traces import`: rollouts that other tools left on disk, into a Trackio project."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollout_traces.cli import options
from rollout_traces.cli.options import progress_bar, remember
from rollout_traces.cli.printing import print_json, sentence
from rollout_traces.model.text import counted
from rollout_traces.model.whole_files import writing_to

if TYPE_CHECKING:
    from rollout_traces.sources.importing import ImportReport


def import_(
    paths: list[Path],
    *,
    project: Annotated[str, typer.Option("--project", "-p")],
    name: str | None = None,
    file_format: Annotated[str, typer.Option("--format", "-f")] = "auto",
    tokenizer: str | None = None,
    max_traces: int | None = None,
    selection: str = "portfolio",
    follow: bool = False,
    trust_pickle: bool = False,
    server_url: str | None = None,
    as_json: options.AsJson = False,
) -> None:
    """Import rollouts of verl, TRL, prime-rl, AReaL, NeMo-RL, slime, SkyRL, Inspect and others.

    What was imported before is passed over; `rollout-traces doctor PATH` only says what is there.

    Example: rollout-traces import ./outputs/rollout_data -p gsm8k --name run-1

    Args:
        paths: Files and folders, or trackio:PROJECT.
        project: Trackio project to write to.
        name: Name of the run, where its files hold none; its folder's by default.
        file_format: auto, or the format's name where it is not recognised.
        tokenizer: Folder of the policy's tokenizer: ids are decoded, rollouts of text re-encoded.
        max_traces: Rollouts that become traces, per step; all by default.
        selection: How --max-traces is spent: portfolio, fixed_prompts, first, random, extremes or all.
        follow: Go on watching for what is added, until interrupted.
        trust_pickle: Load pickles: files of others could run any code as you.
        server_url: Trackio server to write to.
    """
    from rollout_traces.decode.vocabulary import load_tokenizer
    from rollout_traces.sources.importing import import_rollouts
    from rollout_traces.store.places import trackio_dir

    # what Trackio prints of its runs is no part of this command's answer
    with (
        writing_to(f"Trackio's folder {trackio_dir()}"),
        redirect_stdout(sys.stderr),
        progress_bar("importing") as report,
    ):
        done = import_rollouts(
            paths,
            project,
            name=name,
            file_format=file_format,
            tokenizer=None if tokenizer is None else load_tokenizer(tokenizer),
            max_traces_per_step=max_traces,
            selection=selection,
            follow=follow,
            trust_pickle=trust_pickle,
            server_url=server_url,
            progress=report,
        )
    if server_url is None:
        remember(project)
    if as_json:
        problems = {"counts": dict(done.problems.counts), "first": [str(p) for p in done.problems.kept]}
        print_json({"project": done.project, "runs": [asdict(r) for r in done.runs], "problems": problems})
    else:
        _print(done)
    if done.problems.counts and not done.rows and not any(run.files_known for run in done.runs):
        raise typer.Exit(1)


def _print(done: ImportReport) -> None:
    for run in done.runs:
        formats = ", ".join(f"{count} of {title}" for title, count in run.formats.items())
        of_formats = f" ({formats})" if formats else ""
        typer.echo(
            f"{sentence(run.name)}: {counted(run.rows, 'rollout')} in {counted(run.steps, 'step')}{of_formats}"
        )
        if run.files_known:
            typer.echo(f"  imported before and unchanged: {counted(run.files_known, 'file')}.")
        if run.rows_known:
            typer.echo(f"  imported before: {counted(run.rows_known, 'rollout')}.")
        if run.rows_without_tokens:
            left = run.rows_without_tokens
            typer.echo(f"  {left:,} came without token ids: token views and masks are unobserved for them.")
        if run.rows_not_decoded:
            left = run.rows_not_decoded
            typer.echo(
                f"  {left:,} have token ids, which are kept where --tokenizer names what decodes them."
            )
        if run.rows_re_encoded:
            typer.echo(
                f"  {run.rows_re_encoded:,} were re-encoded: their ids may differ from those trained on."
            )
        if run.lacks:
            typer.echo(f"  Not in the files: {'; '.join(run.lacks)}.")
        if not run.stored:
            typer.secho("  Not all of it is stored yet: rollout-traces recover stores the rest.", fg="yellow")
    for problem in done.problems.kept:
        typer.secho(sentence(str(problem)), err=True, fg="yellow")
    if len(done.problems.kept) > 1:
        typer.secho(f"In all: {done.problems.summary()}.", err=True, fg="yellow")
