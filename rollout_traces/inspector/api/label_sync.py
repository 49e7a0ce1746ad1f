"""Labels of a project on this machine and of the same project on the server that serves it, made equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import httpx
from pydantic import TypeAdapter

from rollout_traces.errors import StoreError
from rollout_traces.inspector.api.models import LabelLinesAnswer, TakenAnswer
from rollout_traces.inspector.asking import as_plain
from rollout_traces.store.labels import Entry, LabelBook

MOST_BYTES = 48 << 10
"""Bytes of lines that are sent at once; a server takes 64 KiB."""


@dataclass(frozen=True)
class Synced:
    """What went over.

    Attributes:
        taken: lines that came from the server.
        given: lines that it did not have.
        kept: lines that it lacks and that stay here: other writers' than the token's.
        refused: why it refused others, a sentence each.
    """

    taken: int
    given: int
    kept: int = 0
    refused: tuple[str, ...] = ()


def sync_labels(book: LabelBook, project: str, address: str, token: str | None) -> Synced:
    """Exchanges the lines that one side has and the other lacks. Nothing is lost when it is cut: do it again.

    A server takes the lines of its token's own name alone, and dates them itself.

    Args:
        book: the labels here.
        project: what the server calls the project.
        address: of the inspector, such as `http://127.0.0.1:7861`.
        token: its token; of a private Space a token of the Hub.

    Raises:
        StoreError: it does not answer, or refuses; or what it holds cannot be kept here.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with httpx.Client(base_url=address.rstrip("/"), headers=headers, timeout=60) as client:
        there: list[Entry] = []
        after: int | None = 0
        while after is not None:
            answer = _asked(client, "GET", params={"project": project, "after": after})
            part = TypeAdapter(LabelLinesAnswer).validate_json(answer)
            there += part.lines
            after = part.next
        known = {entry.id for entry in there}
        missing = [entry for entry in book.lines() if entry.id not in known]
        own = [entry for entry in missing if entry.author == part.author]
        taken = book.take(there)
        given = 0
        refused: list[str] = []
        for lines in _parts(own):
            sent = {"project": project, "lines": as_plain(lines)}
            found = TypeAdapter(TakenAnswer).validate_json(_asked(client, "POST", json=sent))
            given += found.taken
            refused += found.refused
    return Synced(taken, given, len(missing) - len(own), tuple(refused))


def _asked(client: httpx.Client, method: str, **what: Any) -> bytes:
    try:
        answer = client.request(method, "/api/v1/labels/lines", **what)
    except httpx.HTTPError as error:
        raise StoreError(f"the inspector at {client.base_url} does not answer ({error}).") from error
    if answer.status_code != 200:
        raise StoreError(
            f"the inspector at {client.base_url} refuses ({answer.status_code}): {answer.text[:300]}"
        )
    return answer.content


def _parts(lines: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    part: list[Entry] = []
    size = 0
    for line in lines:
        length = len(str(asdict(line)).encode()) * 2
        if part and size + length > MOST_BYTES:
            yield part
            part, size = [], 0
        part.append(line)
        size += length
    if part:
        yield part
