"""The process that processes a run's spools while the trainer runs: `python -m rollout_traces.worker.main FOLDER`.

It ends by itself: once every writer is gone and nothing waits, or when another one processes already. It opens
no port, sees no GPU, never imports torch, and works at a lower priority than the trainer while nobody waits for it.

A run's manifest is a file. It may have come with a project that someone else made, and the environment holds tokens:
neither goes to a server, a Space or a folder that this user did not name.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollout_traces.decode.decoder import DecodeSettings
from rollout_traces.decode.messages import MessagesDecoder
from rollout_traces.errors import ConfigError, StoreError, Warnings
from rollout_traces.sink.trackio_sink import TrackioSink
from rollout_traces.sink.webhook import ENVIRONMENT, AlertWebhook
from rollout_traces.spool.run_folder import Publisher, RunFolder, RunManifest, load_tokenizer
from rollout_traces.steps.processor import StepProcessor
from rollout_traces.steps.run_state import StepOptions
from rollout_traces.worker.consumer import SpoolConsumer
from rollout_traces.worker.priority import TwoPriorities
from rollout_traces.worker.replay import CloseLog

log = logging.getLogger("rollout_traces.worker.main")

OTHER_TARGETS = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
"""Variables by which Trackio would send a run elsewhere than its manifest says."""
LOCK_PATIENCE = 5.0
"""Seconds to wait until another worker of the folder releases its lock."""
GARBAGE_THRESHOLDS = (10_000, 20, 20)
"""Objects more than before after which Python looks for garbage among the youngest; and how often among older ones."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the worker.

    Args:
        arguments: the run's folder, and what it may be sent to, as `parse_arguments` reads them.

    Returns:
        0 when nothing waits any more or another worker has; 1 when the folder cannot be processed.
    """
    path, named = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    os.environ["USE_TORCH"] = "0"
    try:
        return process_folder(RunFolder(path), named)
    except StoreError as error:
        log.error("%s", error)
        return 1


def collect_seldom() -> None:
    """Makes Python search for cyclic garbage rarely, and never among imported modules: a step leaves almost none.

    At Python's own threshold of 700 objects the search takes a sixth of the time of a small step.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)


def process_folder(folder: RunFolder, named: NamedTargets) -> int:
    """Processes a run's folder until its writers are gone and nothing waits, then removes it.

    Args:
        named: where the run may be sent in addition to this machine.

    Raises:
        StoreError: the folder is not this user's, its manifest or tokenizer cannot be read, or it goes to a
            server or Space that was not named.
    """
    reason = folder.why_not_believed()
    if reason is not None:
        raise StoreError(reason)
    if not _take_lock(folder):
        log.info("another worker has %s", folder.path)
        return 0
    try:
        manifest = folder.manifest()
        named.check_remote(manifest)
        counters: Counter[str] = Counter(folder.status().get("counters", {}))
        counters["workers_started"] += 1
        sink = open_sink(manifest)
        sink.counters, sink.webhook = counters, webhook_of(manifest, counters)
        decoder = decoder_of(folder, manifest)
        options = options_of(manifest, named, counters)
        publish = Publisher(folder, counters)
        priorities = TwoPriorities(lambda: loop.is_awaited or bool(folder.waiters))
        loop = SpoolConsumer(
            folder.readers,
            lambda: StepProcessor(sink, decoder, options, counters, checkpoint=priorities.checkpoint),
            sink,
            counters,
            CloseLog(folder.closes),
            publish.now,
            priorities.checkpoint,
        )
        collect_seldom()
        log.info("processing %s into run %s of %s", folder.path, manifest.run_name, manifest.project)
        priorities.run(loop.run_until, lambda: loop.is_idle and folder.is_done(), publish)
        counters["records_torn"] += sum(reader.count_torn() for reader in folder.readers())
        if sink.webhook is not None:
            sink.webhook.close()
        publish.now()
        sink.finish()
        log.info("done: %s", dict(counters))
        folder.remove_if_done()
        return 0
    finally:
        folder.worker_lock.release()


def options_of(manifest: RunManifest, named: NamedTargets, counters: Counter[str]) -> StepOptions:
    """The worker's settings, without a folder for all rows where nobody named it."""
    import trackio.utils

    options = StepOptions.from_plain(manifest.options)
    try:
        folder = named.all_rows_folder(manifest.options, Path(trackio.utils.TRACKIO_DIR))
    except StoreError as error:
        Warnings(counters).count("all_rows_folders_refused", error)
        folder = None
    return replace(options, all_rows_folder=folder)


