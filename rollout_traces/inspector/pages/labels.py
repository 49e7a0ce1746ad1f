"""Labels and notes: those of a rollout, the names in use, and adding or taking one back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from rollout_traces.errors import StoreError
from rollout_traces.inspector.asking import Names
from rollout_traces.inspector.label_lines import check_taking_back
from rollout_traces.inspector.view import ProjectView
from rollout_traces.inspector.visitor import who_asks
from rollout_traces.model.text import NOTICE
from rollout_traces.store.labels import Entry

if TYPE_CHECKING:
    from rollout_traces.store import Store

TAKES_NONE = "This inspector takes no labels: it was started with --no-labels, or on a host without ROLLOUT_TRACES_LABELS=1."
MOST_NAMES = 30
"""Names that are offered, the most frequent first."""


@dataclass(frozen=True)
class ShownEntry(Entry):
    """A label or a note, and whether its reader may take it back."""

    may_remove: bool = False


@dataclass(frozen=True)
class LabelsAnswer:
    """The labels and notes of a rollout.

    Attributes:
        labels: these.
        names: the names in use, the most frequent first.
        author: the name under which its reader writes.
        may_label: whether readers may label here.
        notice: what its values are.
    """

    labels: list[ShownEntry]
    names: list[str]
    author: str
    may_label: bool
    notice: str = NOTICE


def labels(view: ProjectView, id: str) -> LabelsAnswer:
    """The labels and notes of a rollout."""
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
            _put_on_all(store, [store.find(each) for each in (id, *further)], of_kind, text, visitor.name)
        else:
            tokens = None if start is None or stop is None else (start, stop)
            store.label(trace_id, text, visitor.name, kind=of_kind, turn=turn, tokens=tokens)
    else:
        raise StoreError(f"kind: seen {kind[:40]!r}, expected label, note or removed.")
    return labels(view, trace_id)


def _put_on_all(
    store: Store, rollouts: Sequence[str], kind: Literal["label", "note"], text: str, author: str
) -> None:
    """Puts the same on rollouts; one that the author put it on already, as a whole, is passed over."""
    for each in rollouts:
        own = (
            e for e in store.labels.of(store.uid(each)) if e.author == author and e.turn is e.start is None
        )
        if (kind, text) not in {(entry.kind, entry.text) for entry in own}:
            store.label(each, text, author, kind=kind)
