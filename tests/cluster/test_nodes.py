"""The connection between two nodes: real sockets and a real store of torch, both sides in this process."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections import Counter
from dataclasses import replace

import pytest
import torch.distributed as dist

from rollout_traces.cluster import connection, forwarding, receiving
from rollout_traces.cluster.connection import NodeAddress, NodeConnection, NodeConnectionError, NodeListener
from rollout_traces.cluster.forwarding import NodeForwarder
from rollout_traces.cluster.receiving import NodeReceiver
from rollout_traces.cluster.rendezvous import ADDRESS, NodeMeeting, host_and_port, own_store
from rollout_traces.errors import Warnings
from rollout_traces.model.live_lines import LivePlace
from rollout_traces.spool.folder import SpoolReader, SpoolWriter
from rollout_traces.spool.record import Record, encode
from rollout_traces.spool.run_folder import RunFolder
from tests.spool.damage import flip_byte
from tests.until import until

SPOOL = "from-rank-1-7-ab"


@pytest.fixture
def store():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


class Nodes:
    """Rank 0's folder and that of another node."""

    def __init__(self, store, tmp_path, max_bytes=1 << 30):
        self.store = store
        self.counters = Counter()
        self.there = RunFolder(tmp_path / "there")
        self.here = RunFolder(tmp_path / "here")
        for folder in (self.there, self.here):
            folder.path.mkdir()
        self.writer = SpoolWriter(self.here.path / SPOOL, 1 << 30)
        warnings = Warnings(self.counters)
        self.meeting = NodeMeeting(own_store(store), "logger")
        there = NodeMeeting(own_store(store), "logger")
        self.live = LivePlace(tmp_path / "live" / "p" / "run", tmp_path / "live", "p", "run", "run")
        self.receiver = NodeReceiver(self.there, there, max_bytes, warnings, self.live)
        self.sender = NodeForwarder(self.here, NodeMeeting(own_store(store), "logger"), warnings)
        self.receiver.start()

    def connect(self):
        """A connection of a node that this test drives."""
        self.node = self.meeting.ask()
        return NodeConnection.connect(self.meeting.wait_for_address())

    def alive(self, link):
        return link.ask({"kind": "alive", "node": self.node, "spools": [SPOOL]})

    def put(self, step, kind="scalars"):
        return self.writer.append(encode(Record(kind, {"step": step})))

    @property
    def waiting(self):
        return SpoolReader(self.here.path / SPOOL).names()

    def arrived(self):
        reader = SpoolReader(self.there.path / SPOOL)
        return [reader.read(name).meta["step"] for name in reader.names()]

    def end(self):
        self.writer.close()
        self.sender.close(10)
        self.receiver.close(0.3)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    monkeypatch.setattr(receiving, "LOOK_EVERY", 0.05)


@pytest.fixture
def nodes(store, tmp_path):
    nodes = Nodes(store, tmp_path)
    yield nodes
    nodes.end()


