"""Labels and notes: those of a rollout, the names in use, adding or taking one back, and lines of another copy.

Lines that come over the network are a visitor's own, dated here, about rollouts that are here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Literal, cast

from rollout_traces.errors import StoreError
from rollout_traces.inspector.access import Visitor, who_asks
from rollout_traces.inspector.workspace import FromRuns, Names, ProjectView, seen
from rollout_traces.model.text import BRIEF, quoted
from rollout_traces.store import Store
from rollout_traces.store.labels import Entry, check_entry, checked_place

TAKES_NONE = "This inspector takes no labels: it was started with --no-labels, or on a host without ROLLOUT_TRACES_LABELS=1."
MOST_NAMES = 30
"""Names that are offered, the most frequent first."""


@dataclass(frozen=True)
class ShownEntry(Entry):
    """A label or a note, and whether its reader may take it back."""

    may_remove: bool = False


@dataclass(frozen=True)
class LabelsAnswer(FromRuns):
    """The labels and notes of a rollout.

    Attributes:
        labels: these.
        names: the names in use, the most frequent first.
        author: the name under which its reader writes.
        may_label: whether readers may label here.
    """

    labels: list[ShownEntry]
    names: list[str]
    author: str
    may_label: bool


def labels(view: ProjectView, id: str) -> LabelsAnswer:
    """The labels and notes on a rollout, each with its id."""
    store, visitor = view.store, who_asks()
    entries = [
        ShownEntry(**vars(entry), may_remove=visitor.owner or entry.author == visitor.name)
        for entry in store.labels.of(store.uid(store.find(id)))
    ]
    names = list(store.labels.names())[:MOST_NAMES]
    return LabelsAnswer(entries, names, visitor.name, view.workspace.may_label)


def annotate(
    view: ProjectView,
    id: str,
    text: str = "",
    kind: str = "label",
    turn: int | None = None,
    start: int | None = None,
    stop: int | None = None,
    further: Names = (),
) -> LabelsAnswer:
    """Puts a label or a note on a rollout, or takes one back: `kind` is label, note or removed.

    Of `removed` the text is the id of what is taken back. An entry is signed with the name that the visitor's token
    has, and dated here. `further` rollouts get the same label or note as a whole: all are looked up before the first is
    written, and one that has it already of this visitor is passed over, so that asking again doubles nothing.

    Raises:
        StoreError: this server does not take labels; it is not there, another's or cannot be kept.
    """
    if not view.workspace.may_label:
        raise StoreError(TAKES_NONE)
    store, visitor = view.store, who_asks()
    trace_id = store.find(id)
    if kind == "removed":
        uid = store.uid(trace_id)
        known = {entry.id: entry.author for entry in store.labels.of(uid)}
        check_taking_back(known.get(text), visitor)
        store.labels.remove(uid, text, visitor.name)
    elif kind in ("label", "note"):
        of_kind = cast("Literal['label', 'note']", kind)
        if further:
            for each in [store.find(each) for each in (id, *further)]:
                if not _has_already(store, each, (kind, text, visitor.name)):
                    store.label(each, text, visitor.name, kind=of_kind)
        else:
            tokens = None if start is None or stop is None else (start, stop)
            store.label(trace_id, text, visitor.name, kind=of_kind, turn=turn, tokens=tokens)
    else:
        raise StoreError(f"kind: seen {seen(kind)}, expected label, note or removed.")
    return labels(view, trace_id)


def _has_already(store: Store, rollout: str, said: tuple[str, str, str]) -> bool:
    """Tells whether its author put the same, by kind and text, on a rollout as a whole."""
    entries = store.labels.of(store.uid(rollout))
    return said in {(e.kind, e.text, e.author) for e in entries if e.turn is e.start is None}


@dataclass(frozen=True)
class TakenLines:
    """The lines that were taken, and those that were not.

    Attributes:
        taken: how many were new.
        refused: a sentence for each that was not taken.
    """

    taken: int
    refused: tuple[str, ...] = ()


def take_lines(store: Store, lines: Iterable[Entry], visitor: Visitor) -> TakenLines:
    """Adds a visitor's own lines with the date of now; those that are here are passed over.

    Args:
        lines: as another copy of the file has them.
        visitor: who gives them.

    Raises:
        StoreError: the file cannot be written.
    """
    authors = {entry.id: entry.author for entry in store.labels.lines()}
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    good, refused = [], []
    for line in lines:
        if line.id in authors:
            continue
        try:
            check_entry(line)
            _check_whose(line, authors, visitor)
            _check_where(store, line)
        except StoreError as error:
            refused.append(f"line {quoted(line.id, BRIEF)}: {error}")
            continue
        authors[line.id] = line.author
        good.append(replace(line, time=now))
    return TakenLines(store.labels.take(good), tuple(refused))


def check_taking_back(author: str | None, visitor: Visitor) -> None:
    """Refuses that a visitor takes back what another wrote, but for the owner.

    Args:
        author: who wrote it; None where it is not there.
        visitor: who takes it back.

    Raises:
        StoreError: it is not there, or not his.
    """
    if author is None:
        raise StoreError("This label or note is not there any more.")
    if not visitor.owner and author != visitor.name:
        raise StoreError(f"{quoted(author)} wrote it: its writer or the owner takes it back.")


def _check_whose(line: Entry, authors: dict[str, str], visitor: Visitor) -> None:
    if line.author != visitor.name:
        raise StoreError(f"author: seen {quoted(line.author)}; this token writes as {quoted(visitor.name)}.")
    if line.kind == "removed":
        check_taking_back(authors.get(line.text), visitor)


def _check_where(store: Store, line: Entry) -> None:
    trace_id = store.find(line.rollout)
    if store.uid(trace_id) != line.rollout:
        raise StoreError(
            f"rollout: seen {quoted(line.rollout)}. Expected the whole uid of a rollout that is here."
        )
    if line.turn is not None or line.start is not None:
        tokens = None if line.start is None or line.stop is None else (line.start, line.stop)
        checked_place(store.transcript(trace_id), line.turn, tokens)
