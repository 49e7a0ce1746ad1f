"""Ranks that hand over to rank 0's run: each rank of this process's own, with a real store between them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch.distributed as dist

import rollout_traces as rt
from rollout_traces.cluster.rendezvous import Announcement, Ranks, publish_announcement
from rollout_traces.errors import Warnings
from rollout_traces.logger.rank_client import RankClient, client_of_rank, share
from rollout_traces.spool.record import Record
from tests.generator import tiny_tokenizer
from tests.until import until

KEY = "rollout-traces/p/test"


@pytest.fixture
def store():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def rank0(trackio_dir):
    made = rt.RolloutLogger("p", "run", tiny_tokenizer(), worker="thread", max_rollout_traces_per_step=2)
    yield made
    made.finish(20)


def announced(rank0: rt.RolloutLogger, store, node: str = "one") -> None:
    """Rank 0 tells of its run."""
    pipeline = rank0._pipeline
    share(pipeline, Ranks(0, 4, store, node), KEY, pipeline._plan, Warnings(Counter()))


def client(rank0: rt.RolloutLogger, store, rank: int = 1, node: str = "one") -> RankClient | None:
    return client_of_rank(Ranks(rank, 4, store, node), KEY, rank0._pipeline._plan, Warnings(Counter()))


class TestOnTheSameNode:
    def test_a_rank_writes_into_the_folder_of_rank_0(self, rank0, store):
        announced(rank0, store)
        made = client(rank0, store)
        assert made.folder.path == rank0._pipeline.folder.path and made.kind == "rank 0"
        assert made.attempts.current == rank0._pipeline.attempts.current
        assert made.live_place == rank0._pipeline.live_place
        made.hand_over.put(Record("scalars", {"scalars": {"loss": 1.0}, "step": 1, "attempt": ""}))
        assert made.wait_spooled(10) and made.counters()["spooled"] >= 1
        assert not made.dies_with_process
        made.close(1.0, stored=True)

    def test_what_its_worker_counted_is_what_the_rank_counts(self, rank0, store):
        announced(rank0, store)
        made = client(rank0, store)
        assert rank0._pipeline._open_loop is not None
        made.hand_over.put(Record("scalars", {"scalars": {"loss": 1.0}, "step": 1, "attempt": ""}))
        made.wait_spooled(10)
        assert rank0.flush(30)
        until(lambda: made.counters()["spooled"] == 0)
        made.close(1.0, stored=True)


class TestOnAnotherNode:
    @pytest.fixture
    def made(self, rank0, store):
        announced(rank0, store)
        made = client(rank0, store, rank=2, node="two")
        yield made
        made.close(1.0, stored=True)

    def test_the_first_rank_has_a_folder_of_its_own_and_sends(self, rank0, made):
        assert made.folder.path != rank0._pipeline.folder.path
        assert made.folder.path.name.endswith("-on-two") and made.dies_with_process
        manifest = made.folder.manifest()
        assert (manifest.project, manifest.run_name, manifest.has_tokenizer) == ("p", "run", True)
        assert made.live_place.folder == made.folder.live

    def test_the_next_rank_of_the_node_writes_into_it_and_sends_nothing(self, rank0, store, made):
        other = client(rank0, store, rank=3, node="two")
        assert other.folder.path == made.folder.path and not other.dies_with_process
        other.close(1.0, stored=True)

    def test_its_end_frees_the_folder(self, rank0, store):
        announced(rank0, store)
        made = client(rank0, store, rank=2, node="three")
        path = made.folder.path
        made.close(1.0, stored=True)
        assert not path.exists()


class TestARunThatCannotBeReached:
    @pytest.mark.parametrize(
        ("announcement", "why"),
        [
            (Announcement("one"), "rank 0 keeps its spool in memory"),
            (
                Announcement("one", "/nowhere", {"run_id": "r", "project": "p", "run_name": "run"}),
                "takes no second connection",
            ),
        ],
    )
    def test_is_logged_apart_and_that_is_said(self, rank0, store, announcement, why, caplog):
        publish_announcement(Ranks(0, 4, store, "one"), KEY, announcement)
        assert client(rank0, store, rank=2, node="two") is None
        assert f"rank 2 logs to a separate run: {why}" in caplog.text or why in caplog.text

    def test_for_want_of_a_place_on_the_node_too(self, rank0, store, monkeypatch, caplog):
        def refuse(*arguments: object) -> Path:
            raise OSError("read-only")

        announced(rank0, store)
        monkeypatch.setattr("rollout_traces.logger.rank_client.take_run_folder", refuse)
        assert client(rank0, store, rank=2, node="two") is None
        assert "its node has no place for a spool (read-only)" in caplog.text
        assert client(rank0, store, rank=3, node="two") is None, (
            "the next rank of the node does not wait for it"
        )
