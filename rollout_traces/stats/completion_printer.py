"""Prints a few rollouts per step, decoded on another thread."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from rich.console import Console

from rollout_traces.batch import RolloutBatch
from rollout_traces.capture.host_copy import capture
from rollout_traces.decode.settings import DecodeSettings
from rollout_traces.ledger.build import build_ledger
from rollout_traces.stats.console import rollout_overview

log = logging.getLogger("rollout_traces.stats.console")
WAITING = 2
"""Steps that may wait to be printed; further ones are skipped and counted."""


class CompletionPrinter:
    """Prints at most `limit` rollouts of a step.

    Args:
        tokenizer: the policy's.
        limit: rollouts per step and split.
        console: where to print; standard error when None.
        decoding: what is decoded with beside the tokenizer.

    Attributes:
        skipped: steps that were not printed, because printing was behind or failed.
    """

    def __init__(
        self,
        tokenizer: Any,
        limit: int,
        console: Console | None = None,
        decoding: DecodeSettings | None = None,
    ) -> None:
        self.limit = limit
        self.skipped = 0
        self._tokenizer = tokenizer
        self._decoding = decoding or DecodeSettings()
        self._console = console or Console(stderr=True)
        self._queue: queue.Queue[tuple[RolloutBatch, int, str] | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(
            target=self._print_forever, name="rollout-traces-console", daemon=True
        )
        self._thread.start()

    def show(self, rollouts: Any, *, step: int, split: str) -> None:
        """Copies the rows to show, and returns.

        Args:
            rollouts: what `RolloutLogger.log_rollouts` takes.
            step: the step they are logged at; successive steps show different groups.
            split: `rollout` or `eval-rollout`.
        """
        batches = [batch for batch in RolloutBatch.from_any(rollouts) if batch.n_rows]
        if not batches:
            return
        batch = batches[step % len(batches)]
        last_start = max(batch.n_rows - self.limit, 0)
        start = 0 if len(batches) > 1 else (step * self.limit) % (last_start + 1)
        try:
            self._queue.put_nowait((copy_rows(batch, start, start + self.limit), step, split))
        except queue.Full:
            self.skipped += 1

    def close(self, timeout: float = 10.0) -> None:
        """Prints what waits, for about `timeout` seconds at most; then the rest is left unprinted."""
        try:
            self._queue.put(None, timeout=timeout)
        except queue.Full:
            self.skipped += self._queue.qsize()
        else:
            self._thread.join(timeout)

    def _print_forever(self) -> None:
        decoder = None
        while (item := self._queue.get()) is not None:
            rows, step, split = item
            try:
                if decoder is None:
                    decoder = self._decoding.decoder(self._tokenizer)
                batch = capture([rows], step=step, split=split)
                ledger = build_ledger(batch)
                for row, transcript in enumerate(decoder.decode_batch(batch, range(batch.n_rows))):
                    title = f"{split}, step {step}, rollout {row + 1} of {batch.n_rows} shown"
                    self._console.print(rollout_overview(transcript, ledger, row, title=title))
            except Exception as error:  # noqa: BLE001  printing never raises into training; counted and warned
                self.skipped += 1
                log.warning("rollouts of step %d could not be printed: %r", step, error)


def copy_rows(batch: RolloutBatch, start: int, stop: int) -> RolloutBatch:
    """A new batch with rows `[start, stop)`; tensors stay on their device, and nothing waits for it."""
    copied: dict[str, Any] = {}
    for item in fields(batch):
        value = getattr(batch, item.name)
        if isinstance(value, Mapping):
            copied[item.name] = {name: _own(column[start:stop]) for name, column in value.items()}
        elif value is not None and hasattr(value, "__len__"):
            copied[item.name] = _own(value[start:stop])
    return replace(batch, **copied)


def _own(value: Any) -> Any:
    if hasattr(value, "clone"):
        return value.detach().clone()
    return value.copy() if hasattr(value, "copy") else list(value)
