"""`rollout-traces last`: what was handed over last and never stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rollout_traces.cli import options
from rollout_traces.cli.printing import print_rows, print_table
from rollout_traces.model.text import harmless


def last(
    *,
    project: Annotated[str | None, typer.Option("--project", "-p")] = None,
    limit: options.Limit = options.SHOWN,
    as_json: options.AsJson = False,
) -> None:
    """Show what was handed over and not stored yet, longest first: what a crash may have been about.

    Example: rollout-traces last -p gsm8k -n 5

    Args:
        project: One project only.
        limit: Most rows.
    """
    from rollout_traces.worker.recovery import describe, find_left, not_all_stored, waiting_batches

    rows: list[dict[str, Any]] = []
    for left in find_left(project):
        tokenizer = _tokenizer(left.folder.tokenizer)
        batches = list(waiting_batches(left))
        places = [(int(batch.n_tokens[row]), batch, row) for batch in batches for row in range(batch.n_rows)]
        places.sort(key=lambda place: -place[0])
        rows += [
            {"project": left.project, "run": left.run_name, **describe(batch, row, tokenizer)}
            for _, batch, row in places[:limit]
        ]
    rows = sorted(rows, key=lambda row: -row["tokens"])[:limit]
    if as_json:
        print_rows(rows)
        return
    hurt = not_all_stored(project)
    if rows:
        print_table(tuple(rows[0]), [tuple(row.values()) for row in rows])
    elif not hurt:
        typer.echo(options.nothing_waits(project))
    for sentence in hurt:
        typer.echo(harmless(sentence))


def _tokenizer(folder: Path) -> Any:
    """Loads the tokenizer that decodes a run's ids; None where there is nothing that can be read."""
    path = folder / "tokenizer.json"
    if not path.exists():
        return None
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001  the library raises a bare Exception; what waits is listed without texts
        typer.echo(harmless(f"{path}: cannot be read ({error}); texts are left out."), err=True)
        return None
