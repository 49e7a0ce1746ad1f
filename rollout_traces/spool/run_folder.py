"""The folder of one run's spools, with all that is needed to process them without the trainer.

```
<Trackio's folder>/rollout-traces/spool/<project>/<run id>/
    manifest.json   which Trackio run, and how to process its records
    tokenizer/      the policy's tokenizer, by value
    worker.lock     held by the worker
    status.json     what the worker counted so far
    closes.jsonl    which steps were closed with which hand-overs
    worker.log      what the worker said
    waiting.lock    held by those who wait for the worker
    live/           rollouts in flight, on a node that sends to another
    from-<writer>/  one spool a writer
```

Folders have mode 0700, files 0600. What another user may have put there is never read. What became of everything that
was handed over, stored, waiting, lost in damaged records or in a newer format, is said by one account.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from rollout_traces.errors import StoreError, extra
from rollout_traces.model import private_files
from rollout_traces.model.private_files import (
    FolderLock,
    Waiters,
    close_files,
    is_locked,
    is_network_mount,
    make_folder,
)
from rollout_traces.spool.folder import SpoolReader

log = logging.getLogger("rollout_traces")

MANIFEST_VERSION = 1
"""Of a run's manifest and of how its folder is laid out."""
RANK_SPOOL = "from-rank-"
"""The beginning of the names of the spools of a run of several ranks."""


@dataclass(frozen=True)
class RunManifest:
    """Instructions for processing a run's spools.

    Attributes:
        project: Trackio project.
        run_name: Trackio run.
        run_id: Trackio's id of it.
        group: the run's group.
        config: the run's config.
        space_id: Hugging Face Space, or None.
        server_url: self-hosted server without its write token, or None.
        private: whether a Space that has to be created is private.
        options: the worker's settings, plain values.
        decoding: settings for decoding in addition to the tokenizer, plain values.
        has_tokenizer: whether `tokenizer/` is complete.
        version: of these fields.
    """

    project: str
    run_name: str
    run_id: str
    group: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    space_id: str | None = None
    server_url: str | None = None
    private: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    decoding: Mapping[str, Any] = field(default_factory=dict)
    has_tokenizer: bool = False
    version: int = MANIFEST_VERSION

    @property
    def remote(self) -> str | None:
        """The Space or server that the run is sent to; None when it stays on this machine."""
        return self.space_id or self.server_url

    def as_json(self) -> bytes:
        """The file's content."""
        return orjson.dumps(asdict(self), default=str)


