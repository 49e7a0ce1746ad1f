"""What crosses between two nodes, over a pair of sockets and between two folders."""

from __future__ import annotations

import os
import socket
import struct
from multiprocessing.connection import Client

import orjson
import pytest

from rollout_traces.cluster import connection
from rollout_traces.cluster.connection import (
    LiveTail,
    NodeAddress,
    NodeConnection,
    NodeConnectionError,
    NodeListener,
    Piece,
    copy_piece,
)
from rollout_traces.model.live_lines import LivePlace


class TestAnAddress:
    def test_is_read_back_as_it_was_written(self):
        address = NodeAddress("10.0.0.1", 4711, bytes(range(32)))
        assert NodeAddress.from_json(address.as_json()) == address

    @pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"host": "a", "port": "x", "key": "00"}'])
    def test_that_is_none_is_refused(self, data):
        with pytest.raises(NodeConnectionError, match="rank 0's address cannot be read"):
            NodeAddress.from_json(data)


def joined() -> tuple[NodeConnection, NodeConnection]:
    """Both ends of a connection, on which no key was asked for."""
    listener = NodeListener("127.0.0.1")
    ours = NodeConnection(Client((listener.address.host, listener.address.port)))
    theirs = listener.accept()
    listener.close()
    return ours, theirs


@pytest.fixture
def ends():
    both = joined()
    yield both
    for end in both:
        end.close()


class TestAMessage:
    def test_arrives_with_its_bytes_and_is_answered(self, ends):
        ours, theirs = ends
        theirs.send({"size": 3})
        assert ours.ask({"kind": "live"}, b"abc") == {"size": 3}
        assert theirs.receive() == ({"kind": "live"}, b"abc")

    def test_without_bytes_has_none(self, ends):
        ours, theirs = ends
        ours.send({})
        assert theirs.receive() == ({}, b"")

    @pytest.mark.parametrize(("text", "said"), [(b"[1]", "a message list"), (b"{", "broke")])
    def test_that_is_no_object_is_refused(self, ends, text, said):
        ours, theirs = ends
        ours._connection.send_bytes(text)
        ours._connection.send_bytes(b"")
        with pytest.raises(NodeConnectionError, match=said):
            theirs.receive()

    @pytest.mark.parametrize("limit", ["MAX_META", "MAX_BODY"])
    def test_is_taken_up_to_its_limit(self, ends, monkeypatch, limit):
        ours, theirs = ends
        meta, body = {"a": 1}, b"1234567"
        assert len(orjson.dumps(meta)) == len(body) == 7
        monkeypatch.setattr(connection, limit, 7)
        ours.send(meta, body)
        assert theirs.receive() == (meta, body)
        monkeypatch.setattr(connection, limit, 6)
        ours.send(meta, body)
        with pytest.raises(NodeConnectionError, match="broke"):
            theirs.receive()

    def test_that_does_not_come_is_waited_for_as_long_as_was_said(self, monkeypatch):
        monkeypatch.setattr(connection, "SILENCE", 0.25)
        ours, theirs = joined()
        with socket.socket(fileno=os.dup(ours._connection.fileno())) as same:
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                limit = struct.unpack("ll", same.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("ll")))
                assert limit == (0, pytest.approx(250_000, rel=0.05))  # the kernel counts in ticks
            assert same.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert same.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        with pytest.raises(NodeConnectionError, match=r"sent nothing for 0\.25 s"):
            ours.receive()
        ours.close()
        theirs.close()


class Live:
    """A node's folder of live files, and what rank 0 has of them."""

    def __init__(self, top) -> None:
        self.here = top / "here"
        self.there = top / "live" / "p" / "run"
        self.tail = LiveTail(self.here)
        self.copies = LivePlace(self.there, top / "live", "p", "run", "run")

    def take(self, piece: Piece) -> int:
        return copy_piece(piece, self.copies)

    def send(self) -> list[tuple]:
        """What was sent."""
        pieces = []
        for piece in self.tail.pieces():
            pieces.append(tuple(piece))
            self.tail.sent(piece, self.take(piece))
        return pieces

    def copied(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.there.iterdir()}