class TestSending:
    def test_keeps_the_order_and_leaves_nothing_behind(self, nodes):
        for step in range(5):
            nodes.put(step)
        nodes.sender.start()
        until(lambda: not nodes.waiting)
        assert nodes.arrived() == [0, 1, 2, 3, 4]
        assert nodes.counters["records_sent"] == nodes.counters["records_received"] == 5

    def test_keeps_a_flush_waiting_until_rank_0_stored_it(self, nodes):
        nodes.put(0)
        nodes.put(1, "flush")
        nodes.sender.start()
        until(lambda: len(nodes.arrived()) == 2)
        time.sleep(0.3)
        assert len(nodes.waiting) == 1
        reader = SpoolReader(nodes.there.path / SPOOL)
        for name in reader.names():
            reader.remove(name)
        until(lambda: not nodes.waiting)

    def test_says_when_a_rank_is_gone(self, nodes):
        nodes.put(0)
        nodes.sender.start()
        until(lambda: not nodes.waiting)
        there = SpoolReader(nodes.there.path / SPOOL)
        assert not there.owner_is_gone
        nodes.writer.close()
        until(lambda: there.owner_is_gone)

    def test_sets_a_damaged_record_aside_and_goes_on(self, nodes):
        name = nodes.put(0)
        nodes.put(1)
        flip_byte(nodes.here.path / SPOOL, name, 60)
        nodes.sender.start()
        until(lambda: not nodes.waiting)
        assert nodes.arrived() == [1]
        assert nodes.counters["records_damaged"] == 1

    def test_waits_while_rank_0_has_no_room(self, store, tmp_path, monkeypatch):
        monkeypatch.setattr(forwarding, "BEAT", 0.1)
        monkeypatch.setattr(forwarding, "MAX_BACKOFF", 0.2)
        nodes = Nodes(store, tmp_path, max_bytes=300)
        for step in range(4):
            nodes.put(step)
        nodes.sender.start()
        until(lambda: nodes.counters["records_refused"] > 2)
        reader = SpoolReader(nodes.there.path / SPOOL)
        seen = []
        while len(seen) < 4:
            for name in reader.names():
                seen.append(reader.read(name).meta["step"])
                reader.remove(name)
            time.sleep(0.05)
        until(lambda: not nodes.waiting)
        assert seen == [0, 1, 2, 3]
        nodes.end()

    def test_offers_what_was_refused_ever_more_seldom_until_there_is_room(self, store, tmp_path):
        nodes = Nodes(store, tmp_path, max_bytes=0)
        offered = []

        class Line:
            def ask(self, meta, body=b""):
                offered.append(meta["name"])
                return {"taken": room}

        room, pauses = False, []
        first = nodes.put(0)
        nodes.sender._alive_at = time.monotonic()
        for _ in range(6):
            nodes.sender._send_waiting(Line())
            nodes.sender._send_waiting(Line())
            pauses.append(nodes.sender._refused[SPOOL][1])
            nodes.sender._refused[SPOOL] = (time.monotonic() - pauses[-1], pauses[-1])
        assert offered == [first] * 6, "once a pause"
        assert pauses == [2, 4, 8, 16, 30, 30]
        room = True
        assert nodes.sender._send_waiting(Line())
        assert nodes.sender._refused == {} and not nodes.waiting
        nodes.end()


class TestABrokenConnection:
    def test_is_made_anew_and_what_was_sent_is_not_doubled(self, nodes, monkeypatch):
        broken = []
        ask = NodeConnection.ask

        def ask_and_break(link, meta, body=b""):
            answer = ask(link, meta, body)
            if meta["kind"] == "record" and not broken:
                broken.append(meta["name"])
                raise NodeConnectionError("the answer was lost")
            return answer

        monkeypatch.setattr(NodeConnection, "ask", ask_and_break)
        for step in range(3):
            nodes.put(step)
        nodes.sender.start()
        until(lambda: not nodes.waiting)
        assert nodes.arrived() == [0, 1, 2]
        assert nodes.counters["connections_lost"] >= 1

    def test_of_a_lost_rank_frees_the_spools_that_it_fed(self, nodes):
        link = nodes.connect()
        nodes.alive(link)
        there = SpoolReader(nodes.there.path / SPOOL)
        assert not there.owner_is_gone
        link.close()
        until(lambda: there.owner_is_gone)
        assert nodes.counters["connections_lost"] == 1

    def test_leaves_alone_what_a_newer_connection_took_over(self, nodes):
        links = []
        for _ in range(2):
            links.append(nodes.connect())
            nodes.alive(links[-1])
        links[0].close()
        until(lambda: nodes.counters["connections_lost"] == 1)
        assert not SpoolReader(nodes.there.path / SPOOL).owner_is_gone
        links[1].ask({"kind": "close"})

    def test_is_what_a_node_sees_that_comes_after_rank_0_has_finished(self, nodes):
        link = nodes.connect()
        nodes.alive(link)
        nodes.receiver.close(0)
        shutil.rmtree(nodes.there.path)
        with pytest.raises(NodeConnectionError):
            link.ask({"kind": "record", "spool": SPOOL, "name": "1"}, b"x")
        assert not nodes.there.path.exists()
        with pytest.raises(NodeConnectionError, match="no connection"):
            nodes.connect()

    @pytest.mark.parametrize("spool", ["../../etc", "from-rank-1/../..", "from-4-ab", 7])
    def test_follows_a_spool_that_is_no_ranks(self, nodes, spool):
        link = nodes.connect()
        with pytest.raises(NodeConnectionError):
            link.ask({"kind": "record", "spool": spool, "name": "1"}, b"x")
        assert list(nodes.there.path.iterdir()) == []
        until(lambda: nodes.counters["connections_lost"] == 1)

    @pytest.mark.parametrize("meta", [{"kind": "delete"}, {}, {"kind": "alive"}, ["alive"]])
    def test_follows_a_message_of_no_known_kind(self, nodes, meta):
        with pytest.raises(NodeConnectionError):
            nodes.connect().ask(meta)
        until(lambda: nodes.counters["connections_lost"] == 1)

    def test_follows_a_message_longer_than_is_accepted(self, nodes, monkeypatch):
        link = nodes.connect()
        nodes.alive(link)
        monkeypatch.setattr(connection, "MAX_BODY", 10)
        link.ask({"kind": "stored?", "spool": SPOOL, "name": "1"}, bytes(10))
        with pytest.raises(NodeConnectionError):
            link.ask({"kind": "record", "spool": SPOOL, "name": "1"}, bytes(11))
        until(lambda: nodes.counters["connections_lost"] == 1)


