"""Asks a server, and reads no more of an answer, and no longer, than is set: it may be anybody's."""

from __future__ import annotations

import socket
import threading
import weakref
import zlib
from collections.abc import Mapping
from typing import Any

import httpx

from rollout_traces.errors import StoreError
from rollout_traces.model.bounded_reading import check_values

TIMEOUT = 60.0
"""Seconds to wait for the next part of an answer."""
WHOLE_ANSWER = 300.0
"""Seconds within which a whole answer has to arrive, its head included."""
MOST_BYTES = 256 << 20
"""Bytes of one answer, unpacked; a page of texts has 64 MiB of them, or is one longer text."""


class _Connection:
    """A thread's connection, which another thread may end.

    Args:
        headers: sent with every question. Redirects are not followed: nobody else gets the token.
    """

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.client = httpx.Client(timeout=TIMEOUT, headers=headers, follow_redirects=False)
        self._stream: Any = None

    def note(self, event: str, details: Mapping[str, Any]) -> None:
        """Takes what httpx tells of a question while it is asked."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._stream = details["return_value"]

    def hang_up(self, late: threading.Event) -> None:
        """Ends a wait for the next byte, wherever in the answer it is."""
        late.set()
        if self._stream is not None:
            try:
                self._stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # the server has hung up itself


class ServerClient:
    """Asks one server, from any thread, over a connection a thread.

    Args:
        address: of the server; messages name it.
        what: what is expected there, in words, such as `Trackio server`.
        headers: sent with every question.
    """

    def __init__(self, address: str, what: str, headers: Mapping[str, str]) -> None:
        self.address = address
        self.headers = {**headers, "Accept-Encoding": "gzip"}
        self._what = what
        self._of_thread = threading.local()
        self._connections: weakref.WeakSet[_Connection] = weakref.WeakSet()

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
        late, connection = threading.Event(), self._connection()
        patience = threading.Timer(WHOLE_ANSWER, connection.hang_up, (late,))
        patience.daemon = True
        patience.start()
        seen = {"trace": connection.note}
        try:
            with connection.client.stream(
                method, f"{self.address}{path}", extensions=seen, **what
            ) as response:
                status, content = response.status_code, self._content(response, path)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            if late.is_set():
                raise self._too_late(path) from error
            raise StoreError(
                f"no {self._what} answers at {self.address} ({error}). Is it running?"
            ) from error
        finally:
            patience.cancel()
        if late.is_set():  # where an answer does not say how long it is, hanging up reads as its end
            raise self._too_late(path)
        return status, content

    def close(self) -> None:
        """Closes every thread's connection."""
        for connection in list(self._connections):
            connection.client.close()

    def _connection(self) -> _Connection:
        if not hasattr(self._of_thread, "connection"):
            self._of_thread.connection = _Connection(self.headers)
            self._connections.add(self._of_thread.connection)
        found: _Connection = self._of_thread.connection
        return found

    def _content(self, response: httpx.Response, path: str) -> bytes:
        packed = response.headers.get("Content-Encoding", "identity")
        if packed not in ("identity", "gzip"):
            raise self._refused(path, f"seen an answer packed as {packed[:40]}, expected gzip or none")
        unpack = zlib.decompressobj(zlib.MAX_WBITS | 16)
        parts, size = [], 0
        try:
            for part in response.iter_raw():
                if packed == "gzip":
                    part = unpack.decompress(part, MOST_BYTES - size + 1)
                parts.append(part)
                size += len(part)
                if size > MOST_BYTES:
                    raise self._refused(path, f"more than {MOST_BYTES >> 20} MiB; not read on")
            content = b"".join(parts)
            check_values(content)
        except (zlib.error, ValueError) as error:
            raise self._refused(path, str(error)) from error
        return content

    def _too_late(self, path: str) -> StoreError:
        return self._refused(path, f"no whole answer within {WHOLE_ANSWER:g} s")

    def _refused(self, path: str, why: str) -> StoreError:
        return StoreError(f"{self.address}: {path.rpartition('/')[2]}: {why}.")


def give_the_hub_up_after(seconds: float) -> None:
    """Has `huggingface_hub` give up where the Hub says nothing for so long, in this process; by itself it waits for ever."""
    from huggingface_hub import get_session, set_client_factory

    usual = get_session()
    made, hooks = type(usual), usual.event_hooks
    set_client_factory(lambda: made(event_hooks=hooks, follow_redirects=True, timeout=seconds))
