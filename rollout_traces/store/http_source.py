"""A project on a Trackio server or a Hugging Face Space that runs Trackio, over its HTTP API.

Trackio answers read-only SQL (`/api/query_project`) with at most 10,000 rows and takes no parameters, so
values are written into the statement: numbers as numbers, texts as hexadecimal, never as quoted text. Of an answer no
more is read, and no longer, than is set: the server may be anybody's.
Tested against a self-hosted server; a Space speaks the same protocol and is untested.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import threading
import zlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import orjson

from rollout_traces.errors import ConfigError, StoreError
from rollout_traces.model.bounded_reading import check_values
from rollout_traces.model.text import BRIEF, SAID
from rollout_traces.model.units import MB, MINUTE
from rollout_traces.store.places import cached_index_path
from rollout_traces.store.source import Source, SqlValue

SHOWN = 100
"""Characters of an answer that a message repeats."""
_SPACE = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


class HttpSource(Source):
    """A project on a server.

    Args:
        project: its name.
        server_url: a self-hosted server, `http://host:port`; a write token in it is never sent, the
            `access_token` of an inspector is.
        space: a Space, `user/name`; read with the user's Hugging Face token where there is one.

    Raises:
        StoreError: nothing answers there, or it has no such project.
    """

    page = 200

    def __init__(self, project: str, *, server_url: str | None = None, space: str | None = None) -> None:
        self.project = project
        self._api = _Api(server_url, space)
        self.address = self._api.address
        self.label = f"project {project!r} at {self.address}"
        known = self._api.projects()
        if project not in known:
            raise StoreError(
                f"no project {project!r} at {self.address}. Projects there: {', '.join(known) or 'none'}."
            )

    def select(self, sql: str, parameters: Sequence[SqlValue] = ()) -> list[tuple[Any, ...]]:
        """Runs one SELECT on the server."""
        answer = self._api.call("query_project", project=self.project, query=with_values(sql, parameters))
        return _rows(answer, self.address)

    def index_path(self) -> Path:
        """In the user's cache."""
        return cached_index_path(f"{self.address} {self.project}")

    def side_folder(self) -> str:
        """In the user's cache, where no rebuilt index takes it away."""
        index = self.index_path()
        return str(index.with_name(f"{index.name}-columns"))

    def close(self) -> None:
        """Closes the connection."""
        self._api.close()


def remote_projects(*, server_url: str | None = None, space: str | None = None) -> list[str]:
    """The projects on a server or Space.

    Args:
        server_url: a self-hosted server.
        space: a Space, `user/name`.

    Raises:
        StoreError: nothing answers there.
    """
    with closing(_Api(server_url, space)) as api:
        return sorted(api.projects())


def with_values(sql: str, parameters: Sequence[SqlValue]) -> str:
    """A statement with its values written in.

    Args:
        sql: the statement, with one `?` for each value and none elsewhere.
    """
    pieces = sql.split("?")
    if len(pieces) != len(parameters) + 1:
        raise ValueError(f"{len(parameters)} values for {len(pieces) - 1} places in: {sql}")
    values = [*map(_literal, parameters), ""]
    return "".join(piece + value for piece, value in zip(pieces, values, strict=True))


def _rows(answer: Any, address: str) -> list[tuple[Any, ...]]:
    """The rows of a server's answer to a SELECT.

    Raises:
        StoreError: it is not built like one.
    """
    try:
        columns, rows = answer["columns"], answer["rows"]
        found = [tuple(row[column] for column in columns) for row in rows]
        values = [value for row in found for value in row]
        is_one = isinstance(columns, list) and all(isinstance(value, SqlValue) for value in values)
    except (TypeError, KeyError, IndexError):
        is_one = False
    if not is_one:
        raise StoreError(f"{address}: query_project: expected rows of columns; seen {str(answer)[:SHOWN]}.")
    return found


def _literal(value: SqlValue) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return f"CAST(X'{value.encode('utf-8', 'replace').hex()}' AS TEXT)"
    if isinstance(value, int):
        return str(int(value))
    return repr(value) if math.isfinite(value) else ("9e999" if value > 0 else "-9e999")


TIMEOUT = 1.0 * MINUTE
"""Seconds to wait for the next part of an answer."""
WHOLE_ANSWER = 5.0 * MINUTE
"""Seconds within which a whole answer has to arrive, its head included."""
MOST_BYTES = 256 * MB
"""Bytes of one answer, unpacked; a page of texts has 64 MiB of them, or is one longer text."""