@pytest.fixture
def files(tmp_path):
    return Live(tmp_path)


class TestLiveFiles:
    def test_of_a_folder_that_is_not_there_are_none(self, files):
        assert files.send() == []

    def test_are_sent_from_where_the_last_look_ended(self, files):
        files.here.mkdir()
        (files.here / "b.jsonl").write_bytes(b"one\n")
        (files.here / "a.jsonl").write_bytes(b"other\n")
        (files.here / "a.json").write_bytes(b"none of them")
        assert files.send() == [("a.jsonl", 0, b"other\n"), ("b.jsonl", 0, b"one\n")]
        assert files.send() == []
        with (files.here / "b.jsonl").open("ab") as file:
            file.write(b"two")
        assert files.send() == [("b.jsonl", 4, b"two")] and files.send() == []
        assert files.copied() == {"a.jsonl": b"other\n", "b.jsonl": b"one\ntwo"}

    def test_that_were_written_anew_are_sent_from_their_beginning(self, files):
        files.here.mkdir()
        (files.here / "a.jsonl").write_bytes(b"one\ntwo\n")
        files.send()
        (files.here / "new").write_bytes(b"three\n")
        (files.here / "new").replace(files.here / "a.jsonl")
        assert files.send() == [("a.jsonl", 0, b"three\n")]
        assert files.copied() == {"a.jsonl": b"three\n"}

    @pytest.mark.parametrize("left", [None, b"", b"one\ntwo and more"])
    def test_whose_copy_is_another_are_sent_from_their_beginning_next(self, files, left):
        files.here.mkdir()
        (files.here / "a.jsonl").write_bytes(b"one\n")
        files.send()
        copy = files.there / "a.jsonl"
        copy.unlink()
        if left is not None:
            copy.write_bytes(left)
        with (files.here / "a.jsonl").open("ab") as file:
            file.write(b"two\n")
        assert files.send() == [("a.jsonl", 4, b"two\n")]
        assert files.copied() == {"a.jsonl": left or b""}
        assert files.send() == [("a.jsonl", 0, b"one\ntwo\n")]
        assert files.copied() == {"a.jsonl": b"one\ntwo\n"} and files.send() == []

    def test_of_many_bytes_are_sent_piece_by_piece(self, files, monkeypatch):
        monkeypatch.setattr(connection, "MAX_BYTES", 3)
        files.here.mkdir()
        (files.here / "a.jsonl").write_bytes(b"123456")
        assert [files.send() for _ in range(3)] == [
            [("a.jsonl", 0, b"123")],
            [("a.jsonl", 3, b"456")],
            [],
        ]
        assert files.copied() == {"a.jsonl": b"123456"}


class TestACopy:
    @pytest.mark.parametrize(
        "name", ["", ".jsonl", "../a.jsonl", "a/b.jsonl", "a.json", "a.jsonl\n", "a" * 151 + ".jsonl"]
    )
    def test_has_the_name_of_a_live_file(self, files, name):
        with pytest.raises(ValueError, match="no name or size of one"):
            files.take(Piece(name, 0, b"x"))
        assert not files.there.exists()

    @pytest.mark.parametrize(("at", "data"), [(-1, b""), (20, b"1"), (0, b"1" * 21)])
    def test_has_no_more_bytes_than_two_runs_may(self, files, monkeypatch, at, data):
        monkeypatch.setattr(connection, "MAX_BYTES", 10)
        assert files.take(Piece("a" * 150 + ".jsonl", 0, b"1" * 20)) == 20
        with pytest.raises(ValueError, match="no name or size of one"):
            files.take(Piece("a" * 150 + ".jsonl", at, data))

    def test_is_its_owners_alone(self, files):
        files.take(Piece("a.jsonl", 0, b"one"))
        files.take(Piece("b.jsonl", 1, b"one"))
        assert {path.stat().st_mode & 0o077 for path in files.there.iterdir()} == {0}
