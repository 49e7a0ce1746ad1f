"""An inspector that runs elsewhere: its page is asked to move, and its labels and those of a project here are made equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from rollout_traces.errors import StoreError
from rollout_traces.inspector.api.answers import LabelLinesAnswer, OpenedAnswer
from rollout_traces.inspector.pages.labels import TakenLines
from rollout_traces.inspector.workspace import as_plain
from rollout_traces.model.text import SAID
from rollout_traces.model.units import KB
from rollout_traces.store.http_source import ServerClient
from rollout_traces.store.labels import MOST_BYTES, Entry, LabelBook

MOST_SENT = 48 * KB
"""Bytes of lines that are sent at once; a server takes 64 KiB."""
LINES = "/api/v1/labels/lines"
Model = TypeVar("Model")


@dataclass(frozen=True)
class Synced:
    """The lines that went over.

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


def open_elsewhere(address: str, token: str | None, state: Mapping[str, str]) -> OpenedAnswer:
    """Sends a state to an inspector.

    Args:
        address: of the inspector, such as `http://127.0.0.1:7861`.
        state: what its address would name.

    Raises:
        StoreError: it does not answer, or refuses.
    """
    with _client(address, token) as client:
        _asked(client, "POST", "/api/v1/open", json={"state": dict(state)})
    return OpenedAnswer()


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
    with _client(address, token) as client:
        there, author = _lines_there(client, project)
        known = {entry.id for entry in there}
        missing = [entry for entry in book.lines() if entry.id not in known]
        own = [entry for entry in missing if entry.author == author]
        taken = book.take(there)
        given = 0
        refused: list[str] = []
        for lines in _parts(own):
            sent = {"project": project, "lines": as_plain(lines)}
            found = _lines(client, TakenLines, "POST", json=sent)
            given += found.taken
            refused += found.refused
    return Synced(taken, given, len(missing) - len(own), tuple(refused))


def _lines_there(client: ServerClient, project: str) -> tuple[list[Entry], str]:
    """All lines of the server, no more than a file of labels holds, and the name under which the token writes."""
    there: list[Entry] = []
    after, size = 0, 0
    while True:
        part = _lines(client, LabelLinesAnswer, "GET", params={"project": project, "after": after})
        there += part.lines
        size += sum(len(str(line)) for line in part.lines)
        if part.next is None:
            return there, part.author
        if part.next <= after or size > MOST_BYTES:
            raise StoreError(
                f"the inspector at {client.address} has labels without end; expected {MOST_BYTES:,} bytes."
            )
        after = part.next


def _client(address: str, token: str | None) -> closing[ServerClient]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return closing(ServerClient(address.rstrip("/"), "inspector", headers))


def _asked(client: ServerClient, method: str, path: str, **what: Any) -> bytes:
    status, answer = client.ask(method, path, **what)
    if status != HTTPStatus.OK:
        said = answer[:SAID].decode("utf-8", "replace")
        raise StoreError(f"the inspector at {client.address} refuses ({status}): {said}")
    return answer


def _lines(client: ServerClient, model: type[Model], method: str, **what: Any) -> Model:
    try:
        return TypeAdapter(model).validate_json(_asked(client, method, LINES, **what))
    except ValidationError as error:
        raise StoreError(
            f"the inspector at {client.address} answers something else than lines of labels."
        ) from error


def _parts(lines: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    part: list[Entry] = []
    size = 0
    for line in lines:
        length = len(str(asdict(line)).encode()) * 2
        if part and size + length > MOST_SENT:
            yield part
            part, size = [], 0
        part.append(line)
        size += length
    if part:
        yield part
