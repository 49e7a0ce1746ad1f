"""Traces that other tools wrote: their fields under our names, their own kept beside them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rollout_traces.store.rows import StoredTrace
from rollout_traces.trace.conversion import TraceRecord

RENAMED = {
    "group_id": "group",
    "model_version": "version_max",
    "prompt_tokens": "n_prompt",
    "completion_tokens": "n_sampled",
    "rewards/": "component/",
    "reward_components/": "component/",
}
"""Names for what has a name here, of tools that no recogniser knows; a trailing slash stands for all names
below it."""
GROUP_BYTES = 6
"""Bytes of a group's number where its tool names it by a text: exact in JavaScript, and two of a step's
thousand groups share one less than once in 10^8 steps."""


OtherTool = tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]
"""The content of a known trainer's trace: name of the ledger -> value, `flags` as a tuple; and its messages."""


def read_other_tool(
    stored: StoredTrace, messages: Sequence[Mapping[str, Any]], metadata: Mapping[str, Any]
) -> OtherTool | None:
    """Reads a trace as the trainer wrote it that its key and fields show.

    Returns:
        Its fields with the trainer as `written_by`, and `unreadable` = 1 alone beside that where they are not
        what this trainer writes; None for a trace of an unknown tool, or one that is no rollout.
    """
    from rollout_traces.sources.trackio_traces import fields_of, rollout_of, writer_of

    writer = writer_of(stored.key, metadata)
    if writer is None:
        return None
    try:
        row = rollout_of(stored.key, stored.step, messages, metadata)
        known = {} if row is None else fields_of(row)
    except Exception:  # noqa: BLE001 - another version's fields, or made up; the row is counted as unreadable
        return {"written_by": writer.name, "unreadable": 1}, messages
    if row is None:
        return None
    if "group" in known:
        known["group"] = group_number(known["group"])
    known["flags"] = tuple(known["flags"])
    return known | {"written_by": writer.name}, row.conversation() or messages


def shown_record(stored: StoredTrace, record: TraceRecord) -> TraceRecord:
    """A trace as a page shows it: of another tool with its fields under our names too, and its conversation.

    Args:
        stored: the row; of an export, which has no key and step of it, the trace stays as it is.
        record: its messages and metadata as they are stored.
    """
    own = dict(record.metadata)
    if not stored.key or (own.get("kind") in ("rollout", "digest") and "schema" in own):
        return record
    spoken = [message for message in record.messages if isinstance(message, Mapping)]
    other = read_other_tool(stored, spoken, own)
    if other is None:
        return record
    fields, conversation = other
    known = {name: list(v) if isinstance(v, tuple) else v for name, v in fields.items()}
    return replace(record, messages=list(conversation), metadata=own | known)


def group_number(named: Any) -> int:
    """A group's number: its own where it has one, else one made of its name, the same on every step.

    Args:
        named: a group as its tool names it.
    """
    if isinstance(named, (int, float)) and abs(named) < 2**53 and named == int(named):
        return int(named)
    text = str(named).encode("utf-8", "replace")
    return int.from_bytes(hashlib.blake2b(text, digest_size=GROUP_BYTES).digest(), "big")


def renamed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a trace, those of `RENAMED` under our names unless these are taken.

    Args:
        fields: name -> value.
    """
    found: dict[str, Any] = {}
    for name, value in fields.items():
        prefix, slash, rest = name.partition("/")
        new = RENAMED.get(name) or (RENAMED[prefix + slash] + rest if prefix + slash in RENAMED else name)
        found[name if new in fields else new] = value
    return found
