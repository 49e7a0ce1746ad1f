"""Several ranks, one run: rank 0 says which, the others hand over beside it.

The word is passed through the store that the process group was started with. It is no collective: a rank that
makes no logger blocks nobody.
"""

from __future__ import annotations

import datetime
import logging
import os
import socket
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

log = logging.getLogger("rollout_traces")

NODE = "ROLLOUT_TRACES_NODE"
"""Environment variable with the name of this node, where host names do not tell nodes apart."""
PATIENCE = 30.0
"""Seconds that a rank waits for rank 0's word."""
_counts: Counter[str] = Counter()


@dataclass(frozen=True)
class Ranks:
    """This process among those of a training job.

    Attributes:
        rank: its rank.
        n_ranks: how many there are.
        store: the process group's store.
        node: the name of this process's node.
    """

    rank: int
    n_ranks: int
    store: Any
    node: str


@dataclass(frozen=True)
class Announcement:
    """What rank 0 says of its run.

    Attributes:
        node: the name of its node.
        folder: where the run's spools lie; None: nowhere that others can write to.
        manifest: the run's manifest, plain values; None without a folder.
        takes_lines: whether ranks of other nodes can send to it.
        attempt: when the run's attempt began.
    """

    node: str
    folder: str | None = None
    manifest: Mapping[str, Any] | None = None
    takes_lines: bool = False
    attempt: str | None = None


def node_name() -> str:
    """What tells this node from others: the host's name, unless `ROLLOUT_TRACES_NODE` gives another."""
    return os.environ.get(NODE) or socket.gethostname()


def current_ranks() -> Ranks | None:
    """The ranks of `torch.distributed`; None when it is not started or there is one only."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    if distributed.get_world_size() < 2:
        return None
    from torch.distributed.distributed_c10d import _get_default_store

    return Ranks(distributed.get_rank(), distributed.get_world_size(), _get_default_store(), node_name())


def next_key(project: str) -> str:
    """The key of this process's next logger of a project; ranks make their loggers in the same order."""
    _counts[project] += 1
    return f"rollout-traces/{project}/{_counts[project]}"


def publish_announcement(ranks: Ranks, key: str, word: Announcement) -> None:
    """Says on rank 0 where its run is."""
    ranks.store.set(key, orjson.dumps(asdict(word), default=str))


def wait_for_announcement(ranks: Ranks, key: str, patience: float = PATIENCE) -> Announcement | None:
    """Learns on another rank where rank 0's run is.

    Args:
        ranks: this process among the others.
        key: as on rank 0.
        patience: seconds to wait for rank 0.

    Returns:
        What rank 0 said; None when it said nothing in time.
    """
    try:
        ranks.store.wait([key], datetime.timedelta(seconds=patience))
        return Announcement(**orjson.loads(ranks.store.get(key)))
    except Exception as error:  # noqa: BLE001  what a store raises is its own; the rank then logs by itself
        log.warning("rank %d heard nothing of rank 0's run within %g s: %r", ranks.rank, patience, error)
        return None


def is_first_of_node(ranks: Ranks, key: str) -> bool:
    """True for one rank of a node: the one that sends for all of them."""
    return bool(ranks.store.add(f"{key}/first/{ranks.node}", 1) == 1)


def publish_node_folder(ranks: Ranks, key: str, folder: Path | None) -> None:
    """Says to the other ranks of a node where they hand over; None: each logs by itself."""
    ranks.store.set(f"{key}/folder/{ranks.node}", orjson.dumps(None if folder is None else str(folder)))


def wait_for_node_folder(ranks: Ranks, key: str, patience: float = PATIENCE) -> Path | None:
    """Learns where the ranks of this node hand over; None when nobody said it in time, or said nowhere."""
    name = f"{key}/folder/{ranks.node}"
    try:
        ranks.store.wait([name], datetime.timedelta(seconds=patience))
        folder = orjson.loads(ranks.store.get(name))
    except Exception as error:  # noqa: BLE001  what a store raises is its own; the rank then logs by itself
        log.warning("rank %d heard nothing of its node's spools within %g s: %r", ranks.rank, patience, error)
        return None
    return None if folder is None else Path(folder)


def rank_spool(rank: int, unique: str) -> str:
    """The name of a rank's spool."""
    return f"rank-{rank}-{unique}"


def first_group_of(rank: int) -> int:
    """Where a rank begins to number the groups that it makes up, so that ranks' groups differ."""
    return rank << 32
