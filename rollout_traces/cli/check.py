"""`rollout-traces check`: a batch looked at before a run is started."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rollout_traces.errors import ConfigError
from rollout_traces.model.text import harmless

if TYPE_CHECKING:
    from rollout_traces.steps.preflight import CheckReport


def check(
    batch: Path,
    *,
    tokenizer: str | None = None,
    fail_on: str = "error",
    show: bool = True,
) -> None:
    """Look at a batch before a run is started: masks, frames, versions, groups, rewards. Nothing is logged.

    Example: rollout-traces check batch.pt --tokenizer Qwen/Qwen3-0.6B --fail-on warn

    Args:
        batch: A batch: .pt (tensors alone), .npz or .parquet, under RolloutBatch's names.
        tokenizer: The policy's tokenizer: a folder, or a name on the Hub. Without it no text is looked at.
        fail_on: Exit with 1 where there is a problem of this level or worse: error, warn or info.
        show: Print three decoded rows, tokens in the loss bright.
    """
    from rollout_traces.decode.vocabulary import load_tokenizer
    from rollout_traces.steps.preflight import LEVELS, load_batch
    from rollout_traces.steps.preflight import check as examine

    level = next((known for known in LEVELS if known == fail_on), None)
    if level is None:
        raise ConfigError(f"--fail-on: seen {fail_on!r}. Expected one of {', '.join(LEVELS)}.")
    report = examine(load_batch(batch), None if tokenizer is None else load_tokenizer(tokenizer))
    print_report(report, show=show)
    if report.failed(level):
        raise typer.Exit(1)


def print_report(report: CheckReport, *, show: bool) -> None:
    """Prints a report, and with `show` the rows that it has decoded."""
    from rich.console import Console
    from rich.text import Text

    from rollout_traces.cli.printing import SEVERITIES, print_turns, turns_of

    console = Console(highlight=False)
    console.soft_wrap = not console.is_terminal
    for line in str(report).splitlines():
        console.print(Text(harmless(line), style=SEVERITIES.get(line.split(" ", 1)[0], "")))
    for row, transcript in report.transcripts.items() if show else ():
        console.print()
        console.print(Text(f"row {row}", style="bold"))
        print_turns(console, turns_of(transcript, raw=False))
