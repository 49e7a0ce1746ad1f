"""`rollout-traces get`: one rollout as a conversation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import typer

from rollout_traces.cli import options
from rollout_traces.cli.printing import RenderedTurn, cell, folded, print_json, print_turns, turns_of
from rollout_traces.errors import StoreError
from rollout_traces.model.text import harmless

if TYPE_CHECKING:
    from rollout_traces.trace.conversion import TraceRecord

SEVERITIES = {"error": "bold red", "warn": "yellow", "info": "blue"}
HIDDEN = ("schema", "kind", "status", "flags")


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
    turns = _messages(record)
    try:
        transcript = store.transcript(trace_id)
        if transcript is not None and len(transcript.tokens):
            turns = turns_of(transcript, raw)
    except StoreError as error:
        said = f"The tokens cannot be read: {error} What follows are the messages."
        console.print(Text(harmless(said), style="bold red"))
    print_turns(console, turns if raw else folded(turns))


def _messages(record: TraceRecord) -> Iterator[RenderedTurn]:
    from rich.text import Text

    from rollout_traces.store.reading import message_texts

    for message in record.messages:
        if isinstance(message, Mapping):
            role = str(message.get("role", "context"))
            yield RenderedTurn(role, role, Text(harmless("\n".join(message_texts(message)))))
