"""`rollout-traces doctor`: what is there, what would work, what would not; or what rollouts files and folders hold."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.filesize import decimal

from rollout_traces.cli import options
from rollout_traces.cli.printing import print_json, print_turns, turns_of
from rollout_traces.errors import ConfigError
from rollout_traces.model.text import counted

if TYPE_CHECKING:
    from rollout_traces.doctor import CheckFinding
    from rollout_traces.sources.base import Found
    from rollout_traces.sources.problems import Problems
    from rollout_traces.sources.scan import FoundRun


COLOURS = {"ok": "green", "note": "blue", "warn": "yellow", "fail": "red"}


def doctor(
    paths: list[Path] | None = None,
    *,
    project: Annotated[str | None, typer.Option("--project", "-p")] = None,
    tokenizer: str | None = None,
    config: Path | None = None,
    chat_template_kwargs: str | None = None,
    fix: bool = False,
    as_json: options.AsJson = False,
) -> None:
    """Check the installation: versions, storage, spool, trainers, tokenizer; or say what a folder holds.

    Exits with 1 when something does not work.

    Example: rollout-traces doctor --tokenizer ./my-model
    Example: rollout-traces doctor ./outputs/run-1

    Args:
        paths: Files or folders: say what rollouts they hold, import nothing.
        project: Look at this Trackio project too.
        tokenizer: Folder of a tokenizer: show what is learned from its chat template.
        config: A trainer's YAML config: show what it would log.
        chat_template_kwargs: Arguments of the tokenizer's chat template, as JSON.
        fix: Close Trackio's folder where other users of this machine can read it.
    """

    from rollout_traces.doctor import Examination, each_check

    try:
        kwargs = dict(orjson.loads(chat_template_kwargs or "{}"))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"--chat-template-kwargs: seen {chat_template_kwargs!r}. Expected a JSON object."
        ) from error
    asked = Examination(
        project=project, tokenizer=tokenizer, config=config, chat_template_kwargs=kwargs, fix=fix
    )
    checks = look_into(paths).items() if paths else each_check(asked)
    findings: dict[str, list[CheckFinding]] = {}
    for name, items in checks:
        findings[name] = items
        if not as_json:
            _print(name, items)
    if as_json:
        plain = {name: [dataclasses.asdict(item) for item in items] for name, items in findings.items()}
        print_json(plain)
    elif tokenizer is not None and not any(item.status == "fail" for item in findings.get("Tokenizer", [])):
        _print_sample(tokenizer, kwargs)
    if any(item.status == "fail" for items in findings.values() for item in items):
        raise typer.Exit(1)


def _print_sample(path: str, kwargs: dict[str, Any]) -> None:
    """The sample conversation, roles in colour, what the policy writes bright."""
    from rich.console import Console

    from rollout_traces.decode.vocabulary import load_tokenizer
    from rollout_traces.doctor.decoding import sample_conversation

    sample = sample_conversation(load_tokenizer(path), kwargs)
    if sample is not None:
        print_turns(Console(highlight=False), turns_of(sample.transcript, raw=True))


def _print(name: str, items: list[CheckFinding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=name, title_justify="left", title_style="bold", show_header=False, box=None)
    for item in items:
        mark = Text(item.status, style=COLOURS[item.status])
        seen = item.seen if not item.advice else f"{item.seen}\n→ {item.advice}"
        table.add_row("  ", mark, Text(item.subject), Text(seen))
    Console().print(table)


SAMPLED = 200
"""Rollouts of a format's first file that are looked at."""


def look_into(paths: Sequence[Path]) -> dict[str, list[CheckFinding]]:
    """Says what an import of the paths would find.

    Args:
        paths: files and folders.

    Returns:
        A heading a run -> findings, and one heading for what cannot be read.

    Raises:
        ConfigError: a path is not there.
    """
    from rollout_traces.doctor import warn
    from rollout_traces.sources.problems import Problems
    from rollout_traces.sources.scan import scan

    problems = Problems()
    runs = scan(paths, problems)
    found = {f"Run {run.name}": list(_run(run, problems)) for run in runs}
    if problems.kept:
        kept = [warn(p.kind.replace("_", " "), str(p)) for p in problems.kept]
        found["Not read"] = kept
    return found


def _run(run: FoundRun, problems: Problems) -> Iterator[CheckFinding]:
    from rollout_traces.doctor import note, ok

    steps = "steps are in the records" if run.steps is None else f"steps {run.steps[0]} to {run.steps[1]}"
    yield ok("where", f"{run.root}: {counted(len(run.files), 'file')}, {decimal(run.size)}, {steps}")
    for title, count in run.formats.items():
        first = next(found for found in run.files if found.format.title == title)
        yield ok(title, f"{counted(count, 'file')}; {_sample(first, problems)}")
    if run.lacks:
        made = "--tokenizer makes ids of text; they may differ from those trained on."
        advice = made if "token ids" in run.lacks else ""
        yield note("not in the files", "; ".join(run.lacks), advice)


def _sample(found: Found, problems: Problems) -> str:
    from rollout_traces.sources.base import FileReading

    rows = [row for row, _, _ in itertools.islice(found.format.rows(FileReading(found, problems)), SAMPLED)]
    if not rows:
        return f"none can be read of {found.path.name}"
    n_ids = sum(row.input_ids is not None for row in rows)
    rewards = [row.reward for row in rows if row.reward is not None]
    reward = f"rewards {min(rewards):.4g} to {max(rewards):.4g}" if rewards else "no rewards"
    tracks = sorted({name for row in rows for name in row.tracks})
    parts = [
        f"of the first {counted(len(rows), 'rollout')} of {found.path.name} {n_ids} have token ids",
        f"tracks {', '.join(tracks)}" if tracks else "",
        reward,
        f"splits {', '.join(sorted({row.split for row in rows}))}",
    ]
    return ", ".join(part for part in parts if part)