class TestASlowRank:
    def test_is_given_up_after_a_silence_and_taken_again(self, nodes, monkeypatch):
        monkeypatch.setattr(connection, "SILENCE", 0.5)
        link = nodes.connect()
        nodes.alive(link)
        there = SpoolReader(nodes.there.path / SPOOL)
        until(lambda: there.owner_is_gone)
        assert nodes.counters["connections_lost"] == 1
        nodes.put(0)
        nodes.sender.start()
        until(lambda: not nodes.waiting)
        assert nodes.arrived() == [0]

    def test_that_stops_within_a_message_is_given_up_too(self, nodes, monkeypatch):
        monkeypatch.setattr(connection, "SILENCE", 0.5)
        link = nodes.connect()
        nodes.alive(link)
        os.write(link._connection.fileno(), b"\x00\x00\x10\x00half")
        until(lambda: nodes.counters["connections_lost"] == 1)

    def test_does_not_hold_up_the_others(self, nodes):
        slow = nodes.connect()
        nodes.alive(slow)
        os.write(slow._connection.fileno(), b"\x00\x00\x10\x00half")
        nodes.put(0)
        nodes.sender.start()
        until(lambda: not nodes.waiting)
        slow.close()

    def test_that_never_comes_is_waited_for_no_longer_than_was_said(self, nodes):
        nodes.meeting.ask()
        began = time.monotonic()
        nodes.receiver.close(0.5)
        assert time.monotonic() - began < 20
        assert nodes.counters["nodes_left"] == 1


class TestAWrongKey:
    def test_is_refused_on_either_side_and_counted(self, nodes):
        good = nodes.connect()
        address = nodes.meeting.wait_for_address()
        with pytest.raises(NodeConnectionError, match="did not accept"):
            NodeConnection.connect(replace(address, key=b"x" * 32))
        until(lambda: nodes.counters["nodes_refused"] == 1)
        nodes.alive(good)
        assert nodes.counters["connections_lost"] == 0

    def test_gets_nothing_read_before_it_is_refused(self, nodes):
        nodes.connect()
        address = nodes.meeting.wait_for_address()
        with socket.create_connection((address.host, address.port)) as stranger:
            stranger.sendall(b"\x7f\xff\xff\xff" + b"GET / HTTP/1.1\r\n\r\n")
            until(lambda: nodes.counters["nodes_refused"] == 1)
        assert list(nodes.there.path.iterdir()) == []

    def test_of_many_silent_strangers_does_not_keep_a_node_out(self, nodes, monkeypatch):
        monkeypatch.setattr(connection, "SILENCE", 0.5)
        nodes.connect()
        address = nodes.meeting.wait_for_address()
        strangers = [socket.create_connection((address.host, address.port)) for _ in range(40)]
        nodes.put(0)
        nodes.sender.start()
        until(lambda: not nodes.waiting)
        for stranger in strangers:
            stranger.close()

    def test_is_never_printed(self):
        address = NodeAddress("127.0.0.1", 1, b"secret")
        assert "secret" not in repr(address) and address.key.hex() not in str(address)
        assert NodeAddress.from_json(address.as_json()) == address
        with pytest.raises(NodeConnectionError, match="cannot be read"):
            NodeAddress.from_json(b"{}")

    def test_listener_answers_with_its_own_key_only(self, monkeypatch):
        """A false rank 0 that knows the port but not the key learns nothing from a node."""
        listener = NodeListener("127.0.0.1")
        taken = []

        def serve():
            link = listener.accept()
            with pytest.raises(NodeConnectionError, match="without this job's key"):
                link.authenticate(b"another" * 5)
            taken.append(link)
            link.close()

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(NodeConnectionError):
            NodeConnection.connect(listener.address)
        thread.join(30)
        listener.close()
        assert taken


