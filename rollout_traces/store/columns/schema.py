"""The columns that the table has on every project, beside what ledgers and traces bring."""

from __future__ import annotations

from collections.abc import Mapping

from rollout_traces.store.columns.kinds import Kind

PLACE: Mapping[str, Kind] = {"row": "int", "place": "int", "run_no": "int", "split": "text", "step": "int"}
"""Stored of every row: `row` is unique and ascends with arrival; `place` is run, split and step as a number."""
TRACE: Mapping[str, Kind] = {
    "doc": "int",
    "id": "text",
    "kind": "text",
    "key": "text",
    "trace_index": "int",
    "timestamp": "text",
    "n_messages": "int",
    "prompt": "text",
    "reply": "text",
}
"""Known of traced rows alone; `doc` is the row's number in the text index."""
COMPUTED: Mapping[str, Kind] = {
    "run": "text",
    "run_id": "text",
    "traced": "bool",
    "superseded": "bool",
    "late": "bool",
}
"""Not stored in this form, and known of every row."""
LABELLED: Mapping[str, Kind] = {"labels": "tags", "notes": "text", "labelled_by": "tags"}
"""From the file of labels; known of the rows that somebody labelled."""
INTERNAL = frozenset({"row", "place", "run_no", "doc", "late_part", "from_ledger"})
"""What the store needs, and a query of the filter language cannot name."""
ALWAYS: Mapping[str, Kind] = {
    "group": "int",
    "sample": "int",
    "uid": "text",
    "prompt_key": "text",
    "source": "text",
    "engine": "text",
    "trained": "int",
    "discard_reason": "text",
    "reward": "float",
    "raw_reward": "float",
    "reward_status": "text",
    "advantage": "float",
    "advantage_abs_max": "float",
    "n_tokens": "int",
    "n_prompt": "int",
    "n_sampled": "int",
    "n_environment": "int",
    "n_thinking": "int",
    "n_turns": "int",
    "n_tool_calls": "int",
    "n_tool_errors": "int",
    "success": "int",
    "answered": "int",
    "answer": "text",
    "ground_truth": "text",
    "stop_reason": "text",
    "version_min": "int",
    "version_max": "int",
    "train_version": "int",
    "staleness_max": "int",
    "mean_logprob": "float",
    "mismatch_k1": "float",
    "mismatch_k3": "float",
    "mismatch_abs_max": "float",
    "log_ratio_sum": "float",
    "clip_share": "float",
    "update_share": "float",
    "flags": "tags",
    "tool_names": "tags",
    "error_signatures": "tags",
    "selected_by": "text",
    "selected_probability": "float",
    "population": "int",
    "trace_uid": "text",
    "attempt": "text",
    "late_part": "int",
    "episode": "text",
    "parent": "text",
    "sample_id": "text",
    "timings": "text",
    "group_size": "int",
    "decoded_from": "text",
    "response_mask_from": "text",
    "status": "text",
    "parsed_answer": "text",
    "schema": "int",
    "unreadable": "int",
    "written_by": "text",
}
"""Columns that the table has although no row may know them yet."""
METRICS: Mapping[str, Kind] = {
    "run": "text",
    "run_id": "text",
    "split": "text",
    "step": "int",
    "key": "text",
    "value": "float",
    "attempt": "text",
    "superseded": "bool",
}
"""Columns of the relation `metrics`: logged scalars and step metrics, one number a row."""
MEANINGS: Mapping[str, str] = {
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
    "labels": "labels that people put on it, on one of its turns or on some of its tokens",
    "notes": "notes that people wrote on it, a line each",
    "labelled_by": "who labelled it or wrote a note",
    "unreadable": "1 when its stored JSON is damaged, or its fields are not those of the trainer that wrote it",
    "written_by": "the trainer that wrote the trace, where it was not rollout-traces and its trainer is known",
}
"""What columns mean that neither a ledger nor a trace's metadata explains."""


def quoted(name: str) -> str:
    """A column's name inside SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text inside SQL."""
    return "'" + text.replace("'", "''") + "'"


def stored_name(name: str) -> str | None:
    """The name under which a ledger's or a trace's column is stored; None for names of the table's own."""
    name = name.replace("\x00", "")[:MOST_NAME]
    if name == "late":
        return "late_part"
    return None if name.lower() in _RESERVED or not name else name


MOST_NAME = 200
"""Characters of a column's name that count."""
_RESERVED = frozenset({*PLACE, *TRACE, *COMPUTED, *LABELLED, *INTERNAL})
