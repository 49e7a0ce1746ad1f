"""The line between two nodes: real gloo, both sides in this process."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter

import pytest
import torch.distributed as dist

from rollout_traces.capture.hand_over import Warnings
from rollout_traces.cluster import connection, forwarding
from rollout_traces.cluster.connection import NodeConnection, NodeConnectionError, own_store
from rollout_traces.cluster.forwarding import NodeForwarder
from rollout_traces.cluster.receiving import NodeReceiver
from rollout_traces.spool.folder import SpoolReader, SpoolWriter
from rollout_traces.spool.record import Record, encode
from rollout_traces.spool.run_folder import RunFolder

SPOOL = "from-rank-1-7-ab"


def until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


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
        self.receiver = NodeReceiver(
            self.there, lambda: int(store.add("lines", 0)), lambda n: self.line(n, 0), max_bytes, warnings
        )
        self.sender = NodeForwarder(self.here, lambda: self.line(int(store.add("lines", 1)), 1), warnings)
        self.receiver.start()

    def line(self, number, side):
        return NodeConnection(own_store(self.store), f"line/{number}", side)

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
        self.receiver.close(10)


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

    def test_has_a_flush_wait_until_rank_0_stored_it(self, nodes):
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
        path = nodes.here.path / SPOOL / f"{name}.record"
        path.write_bytes(path.read_bytes()[:-1] + b"?")
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
        nodes.sender._said_at = time.monotonic()
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


class TestABrokenLine:
    def test_is_made_anew_and_what_was_sent_is_not_doubled(self, nodes, monkeypatch):
        broken = []
        ask = NodeConnection.ask

        def ask_and_break(link, meta, body=b""):
            answer = ask(link, meta, body)
            if meta["say"] == "record" and not broken:
                broken.append(meta["name"])
                raise NodeConnectionError("the answer was lost")
            return answer

        monkeypatch.setattr(NodeConnection, "ask", ask_and_break)
        for step in range(3):
            nodes.put(step)
        nodes.sender.start()
        until(lambda: not nodes.waiting)
        assert nodes.arrived() == [0, 1, 2]
        assert nodes.counters["links_lost"] >= 1

    def test_frees_the_spools_that_it_fed(self, nodes):
        line = threading.Thread(target=lambda: lines.append(nodes.line(1, 1)))
        lines: list[NodeConnection] = []
        nodes.store.add("lines", 1)
        line.start()
        line.join(30)
        lines[0].ask({"say": "here", "spools": [SPOOL]})
        there = SpoolReader(nodes.there.path / SPOOL)
        assert not there.owner_is_gone
        lines[0].close()
        until(lambda: there.owner_is_gone)
        assert nodes.counters["links_lost"] == 1

    def test_leaves_alone_what_a_newer_line_took_over(self, nodes):
        lines = []
        for number in (1, 2):
            nodes.store.add("lines", 1)
            lines.append(nodes.line(number, 1))
            lines[-1].ask({"say": "here", "spools": [SPOOL]})
        lines[0].close()
        until(lambda: nodes.counters["links_lost"] == 1)
        assert not SpoolReader(nodes.there.path / SPOOL).owner_is_gone
        lines[1].ask({"say": "bye"})

    def test_is_what_a_node_sees_that_comes_after_rank_0_has_finished(self, nodes):
        nodes.store.add("lines", 1)
        link = nodes.line(1, 1)
        link.ask({"say": "here", "spools": [SPOOL]})
        nodes.receiver.close(0)
        shutil.rmtree(nodes.there.path)
        with pytest.raises(NodeConnectionError):
            link.ask({"say": "record", "spool": SPOOL, "name": "1"}, b"x")
        assert not nodes.there.path.exists()

    @pytest.mark.parametrize("spool", ["../../etc", "from-rank-1/../..", "from-4-ab", 7])
    def test_follows_a_spool_that_is_no_ranks(self, nodes, tmp_path, spool):
        nodes.store.add("lines", 1)
        link = nodes.line(1, 1)
        with pytest.raises(NodeConnectionError):
            link.ask({"say": "record", "spool": spool, "name": "1"}, b"x")
        assert list(nodes.there.path.iterdir()) == []
        until(lambda: nodes.counters["links_lost"] == 1)

    def test_follows_a_message_of_a_size_that_is_not_believed(self, nodes, monkeypatch):
        nodes.store.add("lines", 1)
        link = nodes.line(1, 1)
        monkeypatch.setattr(connection, "MAX_BODY", 10)
        with pytest.raises(NodeConnectionError):
            link.ask({"say": "record", "spool": SPOOL, "name": "1"}, bytes(11))
        until(lambda: nodes.counters["links_lost"] == 1)

    def test_holds_nobody_up_when_the_other_side_never_comes(self, store, monkeypatch):
        monkeypatch.setattr(connection, "CONNECT", 2.0)
        failed = []

        def connect():
            try:
                NodeConnection(own_store(store), "nobody", 1)
            except NodeConnectionError as error:
                failed.append(error)

        waiting = threading.Thread(target=connect)
        waiting.start()
        turns = 0
        while waiting.is_alive():
            store.add("trainer", 1)
            turns += 1
            time.sleep(0.001)
        assert failed
        assert turns > 50
