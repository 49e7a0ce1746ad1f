"""Where a rank hands over whose run is rank 0's: into a spool beside rank 0's, or on its own node to be sent there."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollout_traces.capture.hand_over import Warnings
from rollout_traces.drain.node_link import Link, LinkError, own_store
from rollout_traces.drain.node_receiver import NodeReceiver
from rollout_traces.drain.node_sender import NodeSender
from rollout_traces.errors import StoreError
from rollout_traces.shared_run import (
    Ranks,
    Word,
    hear,
    hear_node,
    is_first_of_node,
    rank_spool,
    tell,
    tell_node,
)
from rollout_traces.spool.folder import SpoolWriter
from rollout_traces.spool.run_folder import Manifest, RunFolder, take_run_folder
from rollout_traces.spool.tokenizer_files import save_tokenizer
from rollout_traces.station import LINGER, Outlet, Station, StationPlan, unique

log = logging.getLogger("rollout_traces")


class RankOutlet(Outlet):
    """The outlet of a rank that hands over into a folder which another rank looks after.

    Args:
        folder: the folder: of rank 0's run, or of this node.
        rank: this rank.
        plan: what is wanted.
        warnings: where what happens is counted.
    """

    kind = "rank 0"
    run: Any = None

    def __init__(self, folder: RunFolder, rank: int, plan: StationPlan, warnings: Warnings) -> None:
        path = folder.writer_folder(rank_spool(rank, unique()))
        super().__init__(SpoolWriter(path, plan.max_spool_bytes), warnings, plan.max_bytes)
        self._folder = folder

    def close(self, timeout: float, *, stored: bool) -> None:
        """Ends: no more is handed over. What waits is the other rank's to store or to send."""
        self._end_writing()

    def _drain_counts(self) -> Counter[str]:
        return Counter(self._folder.status().get("counters", {}))


class NodeOutlet(RankOutlet):
    """The outlet of the rank that sends for all ranks of its node.

    Args:
        folder: the node's folder; this process holds its drain's lock.
        rank: this rank.
        plan: what is wanted.
        warnings: where what happens is counted.
        connect: makes a line to rank 0.
    """

    def __init__(
        self,
        folder: RunFolder,
        rank: int,
        plan: StationPlan,
        warnings: Warnings,
        connect: Callable[[], Link],
    ) -> None:
        super().__init__(folder, rank, plan, warnings)
        self._sender = NodeSender(folder, connect, warnings)
        self._sender.start()

    @property
    def dies_with_process(self) -> bool:
        """What waits is sent by this process."""
        return True

    def close(self, timeout: float, *, stored: bool) -> None:
        """Ends once the other ranks of the node have and all is sent, or the time is up."""
        super().close(timeout, stored=stored)
        self._sender.close(min(timeout, LINGER))
        self._folder.drain_lock.release()
        self._folder.remove_if_done()


def outlet_of_rank(ranks: Ranks, key: str, plan: StationPlan, warnings: Warnings) -> RankOutlet | None:
    """The outlet of a rank that is not rank 0.

    Args:
        ranks: this process among the others.
        key: where rank 0 says where its run is.
        plan: what is wanted.
        warnings: where what happens is counted.

    Returns:
        None when rank 0's run cannot be reached; the rank then logs a run of its own.
    """
    word = hear(ranks, key)
    if word is None:
        return None
    if word.folder is not None and word.node == ranks.node:
        return RankOutlet(RunFolder(Path(word.folder)), ranks.rank, plan, warnings)
    reason = _why_no_line(ranks, word)
    if reason is not None:
        log.warning("rank %d logs a run of its own: %s", ranks.rank, reason)
        return None
    if not is_first_of_node(ranks, key):
        folder = hear_node(ranks, key)
        return None if folder is None else RankOutlet(RunFolder(folder), ranks.rank, plan, warnings)
    return _node_outlet(ranks, key, word, plan, warnings)


def share(station: Station, ranks: Ranks, key: str, plan: StationPlan, warnings: Warnings) -> None:
    """Lets the other ranks hand over to rank 0's run, and says so.

    Args:
        station: rank 0's.
        ranks: rank 0 among the others.
        key: where the others listen.
        plan: what is wanted.
        warnings: where what happens is counted.
    """
    folder = station.folder
    if folder is None:
        tell(ranks, key, Word(ranks.node))
        return
    store = own_store(ranks.store)
    if store is not None:
        station.take_from(
            NodeReceiver(
                folder,
                lambda: int(store.add(f"{key}/lines", 0)),
                lambda number: _line(ranks, key, number, side=0),
                plan.max_spool_bytes,
                warnings,
            )
        )
    tell(ranks, key, Word(ranks.node, str(folder.path), folder.manifest().as_plain(), store is not None))


def _why_no_line(ranks: Ranks, word: Word) -> str | None:
    if word.folder is None or word.manifest is None:
        return "rank 0 keeps its spool in memory"
    if not word.takes_lines or own_store(ranks.store) is None:
        return "torch has no gloo here, or its store takes no second connection, so nodes cannot be joined"
    return None


def _node_outlet(
    ranks: Ranks, key: str, word: Word, plan: StationPlan, warnings: Warnings
) -> NodeOutlet | None:
    try:
        folder = _folder_of_node(ranks, word, plan)
        outlet = NodeOutlet(folder, ranks.rank, plan, warnings, lambda: _next_line(ranks, key))
    except (OSError, StoreError) as error:
        tell_node(ranks, key, None)
        log.warning(
            "rank %d logs a run of its own: its node has no place for a spool (%s)", ranks.rank, error
        )
        return None
    tell_node(ranks, key, folder.path)
    return outlet


def _folder_of_node(ranks: Ranks, word: Word, plan: StationPlan) -> RunFolder:
    """The node's own folder, held by this process, with all that is needed to recover it on this node."""
    import trackio.utils

    manifest = Manifest.from_plain(word.manifest or {})
    run_id = f"{manifest.run_id}-on-{ranks.node}"
    folder = take_run_folder(Path(trackio.utils.TRACKIO_DIR), manifest.project, run_id)
    if not folder.drain_lock.acquire():
        raise OSError(f"another process drains {folder.path}")
    saved = plan.tokenizer is not None and save_tokenizer(plan.tokenizer, folder.tokenizer)
    folder.write_manifest(replace(manifest, has_tokenizer=saved))
    return folder


def _next_line(ranks: Ranks, key: str) -> Link:
    store = own_store(ranks.store)
    if store is None:
        raise LinkError("the job's store is gone")
    return _line(ranks, key, int(store.add(f"{key}/lines", 1)), side=1)


def _line(ranks: Ranks, key: str, number: int, side: int) -> Link:
    """A line of a number, over a connection of its own."""
    return Link(own_store(ranks.store), f"{key}/line/{number}", side)
