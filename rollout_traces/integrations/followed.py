"""Follows a rollout while it is sampled: its stages for the page Live, its spans for the lanes.

Processes that sample beside a trainer are told where to say it by a file of this node, which the trainer's process writes
once its run is known. `rollout-traces run` and verl's plugin name that file in the environment, which the processes that
Ray and AReaL start on this node inherit. One that has no such file says nothing.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from rollout_traces.errors import StoreError, Warnings
from rollout_traces.integrations.base import contained
from rollout_traces.integrations.run_report import LIVE_PLACE
from rollout_traces.logger.live import NOT_LIVE, LiveRollout, LiveWriter
from rollout_traces.logger.rollout_logger import RolloutLogger
from rollout_traces.model import private_files
from rollout_traces.model.live_lines import MAX_TEXT, LivePlace
from rollout_traces.model.names import node_name
from rollout_traces.model.spans import Span, Spans

LAST_TOKENS = 32
"""Tokens that are decoded to say a rollout's last words."""
current: ContextVar[Followed | None] = ContextVar("rollout_traces_followed", default=None)
"""The rollout that a coroutine samples, where a hook follows it."""


class Followed:
    """Says what a rollout is in, and notes its spans. Nothing here raises but what runs inside.

    Args:
        live: what its stages are said to.
        tokenizer: decodes its last words; None: none are said.
    """

    def __init__(self, live: LiveRollout, tokenizer: Any = None) -> None:
        self.live, self.tokenizer = live, tokenizer
        self.turns = self.tokens = 0
        self._spans = Spans()

    @property
    def noted(self) -> list[Span]:
        """The spans so far."""
        return list(self._spans.noted)

    def note(self, span: Span) -> None:
        """Adds a span that several rollouts share."""
        self._spans.noted.append(span)

    @contextmanager
    def running(self) -> Iterator[None]:
        """It is sampled inside, by this coroutine; what raises aborts it."""
        token = current.set(self)
        try:
            yield
        except BaseException as error:
            self.live.stage("aborted", type(error).__name__)
            raise
        finally:
            current.reset(token)

    @contextmanager
    def sampling(self) -> Iterator[Span]:
        """A turn is sampled inside; what is known of engine and version behind it goes into the span."""
        self.live.stage("sampling")
        with self._spans("generate", turn=self.turns) as span:
            yield span

    def sampled(self, ids: Sequence[int]) -> None:
        """A turn of so many tokens is there."""
        self.turns += 1
        self.tokens += len(ids)
        words = contained("live")(last_words)(self.tokenizer, ids)
        self.live.stage("sampling", turns=self.turns, tokens=self.tokens, words=words)

    @contextmanager
    def tool(self, name: str) -> Iterator[Span]:
        """A tool of the newest turn runs inside."""
        self.live.stage("tool", name)
        with self._spans("tool", turn=max(self.turns - 1, 0), name=name) as span:
            yield span

    @contextmanager
    def scoring(self, name: str | None = None) -> Iterator[Span]:
        """It is scored inside."""
        self.live.stage("scoring", name)
        with self._spans("score", **({"name": name} if name else {})) as span:
            yield span


def last_words(tokenizer: Any, ids: Sequence[int]) -> str | None:
    """The end of what was sampled; None without a tokenizer."""
    if tokenizer is None:
        return None
    return str(tokenizer.decode(list(ids[-LAST_TOKENS:])))


def prompt_text(prompt: Any) -> str | None:
    """Reads the text of a prompt: the prompt itself, or the last text of a list of messages."""
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, Sequence):
        return None
    texts = [message["content"] for message in prompt if _has_text(message)]
    return texts[-1] if texts else None


def _has_text(message: Any) -> bool:
    return isinstance(message, Mapping) and isinstance(message.get("content"), str)


SHARERS = 16
"""Processes that the bytes of a run's live files are shared among."""
PAUSE = 1.0
"""Seconds between two looks for the file."""


@dataclass
class _Announced:
    """The trainer's logger that this process knows, or the writer of a process that samples beside it."""

    logger: weakref.ref[RolloutLogger] | None = None
    writer: LiveWriter | None = None
    written: int = 0
    looked: float = 0.0


_process = _Announced()


def prepare() -> None:
    """Names the file to the processes that this one starts, where no other has."""
    if LIVE_PLACE not in os.environ:
        folder = tempfile.mkdtemp(prefix="rollout-traces-live-")
        os.environ[LIVE_PLACE] = str(Path(folder) / "place.json")
        atexit.register(_remove, folder, os.getpid())


def announce(logger: RolloutLogger | None) -> None:
    """Says that what is sampled from now on belongs to a logger's run, here and in the processes beside this one."""
    known = _process.logger() if _process.logger is not None else None
    if logger is None or known is logger:
        return
    _process.logger = weakref.ref(logger)
    named = os.environ.get(LIVE_PLACE)
    if named:
        place, says_texts = logger.live_place()
        said = {name: str(value) for name, value in vars(place).items()} | {"says_texts": says_texts}
        private_files.replace_file(Path(named), orjson.dumps(said))


def begin(prompt: str | None, **known: Any) -> LiveRollout:
    """Begins a rollout in flight; one that nothing is said of where no trainer told of its run.

    Args:
        prompt: its beginning is shown.
        **known: further arguments of `RolloutLogger.live`.
    """
    if _process.logger is not None:
        logger = _process.logger()
        return NOT_LIVE if logger is None else logger.live(prompt, **known)
    writer = contained("live")(_writer)()
    if writer is None:
        return NOT_LIVE
    return writer.begin({"prompt": prompt[:MAX_TEXT] if prompt else None, **known})


def _writer() -> LiveWriter | None:
    """This process's own, for the run that the file tells of now."""
    named, now = os.environ.get(LIVE_PLACE), time.monotonic()
    if named is None or now - _process.looked < PAUSE:
        return _process.writer
    _process.looked = now
    path = Path(named)
    try:
        written = path.stat().st_mtime_ns
    except FileNotFoundError:
        return _process.writer
    if written != _process.written:
        if reason := private_files.why_not_believed(path.parent, path.parent, [path]):
            raise StoreError(reason)
        if _process.writer is not None:
            _process.writer.close()
        said = orjson.loads(path.read_bytes())
        says_texts = bool(said.pop("says_texts"))
        place = LivePlace(**{**said, "folder": Path(said["folder"]), "top": Path(said["top"])})
        warnings = Warnings(Counter())
        _process.writer = LiveWriter(place, node_name(), warnings, n_ranks=SHARERS, says_texts=says_texts)
        _process.written = written
    return _process.writer


def _remove(folder: str, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)
