"""Whatever a server answers takes bounded time and memory, and is one sentence."""

from __future__ import annotations

import gzip
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from rollout_traces.errors import StoreError
from rollout_traces.store import server_client
from rollout_traces.store.server_client import ServerClient
from tests.lying_server import (
    Answer,
    LyingServer,
    body,
    dripping,
    dripping_head,
    endless,
    late,
    lying_server,
)


@pytest.fixture
def lying() -> Iterator[LyingServer]:
    with lying_server() as found:
        yield found


def asked(lying: LyingServer, answer: Answer) -> tuple[int, bytes]:
    """What is read of an answer."""
    lying.answers["x"] = answer
    client = ServerClient(lying.address, "server", {"Authorization": "Bearer it"})
    try:
        return client.ask("GET", "/api/x", params={"a": 1})
    finally:
        client.close()


class TestAnswers:
    def test_come_with_their_status_packed_or_not(self, lying: LyingServer) -> None:
        assert asked(lying, body(b"said", status=404)) == (404, b"said")
        assert asked(lying, body(gzip.compress(b"said"), "gzip")) == (200, b"said")
        assert lying.asked == ["/api/x?a=1"] * 2


class TestWithoutEnd:
    def test_one_is_not_read_on(self, lying: LyingServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(server_client, "MOST_BYTES", 1 << 20)
        with pytest.raises(StoreError, match="x: more than 1 MiB; not read on"):
            asked(lying, endless)

    @pytest.mark.parametrize("answer", [dripping, dripping_head])
    def test_one_that_drips_is_given_up(
        self, lying: LyingServer, answer: Answer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Seen once: a head that dripped was waited for without end."""
        monkeypatch.setattr(server_client, "WHOLE_ANSWER", 0.5)
        with pytest.raises(StoreError, match=r"x: no whole answer within 0\.5 s"):
            asked(lying, answer)

    def test_one_that_is_given_up_ends_nobody_elses(
        self, lying: LyingServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Seen once: the connection that was made last was hung up, whoever had asked over it."""
        lying.answers.update(slow=dripping, whole=late(1.0, body(b"said")))
        client = ServerClient(lying.address, "server", {})
        monkeypatch.setattr(server_client, "WHOLE_ANSWER", 0.5)
        with ThreadPoolExecutor(2) as threads:
            slow = threads.submit(client.ask, "GET", "/api/slow")
            while not lying.asked:
                time.sleep(0.01)
            monkeypatch.setattr(server_client, "WHOLE_ANSWER", 60.0)
            whole = threads.submit(client.ask, "GET", "/api/whole")
            with pytest.raises(StoreError, match="slow: no whole answer within"):
                slow.result()
            assert whole.result() == (200, b"said")
        client.close()


class TestBombs:
    def test_a_packed_one_is_unpacked_up_to_the_bound(
        self, lying: LyingServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server_client, "MOST_BYTES", 1 << 20)
        bomb = body(gzip.compress(bytes(64 << 20)), "gzip")
        tracemalloc.start()
        try:
            with pytest.raises(StoreError, match="more than 1 MiB"):
                asked(lying, bomb)
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize("packed", ["zstd", "br", "gzip, gzip", "deflate"])
    def test_what_was_not_asked_for_is_not_unpacked(self, lying: LyingServer, packed: str) -> None:
        with pytest.raises(StoreError, match=f"packed as {packed}, expected gzip or none"):
            asked(lying, body(b"said", packed))

    def test_what_is_no_gzip_is_said(self, lying: LyingServer) -> None:
        with pytest.raises(StoreError, match="x: Error -3"):
            asked(lying, body(b"said", "gzip"))

    def test_json_of_many_small_values_is_refused_before_it_is_decoded(self, lying: LyingServer) -> None:
        many = b'{"data":[' + b"{}," * (6 << 20) + b"{}]}"
        with pytest.raises(StoreError, match="bytes that would take up to"):
            asked(lying, body(gzip.compress(many), "gzip"))


class TestAddresses:
    @pytest.mark.parametrize("address", ["http://[::", "nothing", "ftp://127.0.0.1"])
    def test_one_that_nothing_can_be_asked_at_is_said(self, address: str) -> None:
        with pytest.raises(StoreError, match="no server answers at"):
            ServerClient(address, "server", {}).ask("GET", "/x")