def open_sink(manifest: RunManifest) -> TrackioSink:
    """Joins the run that the trainer named, there and nowhere else."""
    for variable in OTHER_TARGETS:
        os.environ.pop(variable, None)
    return TrackioSink.open(
        project=manifest.project,
        name=manifest.run_name,
        run_id=manifest.run_id,
        resume="allow",
        space_id=manifest.space_id,
        server_url=manifest.server_url,
        private=manifest.private,
        group=manifest.group,
        config=manifest.config,
    )


def webhook_of(manifest: RunManifest, counters: Counter[str]) -> AlertWebhook | None:
    """Makes the webhook that alerts are sent to: an address of the environment alone, never one that the folder names."""
    url = os.environ.pop(ENVIRONMENT, "")
    try:
        return AlertWebhook(url, manifest.project, manifest.run_name, counters) if url else None
    except ConfigError as error:
        Warnings(counters).count("webhooks_refused", error)
        return None


def decoder_of(folder: RunFolder, manifest: RunManifest) -> Any:
    """The decoder of the run's tokenizer; without a tokenizer, the decoder of rows that came with messages.

    Raises:
        StoreError: the tokenizer does not come back as it was.
    """
    if not manifest.has_tokenizer:
        return MessagesDecoder()

    return DecodeSettings.from_plain(manifest.decoding).decoder(load_tokenizer(folder.tokenizer))


def _take_lock(folder: RunFolder) -> bool:
    deadline = time.monotonic() + LOCK_PATIENCE
    while not folder.worker_lock.acquire():
        if time.monotonic() > deadline or not folder.path.exists():
            return False
        time.sleep(0.1)
    return True


@dataclass(frozen=True)
class NamedTargets:
    """The targets that this user named, in a run's own settings or on a command line.

    Attributes:
        remotes: Spaces and servers that runs may be sent to.
        folders: folders that may get a file a step with the text of all its rows.
    """

    remotes: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()

    @classmethod
    def of(cls, manifest: RunManifest) -> NamedTargets:
        """The targets that a run's own process named."""
        folder = manifest.options.get("all_rows_folder")
        return cls(
            (manifest.remote,) if manifest.remote else (),
            (str(folder),) if folder else (),
        )

    def has_remote(self, manifest: RunManifest) -> bool:
        """True when a run stays on this machine or goes where this user said."""
        return manifest.remote is None or manifest.remote in self.remotes

    def check_remote(self, manifest: RunManifest) -> None:
        """Refuses a run that goes elsewhere.

        Raises:
            StoreError: its Space or server was not named.
        """
        if not self.has_remote(manifest):
            raise StoreError(
                f"run {manifest.run_name} of {manifest.project} goes to {manifest.remote}, which nobody named here. "
                f"To send it there: rollout-traces recover --remote {manifest.remote}"
            )

    def all_rows_folder(self, options: Mapping[str, Any], trackio_folder: Path) -> str | None:
        """The folder for files of all rows.

        Args:
            options: a manifest's settings of the worker.
            trackio_folder: Trackio's folder, below which any folder may be written.

        Returns:
            None where the manifest names none.

        Raises:
            StoreError: it is elsewhere and was not named.
        """
        folder = options.get("all_rows_folder")
        if folder is None:
            return None
        inside = Path(folder).resolve().is_relative_to(trackio_folder.resolve())
        if not inside and str(folder) not in self.folders:
            raise StoreError(
                f"all_rows_folder: the manifest names {folder}, outside of {trackio_folder}, and nobody named it here: "
                f"no such files. To have them: rollout-traces recover --all-rows-folder {folder}"
            )
        return str(folder)

    def as_arguments(self) -> list[str]:
        """Command line arguments that `parse_arguments` reads."""
        remotes = [part for remote in self.remotes for part in ("--remote", remote)]
        return remotes + [part for folder in self.folders for part in ("--all-rows-folder", folder)]


def parse_arguments(arguments: Sequence[str]) -> tuple[Path, NamedTargets]:
    """Parses a run's folder and the targets that it may send to."""
    parser = argparse.ArgumentParser(prog="python -m rollout_traces.worker.main")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--remote", action="append", default=[])
    parser.add_argument("--all-rows-folder", action="append", default=[])
    given = parser.parse_args(arguments)
    return given.folder, NamedTargets(tuple(given.remote), tuple(given.all_rows_folder))


if __name__ == "__main__":
    sys.exit(main())