class ServerClient:
    """Asks one server, from any thread.

    Args:
        address: of the server; messages name it.
        what: what is expected there, in words, such as `Trackio server`.
        headers: sent with every question. Redirects are not followed: nobody else gets the token.
    """

    def __init__(self, address: str, what: str, headers: Mapping[str, str]) -> None:
        self.address = address
        self.headers = {**headers, "Accept-Encoding": "gzip"}
        self._what = what
        self._loop = _asking_loop()
        self._client = httpx.AsyncClient(timeout=TIMEOUT, headers=self.headers, follow_redirects=False)

    def ask(self, method: str, path: str, **what: Any) -> tuple[int, bytes]:
        """The status and content of an answer.

        Args:
            method: of HTTP.
            path: below the address.
            what: as httpx takes it: `json`, `params`.

        Raises:
            StoreError: nothing answers, or what answers is too long, too late, packed in another way than
                asked for, or JSON of more values than its size accounts for.
        """
        whole = asyncio.wait_for(self._answer(method, path, what), WHOLE_ANSWER)
        try:
            status, content = asyncio.run_coroutine_threadsafe(whole, self._loop).result()
            check_values(content)
        except asyncio.TimeoutError as error:
            raise self._refused(path, f"no whole answer within {WHOLE_ANSWER:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise StoreError(
                f"no {self._what} answers at {self.address} ({error}). Is it running?"
            ) from error
        except (zlib.error, ValueError) as error:
            raise self._refused(path, str(error)) from error
        return status, content

    def close(self) -> None:
        """Closes the connections."""
        asyncio.run_coroutine_threadsafe(self._client.aclose(), self._loop).result()

    async def _answer(self, method: str, path: str, what: Mapping[str, Any]) -> tuple[int, bytes]:
        async with self._client.stream(method, f"{self.address}{path}", **what) as response:
            packed = response.headers.get("Content-Encoding", "identity")
            if packed not in ("identity", "gzip"):
                raise self._refused(path, f"seen an answer packed as {packed[:BRIEF]}, expected gzip or none")
            unpack = zlib.decompressobj(zlib.MAX_WBITS | 16)
            parts, size = [], 0
            async for part in response.aiter_raw():
                if packed == "gzip":
                    part = unpack.decompress(part, MOST_BYTES - size + 1)
                parts.append(part)
                size += len(part)
                if size > MOST_BYTES:
                    raise self._refused(path, f"more than {MOST_BYTES // MB} MiB; not read on")
            return response.status_code, b"".join(parts)

    def _refused(self, path: str, why: str) -> StoreError:
        return StoreError(f"{self.address}: {path.rpartition('/')[2]}: {why}.")


@cache
def _asking_loop() -> asyncio.AbstractEventLoop:
    """The loop that waits for answers, in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="rollout-traces-http", daemon=True).start()
    return loop


os.register_at_fork(after_in_child=_asking_loop.cache_clear)  # no thread goes along


class _Api(ServerClient):
    """Trackio's HTTP API at one address."""

    def __init__(self, server_url: str | None, space: str | None) -> None:
        if space is not None:
            from huggingface_hub import get_token

            address, token = _space_address(space), get_token()
        else:
            address = _server_address(server_url or "")
            token = next(iter(parse_qs(urlsplit(server_url or "").query).get("access_token", ())), None)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        super().__init__(address, "Trackio server", headers)

    def projects(self) -> list[str]:
        """The names of the projects there.

        Raises:
            StoreError: nothing answers, or something else than a list of names.
        """
        known = self.call("get_all_projects")
        if not isinstance(known, list) or not all(isinstance(name, str) for name in known):
            raise StoreError(
                f"{self.address}: get_all_projects: expected a list of names; seen {str(known)[:SHOWN]}."
            )
        return known

    def call(self, name: str, **arguments: Any) -> Any:
        """Calls a function of the server and gives its answer.

        Raises:
            StoreError: nothing answers, or something that is no answer, too long, or too late.
        """
        asked = {"args": [], "kwargs": arguments}
        status, content = self.ask("POST", f"/api/{name}", json=asked)
        try:
            body = orjson.loads(content)
        except ValueError as error:
            raise StoreError(
                f"{self.address} answers with HTTP {status} and no JSON; is it a Trackio server >= 0.24?"
            ) from error
        if not isinstance(body, dict) or body.get("error") is not None or "data" not in body:
            said = body.get("error", body) if isinstance(body, dict) else body
            raise StoreError(f"{self.address}: {name}: HTTP {status}: {str(said)[:SAID]}")
        return body["data"]


def _server_address(url: str) -> str:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"server_url: {url!r}, expected http://host:port.")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


def _space_address(space: str) -> str:
    if not _SPACE.fullmatch(space):
        raise ConfigError(f"space: {space!r}, expected user/name.")
    return "https://" + space.lower().replace("/", "-").replace("_", "-").replace(".", "-") + ".hf.space"


def give_the_hub_up_after(seconds: float) -> None:
    """Has `huggingface_hub` give up where the Hub says nothing for so long, in this process; by itself it waits for ever."""
    from huggingface_hub import get_session, set_client_factory

    usual = get_session()
    made, hooks = type(usual), usual.event_hooks
    set_client_factory(lambda: made(event_hooks=hooks, follow_redirects=True, timeout=seconds))
