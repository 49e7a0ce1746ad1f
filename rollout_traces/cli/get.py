"""`rollout-traces get`: one rollout as a conversation."""

from __future__ import annotations

import typer

from rollout_traces.cli import options
from rollout_traces.cli.printing import SEVERITIES, cell, folded, print_json, print_turns, turns_of
from rollout_traces.errors import StoreError
from rollout_traces.model.text import harmless

HIDDEN = ("uid", "schema", "kind", "status", "flags")


def get(
    trace: str,
    *,
    source: options.From,
    raw: bool = False,
    raw_record: bool = False,
    as_json: options.AsJson = False,
) -> None:
    """Show one rollout: roles in colour, tokens in the loss bright, all others dim.

    Example: rollout-traces get -p gsm8k f015d31ca8e3-12

    Args:
        trace: Its uid or trace id, or the beginning of either.
        raw: Every token as the model saw it, markers included.
        raw_record: The record that it was imported from, as its file has it today.
    """
    from rich.console import Console
    from rich.text import Text

    from rollout_traces.decode.messages import transcript_of_messages
    from rollout_traces.trace.conversion import newer_schema

    store = source.open()
    if raw_record:
        typer.echo(harmless(store.raw_record(trace)))
        return
    trace_id = store.find(trace)
    record = store.record(trace_id)
    if as_json:
        print_json(
            {
                "id": trace_id,
                "uid": store.uid(trace_id),
                "metadata": record.metadata,
                "messages": record.messages,
                "details": store.details(trace_id),
            }
        )
        return
    console = Console(highlight=False)
    console.soft_wrap = not console.is_terminal
    console.print(Text(harmless(store.uid(trace_id)), style="bold"))
    known = {k: v for k, v in record.metadata.items() if k not in HIDDEN and v is not None}
    console.print(Text("  ".join(f"{harmless(str(k))} {cell(v)}" for k, v in known.items()), style="dim"))
    for flag in store.details(trace_id).get("flags", ()):
        style = SEVERITIES.get(str(flag.get("severity")), "")
        console.print(Text(harmless(f"⚑ {flag.get('name')}: {flag.get('message')}"), style=style))
    newer = newer_schema(record.metadata)
    if newer is not None:
        console.print(Text(newer, style="bold yellow"))
    transcript = None
    try:
        transcript = store.transcript(trace_id)
    except StoreError as error:
        said = f"The tokens cannot be read: {error} What follows are the messages."
        console.print(Text(harmless(said), style="bold red"))
    turns = turns_of(transcript or transcript_of_messages(record.messages), raw)
    print_turns(console, turns if raw else folded(turns))