class TestRolloutsInFlight:
    @pytest.fixture
    def there(self, nodes, monkeypatch):
        """What rank 0 has of the node's live file."""
        monkeypatch.setattr(forwarding, "EVERY", 0.1)
        nodes.here.live.mkdir()
        copy = nodes.live.folder / "node-1-ab.jsonl"
        return lambda: copy.read_bytes() if copy.exists() else None

    def test_arrive_as_they_are_said_and_stay_as_they_were_when_the_node_is_gone(self, nodes, there):
        file = nodes.here.live / "node-1-ab.jsonl"
        file.write_bytes(b"one\n")
        nodes.sender.start()
        until(lambda: there() == b"one\n")
        with file.open("ab") as more:
            more.write(b"two\nhal")
        until(lambda: there() == b"one\ntwo\nhal")

    def test_a_file_that_was_written_anew_takes_the_place_of_the_copy(self, nodes, there):
        file = nodes.here.live / "node-1-ab.jsonl"
        file.write_bytes(b"one\ntwo\nthree\n")
        nodes.sender.start()
        until(lambda: there() == b"one\ntwo\nthree\n")
        anew = file.with_suffix(".new")
        anew.write_bytes(b"three\n")
        anew.replace(file)
        until(lambda: there() == b"three\n")

    def test_a_copy_that_lost_its_beginning_is_sent_anew(self, nodes, there):
        file = nodes.here.live / "node-1-ab.jsonl"
        file.write_bytes(b"one\n")
        nodes.sender.start()
        until(lambda: there() == b"one\n")
        (nodes.live.folder / file.name).unlink()
        with file.open("ab") as more:
            more.write(b"two\n")
        until(lambda: there() == b"one\ntwo\n")

    @pytest.mark.parametrize("name", ["../away.jsonl", "a/b.jsonl", "manifest.json", ".jsonl", "a.jsonl\n"])
    def test_a_name_that_is_no_live_files_is_refused_and_counted(self, nodes, name):
        link = nodes.connect()
        assert link.ask({"kind": "live", "name": name, "at": 0}, b"x") == {}
        assert nodes.counters["live_errors"] == 1
        assert not list(nodes.live.folder.parent.parent.rglob("away*"))
        link.close()


class TestWhereRank0Listens:
    def test_no_port_is_open_until_a_node_asks(self, nodes):
        time.sleep(0.3)
        assert nodes.receiver._listener is None and not nodes.receiver.has_nodes
        nodes.connect().close()
        assert nodes.receiver.has_nodes

    def test_a_store_on_loopback_gives_loopback(self, store):
        assert host_and_port(dist.PrefixStore("a", dist.PrefixStore("b", store))) == ("127.0.0.1", store.port)
        assert NodeMeeting(store, "x").host() == "127.0.0.1"

    def test_one_interface_is_listened_on_never_all(self, nodes):
        nodes.connect().close()
        assert nodes.receiver._listener.address.host == "127.0.0.1"
        address = nodes.receiver._listener.address
        with pytest.raises(OSError):
            socket.create_connection((other_address(), address.port), timeout=2)

    def test_a_store_on_no_network_needs_the_address_by_a_variable(self, tmp_path, monkeypatch):
        files = dist.FileStore(str(tmp_path / "store"), 1)
        with pytest.raises(OSError, match=ADDRESS):
            NodeMeeting(files, "x").host()
        monkeypatch.setenv(ADDRESS, "127.0.0.1")
        assert NodeMeeting(files, "x").host() == "127.0.0.1"

    def test_a_store_that_has_gone_ends_the_looking_and_is_counted(self, tmp_path):
        class Gone:
            def n_asked(self):
                raise RuntimeError("broken pipe")

        counters = Counter()
        place = LivePlace(tmp_path / "live", tmp_path / "live", "p", "run", "run")
        receiver = NodeReceiver(RunFolder(tmp_path), Gone(), 1, Warnings(counters), place)
        receiver.start()
        until(lambda: counters["nodes_unreachable"] == 1)
        receiver.close(5)
        assert counters == {"nodes_unreachable": 1}

    def test_waiting_for_an_address_does_not_hold_up_the_trainers_store(self, store):
        failed = []

        def wait():
            try:
                NodeMeeting(own_store(store), "nobody").wait_for_address(2.0)
            except NodeConnectionError as error:
                failed.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        turns = 0
        while waiting.is_alive():
            store.add("trainer", 1)
            turns += 1
            time.sleep(0.001)
        assert failed
        assert turns > 50


def other_address():
    """An address of loopback's network that this machine answers on, and that rank 0 does not listen on."""
    return "127.0.0.2"
