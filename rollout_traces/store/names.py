"""The names a query may use on any project, and what they mean."""

from __future__ import annotations

from rollout_traces.store.asking import Asking
from rollout_traces.store.query.names import GROUP
from rollout_traces.store.rows import ColumnInfo
from rollout_traces.store.scope import Which

MEANINGS = {
    "id": "Trackio's id of the trace",
    "run": "the run's name",
    "run_id": "Trackio's id of the run",
    "key": "the key the trace was logged under",
    "trace_index": "its place in the list it was logged in",
    "timestamp": "when Trackio stored it",
    "n_messages": "messages in the conversation",
    "prompt": "first words of the first user message",
    "reply": "first words of the last assistant message, its thinking left out",
    "traced": "1 when the rollout was kept as a trace",
    "superseded": "1 when a later attempt of the run began at this step or before it, whether it has come as far yet or not",
    "late": "1 when it came after its step was closed",
    "tool_names": "names of the tools that were called",
    "error_signatures": "what failed tool results say, digits and names replaced; known for traced rows",
    **{name: meaning for name, (_, meaning) in GROUP.items()},
    "labels": "labels that people put on it, on one of its turns or on some of its tokens",
    "notes": "notes that people wrote on it, a line each",
    "labelled_by": "who labelled it or wrote a note",
    "unreadable": "1 when its stored JSON is damaged, or its fields are not those of the trainer that wrote it",
    "written_by": "the trainer that wrote the trace, where it was not rollout-traces and its trainer is known",
}


def meanings() -> dict[str, str]:
    """Name -> meaning of all columns that have one; prefixed ones end in `/*`."""
    from rollout_traces.ledger import columns as ledger
    from rollout_traces.trace import conversion as trace

    ours = {name.replace("<name>", "*"): meaning for name, meaning in trace.METADATA.items()}
    return {**{c.name: c.meaning for c in ledger.COLUMNS}, **ours, **MEANINGS}


def column_infos(asking: Asking, rows: Which) -> list[ColumnInfo]:
    """The columns that a query can name: those that some row knows, and the figures of groups.

    Args:
        asking: asks the table.
        rows: of traced rollouts, or of all.
    """
    known = {**asking.state.side.meanings, **meanings()}
    names = [name for name in asking.shown_columns() if rows == "all" or name != "trace_uid"]
    found = [(name, asking.names.column(name)) for name in (*names, *GROUP)]
    return [
        ColumnInfo(name, c.kind, known.get(name) or known.get(name.split("/", 1)[0] + "/*", ""))
        for name, c in found
        if c is not None
    ]