class RunFolder:
    """One run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tokenizer = path / "tokenizer"
        self.log = path / "worker.log"
        self.live = path / "live"
        self.closes = path / "closes.jsonl"
        self.worker_lock = FolderLock(path / "worker.lock")
        self.waiters = Waiters(path / "waiting.lock")
        self._readers: dict[str, SpoolReader] = {}

    @classmethod
    def of(cls, root: Path, project: str, run_id: str) -> RunFolder:
        """The folder of a run below a spool root."""
        return cls(root / safe_name(project) / safe_name(run_id))

    def take(self) -> None:
        """Makes the folder for this user alone.

        Raises:
            StoreError: it, or a folder between it and the spool root, is another user's.
            OSError: it cannot be made.
        """
        private_files.take_folder(self.path, self.path.parents[2])

    def why_not_believed(self) -> str | None:
        """Why another user may have written or may replace its files; None when only this user can."""
        replaceable = private_files.why_replaceable(self.path.parents[2])
        if replaceable is not None:
            return replaceable
        files = (self.path / "manifest.json", self.tokenizer, *self.path.glob("from-*"))
        return private_files.why_not_believed(self.path, self.path.parents[2], files)

    def write_manifest(self, manifest: RunManifest) -> None:
        """Writes the manifest; whoever reads it sees the old or the new one."""
        private_files.make_folder(self.path)
        private_files.replace_file(self.path / "manifest.json", manifest.as_json())

    def manifest(self) -> RunManifest:
        """Reads the manifest.

        Raises:
            StoreError: it is missing, damaged or of another version.
        """
        try:
            values = orjson.loads((self.path / "manifest.json").read_bytes())
        except (OSError, ValueError) as error:
            raise StoreError(f"spool {self.path}: its manifest cannot be read ({error}).") from error
        version = values.get("version")
        if version != MANIFEST_VERSION:
            raise StoreError(
                f"spool {self.path}: its manifest has version {version}, expected {MANIFEST_VERSION}. "
                "Read it with the rollout-traces that wrote it."
            )
        return RunManifest(**values)

    def open_log(self) -> BinaryIO:
        """The log, to be added to.

        Raises:
            OSError: it cannot be opened.
        """
        return os.fdopen(private_files.open_file(self.log, os.O_WRONLY | os.O_APPEND), "ab")

    def writer_folder(self, writer: str) -> Path:
        """The spool of one writer."""
        return self.path / f"from-{safe_name(writer)}"

    def readers(self) -> list[SpoolReader]:
        """The spools of all writers so far."""
        try:
            names = sorted(name for name in os.listdir(self.path) if name.startswith("from-"))  # noqa: PTH208  asked often
        except FileNotFoundError:
            names = []
        known = {name: self._readers.get(name) or SpoolReader(self.path / name) for name in names}
        self._readers = {name: reader for name, reader in known.items() if reader.folder.is_dir()}
        return list(self._readers.values())

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Writes how far the worker is; a full disk must not stop the worker, so a failed write is no error."""
        with contextlib.suppress(OSError):
            private_files.replace_file(self.path / "status.json", orjson.dumps(status))

    def status(self) -> dict[str, Any]:
        """The status that the worker wrote last; empty when there is none."""
        try:
            return dict(orjson.loads((self.path / "status.json").read_bytes()))
        except (OSError, ValueError):
            return {}

    def n_waiting(self) -> int:
        """Records that are not stored yet."""
        return sum(len(reader.names()) for reader in self.readers())

    def is_done(self) -> bool:
        """True when no writer is alive and nothing waits."""
        return all(reader.owner_is_gone for reader in self.readers()) and not self.n_waiting()

    def is_in_use(self) -> bool:
        """True while a worker has it or a writer is alive."""
        return is_locked(self.worker_lock.path) or any(not r.owner_is_gone for r in self.readers())

    def remove_if_done(self) -> bool:
        """Removes the folder when no writer is alive and nothing waits in it; the log goes along.

        Returns:
            True when it was removed.
        """
        if not self.is_done() or any(self.path.glob("from-*/*.damaged")):
            return False
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.path.parent.rmdir()
        return True

    def remove(self) -> None:
        """Removes the folder with everything that waits in it; the caller knows that nobody uses it."""
        shutil.rmtree(self.path)


def spool_root(trackio_folder: Path) -> Path:
    """The folder of all spools: in Trackio's folder, or on the node's own disk when that is a network mount.

    A spool on the node's own disk can be recovered from that node only.
    """
    in_trackio = trackio_folder / "rollout-traces" / "spool"
    return local_root() if is_network_mount(trackio_folder) else in_trackio


def take_run_folder(trackio_folder: Path, project: str, run_id: str) -> RunFolder:
    """Makes a run's folder for this user alone: the first place of `spool_roots` that is not another user's.

    A place that others may replace is taken where there is no better one. A place outside of Trackio's folder is
    named in a warning, once.

    Raises:
        StoreError: every place is another user's.
        OSError: the folder cannot be made.
    """
    refused = []
    for root in _safest_first(spool_roots(trackio_folder)):
        folder = RunFolder.of(root, project, run_id)
        try:
            folder.take()
        except StoreError as error:
            log.warning("%s", error)
            refused.append(str(error))
        else:
            if not root.is_relative_to(trackio_folder):
                _warn_once(
                    f"{trackio_folder} is a network mount, or open to other users: what waits to be stored there is "
                    f"spooled to {root}. After a crash it can be recovered from this node only, and only while its "
                    "temporary files are kept."
                )
            return folder
    raise StoreError(f"no place for a spool: {' '.join(refused)} Set TMPDIR to a folder of your own.")


