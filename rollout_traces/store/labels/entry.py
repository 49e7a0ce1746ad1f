"""One line of the file: a label, a note, or that one of them is taken back; and the place on a rollout that it names."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import Any, Literal

import orjson

from rollout_traces.errors import StoreError
from rollout_traces.model.transcript import Transcript

Kind = Literal["label", "note", "removed"]
KINDS: tuple[Kind, ...] = ("label", "note", "removed")
MOST_LABEL = 64
"""Characters of a label, and of an author's name."""
MOST_NOTE = 4_000
LARGEST = 32_768
"""Bytes of a line."""
_NEVER = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


@dataclass(frozen=True)
class Entry:
    """A label or a note on a rollout, one of its turns, or a range of its tokens.

    Attributes:
        id: its own, unique.
        kind: `label`, `note`, or `removed` where it takes another entry back.
        rollout: the rollout's uid; its trace id where it has none.
        text: the label or the note; of `removed` the id of the entry that it takes back.
        author: who wrote it, as he called himself.
        time: when, ISO 8601, UTC.
        turn: which turn; None for the whole rollout.
        start: first token of a range; None for none.
        stop: the token behind its last.
    """

    id: str
    kind: Kind
    rollout: str
    text: str
    author: str
    time: str
    turn: int | None = None
    start: int | None = None
    stop: int | None = None

    def line(self) -> bytes:
        """The entry as one line of JSON."""
        return orjson.dumps({k: v for k, v in asdict(self).items() if v is not None}) + b"\n"


def new_entry(
    kind: Kind,
    rollout: str,
    text: str,
    author: str,
    *,
    turn: int | None = None,
    tokens: tuple[int, int] | None = None,
) -> Entry:
    """A checked entry with a new id and the time.

    Args:
        kind: see `Entry`.
        rollout: see `Entry`.
        text: see `Entry`; blanks around it are taken off.
        author: who writes it.
        turn: which turn.
        tokens: first token and the one behind the last.

    Raises:
        StoreError: text or author are empty, too long, or hold signs that are not shown; or the place is none.
    """
    start, stop = tokens if tokens is not None else (None, None)
    if turn is not None and turn < 0:
        raise StoreError(f"turn: seen {turn}, expected 0 or more.")
    if start is not None and stop is not None and not 0 <= start < stop:
        raise StoreError(f"tokens: seen {start}:{stop}, expected a first token and, behind it, the end.")
    return Entry(
        os.urandom(8).hex(),
        kind,
        rollout,
        _checked(kind, text, MOST_NOTE if kind == "note" else MOST_LABEL, lines=kind == "note"),
        _checked("author", author, MOST_LABEL, lines=False),
        datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        turn,
        start,
        stop,
    )


def check_entry(entry: Entry) -> None:
    """Refuses an entry that somebody else made and that this package would not have made.

    Raises:
        StoreError: as for `new_entry`, or its id, rollout or time are none.
    """
    tokens = None if entry.start is None or entry.stop is None else (entry.start, entry.stop)
    made = new_entry(entry.kind, entry.rollout, entry.text, entry.author, turn=entry.turn, tokens=tokens)
    _checked("rollout", entry.rollout, MOST_LABEL * 4, lines=False)
    try:
        known = datetime.fromisoformat(entry.time).tzinfo is not None and len(entry.time) <= MOST_LABEL
    except ValueError:
        known = False
    if (
        not known
        or not re.fullmatch(r"[0-9a-f]{16}", entry.id)
        or replace(entry, id=made.id, time=made.time) != made
    ):
        raise StoreError(
            f"labels: the entry {entry.id[:40]!r} of {entry.time[:40]!r} is none that can be kept."
        )


def read_entry(line: bytes) -> Entry | None:
    """The entry of a line; None where it is none, such as one that a full disk cut."""
    if len(line) > LARGEST:
        return None
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return _entry(found) if isinstance(found, Mapping) else None


def _entry(found: Mapping[str, Any]) -> Entry | None:
    texts = [found.get(name) for name in ("id", "kind", "rollout", "text", "author", "time")]
    numbers = [found.get(name) for name in ("turn", "start", "stop")]
    whole = all(isinstance(text, str) for text in texts) and texts[1] in KINDS
    placed = all(number is None or (type(number) is int and 0 <= number < 1 << 40) for number in numbers)
    return Entry(*texts, *numbers) if whole and placed else None  # type: ignore[arg-type]


def _checked(name: str, text: str, most: int, *, lines: bool) -> str:
    text = text.strip() if lines else re.sub(r"\s+", " ", text).strip()
    if not text:
        raise StoreError(f"{name}: empty. Expected a text.")
    if len(text) > most:
        raise StoreError(f"{name}: {len(text):,} characters; at most {most:,}.")
    odd = next((c for c in text if unicodedata.category(c) in _NEVER and not (lines and c in "\n\t")), None)
    if odd is not None:
        raise StoreError(f"{name}: holds U+{ord(odd):04X}, a sign that is not shown. Leave it out.")
    return text


def checked_place(transcript: Transcript | None, turn: int | None, tokens: tuple[int, int] | None) -> None:
    """Refuses a place that a rollout does not have.

    Args:
        transcript: the rollout; None where another tool wrote it, without tokens.
        turn: a turn's number.
        tokens: the first token and the one behind the last.

    Raises:
        StoreError: there is no such turn, or there are no such tokens.
    """
    if transcript is None:
        raise StoreError("This rollout has no turns and tokens of ours; only the whole of it can be named.")
    if turn is not None and not 0 <= turn < len(transcript.turns):
        raise StoreError(f"turn {turn}: this rollout has {len(transcript.turns)} turns, from 0.")
    if tokens is not None and not 0 <= tokens[0] < tokens[1] <= len(transcript.tokens):
        raise StoreError(
            f"tokens {tokens[0]}:{tokens[1]}: this rollout has {len(transcript.tokens)}, from 0."
        )
