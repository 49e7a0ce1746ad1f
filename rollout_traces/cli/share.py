"""`rollout-traces share`: rollouts, a comparison, a group or an explanation as one HTML file."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal

from rollout_traces.cli import options
from rollout_traces.errors import ConfigError
from rollout_traces.model.whole_files import unfinished


def share(
    rollouts: Annotated[list[str] | None, typer.Argument(metavar="[ROLLOUTS]... | [RUN]")] = None,
    *,
    source: options.From,
    out: Annotated[Path, typer.Option("--out", "-o")] = Path("rollouts.html"),
    compare: Annotated[tuple[str, str] | None, typer.Option(metavar="A B")] = None,
    group: str | None = None,
    explain: bool = False,
    step: int | None = None,
    split: options.OneSplit = "rollout",
    redact_pattern: list[str] | None = None,
) -> None:
    """Write one HTML file that anybody can open from disk: no server, no network.

    Example: rollout-traces share -p gsm8k f015d31ca8e3-12 --redact-pattern 'sk-\\w+' -o page.html
    Example: rollout-traces share run-001 -p gsm8k --explain --step 85

    Args:
        rollouts: Rollouts: uid or trace id, or the beginning of either; the run, with --group or --explain.
        out: The file to write.
        compare: Two rollouts side by side.
        group: A group, as STEP:GROUP, such as 12:3.
        explain: The run's report; with --step, what changed there.
        step: The step that --explain explains.
        redact_pattern: Regular expression of what is hidden in the file; repeatable.
    """
    from rollout_traces.inspector.shared_file import Shared, shared_contents, shared_page
    from rollout_traces.inspector.workspace import Workspace

    of_run = group is not None or explain
    if of_run and len(rollouts or ()) > 1:
        raise ConfigError(f"expected one run; seen {', '.join(rollouts or ())}.")
    run, rollouts = (next(iter(rollouts or ()), None), None) if of_run else (None, rollouts)
    chosen = [bool(rollouts), compare is not None, group is not None, explain]
    if sum(chosen) != 1:
        raise ConfigError("expected rollouts, --compare A B, --group STEP:GROUP or --explain: one of them.")
    with closing(source.open()) as store:
        wanted = Shared(
            store.project,
            run=options.run_name(store, run) if of_run else "",
            split=split,
            compared=compare,
            group=None if group is None else options.parse_pair(group, "--group", "STEP:GROUP, such as 12:3"),
            explained=explain,
            step=step,
            rollouts=tuple(rollouts or ()),
            patterns=tuple(redact_pattern or ()),
        )
        reading = Workspace(server_url=source.server_url, space=source.space, projects=(store.project,))
        with closing(reading) as workspace:
            page = shared_page(shared_contents(workspace, wanted))
    before = ", in place of what was there" if out.exists() else ""
    with unfinished(out) as made:
        made.write_text(page, "utf-8")
    typer.echo(f"{decimal(out.stat().st_size)}: {out}{before}")
