"""Hides in what is shared: what a pattern finds is hidden in text and its tokens lose their ids, as a run's hook does."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from rollout_traces.errors import ConfigError
from rollout_traces.inspector.payload import packed, unpacked, utf16_positions
from rollout_traces.inspector.workspace import Workspace
from rollout_traces.model.plain_values import plain
from rollout_traces.steps.redact import HIDDEN, Redaction
from rollout_traces.store import Group, RowPage, StepGroups, Store, TraceRow
from rollout_traces.trace.conversion import DETAILS_KEY, TRACK_KEY, TraceRecord, read_details, read_transcript
from rollout_traces.trace.packing import pack_transcript

CUT = ("prompt", "reply", "snippet")
"""Columns that hold the beginning of a text: a pattern may find nothing in a part of what it is to hide."""


class Hiding:
    """The patterns of what is hidden.

    Args:
        patterns: regular expressions of Python.

    Raises:
        ConfigError: one is none, or finds the empty text.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [_compiled(pattern) for pattern in patterns]

    def pieces(self, message: Mapping[str, Any]) -> list[str]:
        """Finds what the patterns match in the texts of a message."""
        return [match[0] for text in _texts(message) for p in self._patterns for match in p.finditer(text)]

    def record(self, record: TraceRecord) -> TraceRecord:
        """A trace with everything hidden that the patterns find in it."""
        transcript = read_transcript(record)
        if transcript is None:
            return TraceRecord(self.value(record.messages), self.value(record.metadata), ())
        changed, hide = Redaction(self.pieces, Counter()).apply(transcript)
        messages = plain(changed.messages())
        root = {
            "id": "rollout",
            "kind": "span",
            DETAILS_KEY: hide(read_details(record)),
            TRACK_KEY: pack_transcript(changed, messages),
        }
        return TraceRecord(messages, hide(record.metadata), [root])

    def value(self, value: Any) -> Any:
        """Plain values with every text hidden in; the characters keep their number as a browser counts."""
        if isinstance(value, str):
            for pattern in self._patterns:
                value = pattern.sub(lambda match: HIDDEN * int(utf16_positions(match[0])[-1]), value)
            return value
        if isinstance(value, Mapping):
            return {self.value(key): self.value(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return value

    def payload(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """A rollout as the page draws it: hidden in, and without the ids of tokens whose text is hidden."""
        tokens = payload["tokens"]
        shown = self.value({key: value for key, value in payload.items() if key not in ("tokens", "id")})
        if tokens is not None:
            tokens = {**tokens, "arrays": _without_hidden_ids(tokens["arrays"], shown["raw"])}
        return {**shown, "id": payload["id"], "tokens": tokens}


class HidingWorkspace(Workspace):
    """A workspace whose stores hide.

    Args:
        beneath: the workspace that reads.
        hiding: what is hidden.
    """

    def __init__(self, beneath: Workspace, hiding: Hiding) -> None:
        super().__init__(server_url=beneath.server_url, space=beneath.space, folder=beneath.folder)
        self._beneath = beneath
        self._hiding = hiding

    def store(self, project: str) -> Store:
        """The store of a project, hiding."""
        return cast(Store, _HidingStore(self._beneath.store(project), self._hiding))

    def version(self, project: str) -> int:
        """The number of the last refresh."""
        return self._beneath.version(project)


class _HidingStore:
    """A store whose traces hide, and whose rows have no beginnings of texts."""

    def __init__(self, beneath: Store, hiding: Hiding) -> None:
        self._beneath = beneath
        self._hiding = hiding

    def __getattr__(self, name: str) -> Any:
        return getattr(self._beneath, name)

    def record(self, trace_id: str) -> TraceRecord:
        """One whole trace."""
        return self._hiding.record(self._beneath.record(trace_id))

    def query(self, *asked: Any, **named: Any) -> RowPage:
        """Rows of a query."""
        page = self._beneath.query(*asked, **named)
        return RowPage(tuple(map(_without_cut, page.rows)), page.total, page.next)

    def groups(self, run: str, split: str, step: int) -> StepGroups:
        """The groups of a step."""
        found = self._beneath.groups(run, split, step)
        return replace(found, groups=tuple(map(_without_prompt, found.groups)))


def _without_prompt(group: Group) -> Group:
    return replace(group, prompt="", traces=tuple(map(_without_cut, group.traces)))


def _without_cut(row: TraceRow) -> TraceRow:
    return replace(row, values={name: value for name, value in row.values.items() if name not in CUT})


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        found = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"--redact-pattern {pattern!r}: no regular expression: {error}.") from error
    if found.match("") is not None:
        raise ConfigError(
            f"--redact-pattern {pattern!r}: finds the empty text. Expected what must not be shared."
        )
    return found


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for item in value.items() for text in _texts(item)]
    if isinstance(value, (list, tuple)):
        return [text for item in value for text in _texts(item)]
    return []


def _without_hidden_ids(arrays: Mapping[str, Any], raw: str) -> dict[str, Any]:
    units = np.frombuffer(raw.encode("utf-16-le", "surrogatepass"), "<u2")
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(units == ord(HIDDEN))])
    lengths = unpacked(arrays["lengths"]).astype(np.int64)
    starts = unpacked(arrays["starts"]) if "starts" in arrays else np.cumsum(lengths) - lengths
    ids = unpacked(arrays["ids"]).astype(np.int32)
    ids[before[starts + lengths] > before[starts]] = -1
    return {**arrays, "ids": packed(ids)}