def spool_roots(trackio_folder: Path) -> list[Path]:
    """The places where spools of this node may be, the preferred one first."""
    return list(dict.fromkeys([spool_root(trackio_folder), local_root()]))


def _safest_first(roots: Sequence[Path]) -> list[Path]:
    """The places that nobody else may replace, then those that others may; each of these is named in a warning."""
    reasons = {root: private_files.why_replaceable(root.parent) for root in roots}
    for reason in reasons.values():
        if reason is not None:
            _warn_once(f"passed over: {reason}")
    return sorted(roots, key=lambda root: reasons[root] is not None)


def local_root() -> Path:
    """The node's own place for spools."""
    return Path(tempfile.gettempdir()) / f"rollout-traces-{os.getuid()}" / "spool"


def run_folders(root: Path, project: str | None = None) -> list[RunFolder]:
    """This user's run folders below a spool root, of one project or of all; others are named in a warning, once."""
    pattern = f"{'*' if project is None else safe_name(project)}/*/manifest.json"
    found = []
    for path in sorted(root.glob(pattern)):
        folder = RunFolder(path.parent)
        reason = folder.why_not_believed()
        if reason is None:
            found.append(folder)
        else:
            _warn_once(f"passed over: {reason}")
    return found


@functools.lru_cache(maxsize=1000)
def _warn_once(sentence: str) -> None:
    log.warning("%s", sentence)


