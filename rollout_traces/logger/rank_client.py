"""The client by which a rank other than 0 writes to rank 0's run: into its run folder, or on its own node to be sent there."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rollout_traces.cluster.forwarding import NodeForwarder
from rollout_traces.cluster.receiving import NodeReceiver
from rollout_traces.cluster.rendezvous import (
    Announcement,
    NodeMeeting,
    Ranks,
    is_first_of_node,
    own_store,
    publish_announcement,
    publish_node_folder,
    rank_spool,
    wait_for_announcement,
    wait_for_node_folder,
)
from rollout_traces.errors import StoreError, Warnings
from rollout_traces.logger.attempts import Attempts, attempts_of
from rollout_traces.logger.pipeline import LINGER, LoggerPipeline, PipelineOptions
from rollout_traces.logger.spool_client import SpoolClient, place_of_run, unique
from rollout_traces.model.live_lines import LivePlace
from rollout_traces.spool.folder import SpoolWriter
from rollout_traces.spool.run_folder import RunFolder, RunManifest, save_tokenizer, take_run_folder

log = logging.getLogger("rollout_traces")


class RankClient(SpoolClient):
    """The client of a rank that hands over into a folder which another rank looks after.

    Args:
        folder: the folder: of rank 0's run, or of this node.
        rank: this rank.
        plan: what is wanted.
        warnings: where what happens is counted.
        attempts: the run's.
        live: where what this process says of rollouts in flight goes.
        sender: sends for all ranks of its node, whose folder's worker lock this process holds; None where another does.
    """

    kind = "rank 0"
    run: Any = None

    def __init__(
        self,
        folder: RunFolder,
        rank: int,
        plan: PipelineOptions,
        warnings: Warnings,
        attempts: Attempts,
        live: LivePlace,
        sender: NodeForwarder | None = None,
    ) -> None:
        spool = SpoolWriter(folder.writer_folder(rank_spool(rank, unique())), plan.steps.max_spool_bytes)
        super().__init__(spool, folder, plan.steps, warnings, attempts, live)
        self._run_folder = folder
        self._sender = sender
        if sender is not None:
            sender.start()

    @property
    def dies_with_process(self) -> bool:
        """True when only this process can write or send the records that wait."""
        return self._sender is not None or super().dies_with_process

    def close(self, timeout: float, *, stored: bool) -> None:
        """Ends the hand-over; the rank that sends for its node ends once the others have, or the time is up."""
        self._end_writing()
        if self._sender is not None:
            self._sender.close(min(timeout, LINGER))
            self._run_folder.worker_lock.release()
            self._run_folder.remove_if_done()

    def _worker_counts(self) -> Counter[str]:
        return Counter(self._run_folder.status().get("counters", {}))


def client_of_rank(ranks: Ranks, key: str, plan: PipelineOptions, warnings: Warnings) -> RankClient | None:
    """The client of a rank that is not rank 0.

    Args:
        ranks: this process among the others.
        key: where rank 0 says where its run is.
        plan: what is wanted.
        warnings: where what happens is counted.

    Returns:
        None when rank 0's run cannot be reached; the rank then logs to a separate run.
    """
    announcement = wait_for_announcement(ranks, key)
    if announcement is None:
        return None
    attempts, manifest = _attempts(announcement), dict(announcement.manifest or {})
    if announcement.folder is not None and announcement.node == ranks.node:
        folder = RunFolder(Path(announcement.folder))
        return RankClient(folder, ranks.rank, plan, warnings, attempts, place_of_run(**_named(manifest)))
    store = own_store(ranks.store)
    reason = _why_not_sent(announcement, store)
    if reason is not None:
        log.warning("rank %d logs to a separate run: %s", ranks.rank, reason)
        return None
    if not is_first_of_node(ranks, key):
        path = wait_for_node_folder(ranks, key)
        if path is None:
            return None
        return RankClient(
            RunFolder(path), ranks.rank, plan, warnings, attempts, _place_on_node(RunFolder(path), manifest)
        )
    try:
        own = _folder_of_node(ranks, announcement, plan)
        live, sender = _place_on_node(own, manifest), NodeForwarder(own, NodeMeeting(store, key), warnings)
        client = RankClient(own, ranks.rank, plan, warnings, attempts, live, sender)
    except (OSError, StoreError) as error:
        publish_node_folder(ranks, key, None)
        log.warning(
            "rank %d logs to a separate run: its node has no place for a spool (%s)", ranks.rank, error
        )
        return None
    publish_node_folder(ranks, key, own.path)
    return client


def share(
    pipeline: LoggerPipeline, ranks: Ranks, key: str, plan: PipelineOptions, warnings: Warnings
) -> None:
    """Lets the other ranks hand over to rank 0's run, and announces it to them.

    Args:
        pipeline: rank 0's.
        ranks: rank 0 among the others.
        key: where the others listen.
        plan: what is wanted.
        warnings: where what happens is counted.
    """
    folder = pipeline.folder
    started = pipeline.attempts.started
    if folder is None:
        publish_announcement(ranks, key, Announcement(ranks.node, attempt=started))
        return
    store = own_store(ranks.store)
    if store is not None:
        pipeline.take_from(
            NodeReceiver(
                folder, NodeMeeting(store, key), plan.steps.max_spool_bytes, warnings, pipeline.live_place
            )
        )
    publish_announcement(
        ranks,
        key,
        Announcement(ranks.node, str(folder.path), asdict(folder.manifest()), store is not None, started),
    )


def _attempts(announcement: Announcement) -> Attempts:
    return attempts_of(str((announcement.manifest or {}).get("run_id", "")), announcement.attempt)


def _named(manifest: Mapping[str, Any]) -> dict[str, str]:
    return {"project": manifest["project"], "run": manifest["run_name"], "run_id": manifest["run_id"]}


def _place_on_node(folder: RunFolder, manifest: Mapping[str, Any]) -> LivePlace:
    """The live files of a node that sends them on."""
    return LivePlace(folder.live, folder.path, **_named(manifest))


def _why_not_sent(announcement: Announcement, store: Any) -> str | None:
    if announcement.folder is None or announcement.manifest is None:
        return "rank 0 keeps its spool in memory"
    if not announcement.takes_nodes or store is None:
        return "the job's store takes no second connection, so nodes cannot find each other"
    return None


def _folder_of_node(ranks: Ranks, announcement: Announcement, plan: PipelineOptions) -> RunFolder:
    """The node's own folder, held by this process, with all that is needed to recover it on this node."""
    import trackio.utils

    manifest = RunManifest(**(announcement.manifest or {}))
    run_id = f"{manifest.run_id}-on-{ranks.node}"
    folder = take_run_folder(Path(trackio.utils.TRACKIO_DIR), manifest.project, run_id)
    if not folder.worker_lock.acquire():
        raise OSError(f"another worker has {folder.path}")
    saved = plan.tokenizer is not None and save_tokenizer(plan.tokenizer, folder.tokenizer)
    folder.write_manifest(replace(manifest, has_tokenizer=saved))
    return folder
