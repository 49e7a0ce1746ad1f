"""Lines of a file of labels that come over the network: a visitor gives his own, dated here, about rollouts that are here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from rollout_traces.errors import StoreError
from rollout_traces.inspector.visitor import Visitor
from rollout_traces.model.text import quoted
from rollout_traces.store import Store
from rollout_traces.store.labels import Entry
from rollout_traces.store.labels.entry import check_entry, checked_place


@dataclass(frozen=True)
class TakenLines:
    """What became of the lines.

    Attributes:
        taken: how many were new.
        refused: a sentence for each that was not taken.
    """

    taken: int
    refused: tuple[str, ...] = ()


def take_lines(store: Store, lines: Iterable[Entry], visitor: Visitor) -> TakenLines:
    """Adds a visitor's own lines with the date of now; those that are here are passed over.

    Args:
        store: the project.
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
            refused.append(f"line {quoted(line.id, 20)}: {error}")
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