def safe_name(text: str) -> str:
    """A name that is safe as one folder's name."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text).lstrip(".") or "_"


FINGERPRINT = "fingerprint.json"
SAMPLES = 64
"""Token ids, spread over the vocabulary, whose texts must come back the same."""


def save_tokenizer(tokenizer: Any, folder: Path) -> bool:
    """Writes a tokenizer into a folder.

    Args:
        tokenizer: a transformers tokenizer that has a `tokenizer.json`, or a `tokenizers.Tokenizer`.
        folder: the folder; it is made.

    Returns:
        False when it cannot be written so that it comes back the same: it then works in this process only.
    """
    make_folder(folder)
    try:
        if hasattr(tokenizer, "save_pretrained"):
            tokenizer.save_pretrained(str(folder))
        else:
            tokenizer.save(str(folder / "tokenizer.json"))
        (folder / FINGERPRINT).write_bytes(orjson.dumps(_fingerprint(tokenizer)))
        close_files(folder)
    except Exception:  # noqa: BLE001  whatever a tokenizer of the caller's raises: it stays here, as the answer says
        return False
    return (folder / "tokenizer.json").exists()


def load_tokenizer(folder: Path) -> Any:
    """Reads what `save_tokenizer` wrote, without torch and without the network.

    Raises:
        StoreError: what comes back is not the same tokenizer.
    """
    expected = orjson.loads((folder / FINGERPRINT).read_bytes())
    for load in (_load_plain, _load_by_class):
        tokenizer = load(folder)
        seen = _fingerprint(tokenizer)
        if seen == expected:
            return tokenizer
    raise StoreError(
        f"tokenizer in {folder}: seen {seen['size']} tokens, expected {expected['size']} and the same texts. "
        "Use worker='thread' for a tokenizer that does not survive save_pretrained."
    )


def _load_plain(folder: Path) -> Any:
    """From `tokenizer.json` alone, which needs no torch."""
    if not (folder / "tokenizer_config.json").exists():
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    with extra("train", "this run's tokenizer"):
        from transformers import PreTrainedTokenizerFast
    return PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)


def _load_by_class(folder: Path) -> Any:
    """As the class that the tokenizer was saved from."""
    with extra("train", "this run's tokenizer"):
        from transformers import AutoTokenizer
    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


def _fingerprint(tokenizer: Any) -> dict[str, Any]:
    size = len(tokenizer) if hasattr(tokenizer, "__len__") else tokenizer.get_vocab_size()
    ids = list(range(0, size, max(size // SAMPLES, 1)))
    return {
        "size": size,
        "texts": [tokenizer.decode([token]) for token in ids],
        "template": str(getattr(tokenizer, "chat_template", None)),
    }


@dataclass(frozen=True)
class Account:
    """A run's rollouts, as far as the folder of its spools knows.

    Attributes:
        stored: seen in the store.
        waiting: in records that wait.
        lost: in records that are damaged and were set aside, as far as these say how many.
        newer: in records that only a newer version can read.
        n_waiting: records that wait.
        n_damaged: records that are damaged.
        n_newer: records of a newer format that were set aside.
        n_silent: damaged records that do not say how many rollouts they held.
    """

    stored: int = 0
    waiting: int = 0
    lost: int = 0
    newer: int = 0
    n_waiting: int = 0
    n_damaged: int = 0
    n_newer: int = 0
    n_silent: int = 0

    @property
    def is_hurt(self) -> bool:
        """True where something cannot be stored any more, or not by this version."""
        return bool(self.n_damaged or self.n_newer)

    def __str__(self) -> str:
        handed_over = self.stored + self.waiting + self.lost + self.newer
        parts = [f"{self.stored:,} of {handed_over:,} rollouts stored"]
        if self.n_waiting:
            parts.append(f"{self.waiting:,} wait in {_records(self.n_waiting)}")
        if self.n_damaged:
            least = "at least " if self.n_silent else ""
            parts.append(f"{least}{self.lost:,} lost in {_records(self.n_damaged, 'damaged ')}")
        if self.n_newer:
            newer = _records(self.n_newer)
            parts.append(f"{self.newer:,} in {newer} of a newer format (upgrade rollout-traces)")
        return "; ".join(parts)


def account_of(folder: RunFolder) -> Account:
    """Counts what a run's folder knows; every record that waits is looked at."""
    waiting = [(reader, name) for reader in folder.readers() for name in reader.names()]
    said = [reader.said_by(name) for reader, name in waiting]
    return replace(
        damage_of(folder),
        stored=int(folder.status().get("counters", {}).get("rollouts_stored", 0)),
        waiting=sum(one.n_rows for one in said if one is not None),
        n_waiting=len(waiting),
    )


def damage_of(folder: RunFolder) -> Account:
    """Counts the records that were set aside, and nothing else."""
    aside = [said for reader in folder.readers() for said in reader.set_aside_ones()]
    damaged = [one for one in aside if one is None or not one.is_newer]
    newer = [one for one in aside if one is not None and one.is_newer]
    return Account(
        lost=sum(one.n_rows for one in damaged if one is not None),
        newer=sum(one.n_rows for one in newer),
        n_damaged=len(damaged),
        n_newer=len(newer),
        n_silent=sum(one is None for one in damaged),
    )


def _records(n: int, kind: str = "") -> str:
    return f"{n:,} {kind}record{'s' * (n != 1)}"


PUBLISH_EVERY = 0.2
"""Seconds between two writes of the status."""


class Publisher:
    """Writes the status from time to time.

    Args:
        folder: the run's folder.
        counters: what is written.
    """

    def __init__(self, folder: RunFolder, counters: Counter[str]) -> None:
        self._folder = folder
        self._counters = counters
        self._last: dict[str, int] = {}
        self._at = 0.0

    def __call__(self) -> None:
        """Writes when something changed and the last time is long enough ago."""
        if time.monotonic() - self._at >= PUBLISH_EVERY and dict(self._counters) != self._last:
            self.now()

    def now(self) -> None:
        """Writes."""
        self._at = time.monotonic()
        self._last = dict(self._counters)
        self._folder.write_status({"counters": self._last, "pid": os.getpid(), "at": time.time()})
