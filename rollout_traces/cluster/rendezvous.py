"""Several ranks, one run: rank 0 announces it, the others write into its folder or send to it.

The announcement, and the address and key of rank 0's port, are exchanged through the store that the process group
was started with. That is no collective: a rank that makes no logger blocks nobody.
"""

from __future__ import annotations

import datetime
import logging
import os
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from rollout_traces.cluster.connection import NodeAddress, NodeConnectionError, address_in_job
from rollout_traces.model.names import node_name

log = logging.getLogger("rollout_traces")

ADDRESS = "ROLLOUT_TRACES_NODE_ADDRESS"
"""Environment variable with rank 0's address for other nodes, where it cannot be read from the job's store."""
PATIENCE = 30.0
"""Seconds that a rank waits for rank 0's announcement."""
_counts: Counter[str] = Counter()


@dataclass(frozen=True)
class Ranks:
    """This process among those of a training job.

    Attributes:
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
    """The run that rank 0 logs, as it tells the other nodes.

    Attributes:
        node: the name of its node.
        folder: the run's folder; None: there is none that others can write to.
        manifest: the run's manifest, plain values; None without a folder.
        takes_nodes: whether ranks of other nodes can send to it.
        attempt: when the run's attempt began.
    """

    node: str
    folder: str | None = None
    manifest: Mapping[str, Any] | None = None
    takes_nodes: bool = False
    attempt: str | None = None


def current_ranks() -> Ranks | None:
    """The ranks of `torch.distributed`; None when it is not started or there is one only."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    if distributed.get_world_size() < 2:
        return None
    store = _store_of(distributed)
    return Ranks(distributed.get_rank(), distributed.get_world_size(), store, node_name())


def _store_of(distributed: Any) -> Any:
    """The store that the job's process group was started with."""
    group = distributed.group.WORLD
    if hasattr(group, "get_group_store"):
        return group.get_group_store()
    from torch.distributed.distributed_c10d import _get_default_store  # older torch has no public name

    return _get_default_store()


def own_store(store: Any) -> Any | None:
    """A second connection to a job's store, so that waiting here never blocks a collective of the trainer.

    Returns:
        None where the store takes none: other nodes cannot be met then.
    """
    try:
        return store.clone()
    except Exception as error:  # noqa: BLE001  what a store raises is its own; the caller says what follows
        log.info("the job's store takes no second connection: %r", error)
        return None


def host_and_port(store: Any) -> tuple[str, int] | None:
    """Finds the host and port of a job's store; None where it is on no network, as a `FileStore`."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    host, port = getattr(store, "host", None), getattr(store, "port", None)
    return (str(host), int(port)) if host and port else None


class NodeMeeting:
    """The meeting of rank 0 and the other nodes of a job, which exchange an address and a key through the job's store.

    Args:
        store: `own_store`.
        key: of the logger, as `next_key` gave it.
    """

    def __init__(self, store: Any, key: str) -> None:
        self._store = store
        self._key = key

    def n_asked(self) -> int:
        """Counts the nodes that asked for rank 0's address."""
        return int(self._store.add(f"{self._key}/nodes", 0))

    def ask(self) -> int:
        """Asks for rank 0's address, once for a node.

        Returns:
            The node's number, from 1.
        """
        return int(self._store.add(f"{self._key}/nodes", 1))

    def host(self) -> str:
        """The address of this machine to listen on, see `address_in_job`.

        Raises:
            OSError: it cannot be found out.
        """
        given = os.environ.get(ADDRESS)
        if given:
            return given
        place = host_and_port(self._store)
        if place is None:
            raise OSError(f"the job's store is on no network. Set {ADDRESS} to this machine's address.")
        return address_in_job(*place)

    def publish(self, address: NodeAddress) -> None:
        """Publishes to the other nodes where rank 0 listens, and the key."""
        self._store.set(f"{self._key}/address", address.as_json())

    def wait_for_address(self, patience: float = PATIENCE) -> NodeAddress:
        """Waits until rank 0 says where it listens.

        Args:
            patience: seconds to wait.

        Raises:
            NodeConnectionError: rank 0 did not publish it in time.
        """
        name = f"{self._key}/address"
        try:
            self._store.wait([name], datetime.timedelta(seconds=patience))
            return NodeAddress.from_json(self._store.get(name))
        except NodeConnectionError:
            raise
        except Exception as error:
            raise NodeConnectionError(f"rank 0 published no address: {error!r}") from error


def next_key(project: str) -> str:
    """The key of this process's next logger of a project; ranks make their loggers in the same order."""
    _counts[project] += 1
    return f"rollout-traces/{project}/{_counts[project]}"


def publish_announcement(ranks: Ranks, key: str, announcement: Announcement) -> None:
    """Announces rank 0's run."""
    ranks.store.set(key, orjson.dumps(asdict(announcement), default=str))


def wait_for_announcement(ranks: Ranks, key: str, patience: float = PATIENCE) -> Announcement | None:
    """Waits on another rank for rank 0's announcement.

    Args:
        ranks: this process among the others.
        key: as on rank 0.
        patience: seconds to wait for rank 0.

    Returns:
        The announcement; None when there was none in time.
    """
    found = _awaited(ranks, key, patience, "rank 0 announced no run")
    return None if found is None else Announcement(**found)


def _awaited(ranks: Ranks, key: str, patience: float, otherwise: str) -> Any:
    """Reads what another rank publishes under a key; None, and a warning, where nothing is there in time."""
    try:
        ranks.store.wait([key], datetime.timedelta(seconds=patience))
        return orjson.loads(ranks.store.get(key))
    except Exception as error:  # noqa: BLE001  what a store raises is its own; the rank then logs by itself
        log.warning("rank %d: %s within %g s: %r", ranks.rank, otherwise, patience, error)
        return None


def is_first_of_node(ranks: Ranks, key: str) -> bool:
    """True for one rank of a node: the one that sends for all of them."""
    return bool(ranks.store.add(f"{key}/first/{ranks.node}", 1) == 1)


def publish_node_folder(ranks: Ranks, key: str, folder: Path | None) -> None:
    """Publishes the folder that the other ranks of a node write into; None: each logs by itself."""
    ranks.store.set(f"{key}/folder/{ranks.node}", orjson.dumps(None if folder is None else str(folder)))


def wait_for_node_folder(ranks: Ranks, key: str) -> Path | None:
    """The folder that the ranks of this node write into; None when none was published in time, or there is none."""
    name = f"{key}/folder/{ranks.node}"
    folder = _awaited(ranks, name, PATIENCE, "no folder of its node was published")
    return None if folder is None else Path(folder)


def rank_spool(rank: int, unique: str) -> str:
    """The name of a rank's spool."""
    return f"rank-{rank}-{unique}"


def first_group_of(rank: int) -> int:
    """Gives the number from which a rank counts the groups that it makes up, so that ranks' groups differ."""
    return rank << 32
