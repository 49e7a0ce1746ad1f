"""What ranks tell each other through the store that their job was started with."""

from __future__ import annotations

import socket

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from rollout_traces.cluster.connection import NodeAddress, NodeConnectionError
from rollout_traces.cluster.rendezvous import (
    ADDRESS,
    Announcement,
    NodeMeeting,
    Ranks,
    current_ranks,
    host_and_port,
    next_key,
    own_store,
    publish_announcement,
    wait_for_announcement,
)
from rollout_traces.model.names import NODE, node_name


@pytest.fixture
def store():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def job():
    """Starts torch's process group of a job whose other ranks are made up."""

    def start(rank: int, n_ranks: int) -> None:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=n_ranks)

    yield start
    if dist.is_initialized():
        dist.destroy_process_group()


class TestRanks:
    def test_a_process_without_a_job_has_none(self):
        assert current_ranks() is None

    def test_a_job_of_one_rank_is_none(self, job):
        job(0, 1)
        assert current_ranks() is None

    def test_a_job_of_two_tells_its_numbers_and_its_store(self, job, monkeypatch):
        monkeypatch.setenv(NODE, "node-7")
        job(1, 2)
        found = current_ranks()
        assert (found.rank, found.n_ranks, found.node) == (1, 2, "node-7")
        assert found.store is not None

    def test_a_node_is_named_as_its_host_unless_a_variable_says_otherwise(self, monkeypatch):
        monkeypatch.delenv(NODE, raising=False)
        assert node_name() == socket.gethostname()
        monkeypatch.setenv(NODE, "node-7")
        assert node_name() == "node-7"


class TestTheStore:
    def test_a_second_connection_sees_what_the_first_one_set(self, store):
        store.set("a", "b")
        assert own_store(store).get("a") == b"b"

    def test_one_that_takes_no_second_connection_is_none(self, tmp_path):
        assert own_store(object()) is None

    def test_its_place_is_found_behind_prefixes(self, store):
        inside = dist.PrefixStore("a", dist.PrefixStore("b", store))
        assert host_and_port(inside) == ("127.0.0.1", store.port)

    def test_one_on_no_network_has_no_place(self, tmp_path):
        assert host_and_port(dist.FileStore(str(tmp_path / "f"), 1)) is None


class TestKeys:
    def test_loggers_of_a_project_are_counted_apart_from_those_of_others(self):
        first, second, other = next_key("count me"), next_key("count me"), next_key("other")
        assert (first, second) == ("rollout-traces/count me/1", "rollout-traces/count me/2")
        assert other == "rollout-traces/other/1"


class TestTheAnnouncement:
    def test_comes_to_the_others_as_it_was_made(self, store):
        said = Announcement("node-1", "/runs/a", {"project": "p"}, takes_nodes=True, attempt="a-001")
        publish_announcement(Ranks(0, 2, store, "node-1"), "k", said)
        assert wait_for_announcement(Ranks(1, 2, store, "node-2"), "k") == said

    def test_that_never_comes_is_none_after_the_patience(self, store):
        assert wait_for_announcement(Ranks(1, 2, store, "n"), "nobody", patience=0.2) is None


class TestTheMeeting:
    def test_nodes_that_ask_are_numbered_from_one(self, store):
        meeting = NodeMeeting(store, "k")
        assert meeting.n_asked() == 0
        assert [meeting.ask(), meeting.ask()] == [1, 2]
        assert meeting.n_asked() == 2

    def test_the_address_and_the_key_come_to_those_that_wait(self, store):
        address = NodeAddress("127.0.0.1", 4711, b"secret")
        NodeMeeting(store, "k").publish(address)
        assert NodeMeeting(store, "k").wait_for_address(5.0) == address

    def test_an_address_that_is_never_published_is_said(self, store):
        with pytest.raises(NodeConnectionError, match="rank 0 published no address"):
            NodeMeeting(store, "k").wait_for_address(0.2)

    def test_the_address_of_the_variable_goes_before_the_stores(self, store, monkeypatch):
        monkeypatch.setenv(ADDRESS, "10.9.8.7")
        assert NodeMeeting(store, "k").host() == "10.9.8.7"
