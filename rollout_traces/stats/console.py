"""A commit as a table for the terminal, and a rollout in a few lines, printed beside the training."""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

from rich.columns import Columns
from rich.console import Console, Group
from rich.panel import Panel
from rich.text import Text

from rollout_traces.capture.host_copy import capture
from rollout_traces.decode.decoder import DecodeSettings
from rollout_traces.ledger.build import build_ledger
from rollout_traces.ledger.columns import Ledger
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.text import BRIEF, clipped_text, harmless, one_line
from rollout_traces.model.transcript import Transcript, Turn

TEXT_LIMIT = 600
"""Characters shown of a turn."""
LINE_LIMIT = 160
"""Characters shown of a tool call or result."""
TOKENS_SHOWN = 12
RUNS_SHOWN = 8
_STYLES = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "yellow", "context": "magenta"}


def print_scalars(values: Mapping[str, float], *, title: str, console: Console | None = None) -> None:
    """Prints numbers in as many columns as there is room for, sorted by key.

    Args:
        values: key -> number.
        title: what stands above them.
        console: where to print; the standard error by default.
    """
    if values:
        keys = {harmless(key): number(value) for key, value in sorted(values.items())}
        width, digits = max(map(len, keys)), max(map(len, keys.values()))
        cells = [Text(f"{key:{width}}  {shown:>{digits}}") for key, shown in keys.items()]
        console = console or Console(stderr=True)
        console.print(Text(harmless(title)), Columns(cells, padding=(0, 4), column_first=True), sep="\n")


def number(value: float) -> str:
    """A number of at most ten characters: whole ones as they are, others to four significant digits."""
    if math.isfinite(value) and value == int(value) and abs(value) < 1e9:
        return str(int(value))
    return f"{value:.4g}"


def rollout_overview(transcript: Transcript, ledger: Ledger, row: int, *, title: str = "") -> Panel:
    """A rollout for the terminal: its turns, tool calls and results, reward, first tokens, loss mask.

    Args:
        ledger: the ledger that it is a row of.
        row: its row there.
        title: text in the frame.

    Returns:
        Something rich can print, bounded in size whatever the rollout holds.
    """
    known = ledger.row(row)
    head = Text(f"{outcome_line(known)}", style="bold")
    parts: list[Any] = [head, *(line for turn in transcript.turns for line in _turn_lines(turn))]
    parts += [Text(token_line(transcript), style="dim"), Text(mask_line(transcript), style="dim")]
    return Panel(Group(*parts), title=Text(harmless(title)), title_align="left")


def outcome_line(known: Mapping[str, Any]) -> str:
    """Reward, advantage, lengths and stop reason of a ledger row in one line; what is unknown is left out."""
    reward = known.get("reward")
    parts = ["reward unknown" if reward is None else f"reward {reward:.4g}"]
    if known.get("advantage") is not None:
        parts.append(f"advantage {known['advantage']:+.3g}")
    if known.get("n_sampled") is not None:
        parts.append(f"{known['n_prompt']} prompt + {known['n_sampled']} sampled tokens")
    if known.get("stop_reason") is not None:
        parts.append(f"stopped by {harmless(known['stop_reason'])}")
    if known.get("discard_reason") is not None:
        parts.append(f"discarded: {harmless(known['discard_reason'])}")
    return ", ".join(parts)


def token_line(transcript: Transcript) -> str:
    """The first tokens of the rollout, as id and text."""
    ids = transcript.tokens.input_ids[:TOKENS_SHOWN].tolist()
    pairs = [
        f'{token}:"{one_line(text, 16)}"' for token, text in zip(ids, transcript.token_texts(), strict=False)
    ]
    more = len(transcript.tokens) - len(ids)
    return "tokens " + " ".join(pairs) + (f" … {more} more" if more > 0 else "")


def mask_line(transcript: Transcript) -> str:
    """Writes how many tokens are trained, and their runs as `start:stop`, the first `RUNS_SHOWN`."""
    mask = transcript.tokens.loss_mask
    edges = (mask[1:] != mask[:-1]).nonzero()[0] + 1
    bounds = [0, *edges.tolist(), len(mask)]
    runs = [f"{a}:{b}" for a, b in pairwise(bounds) if b > a and mask[a]]
    beyond = len(runs) - RUNS_SHOWN
    shown = " ".join(runs[:RUNS_SHOWN]) + (f" … {beyond} more" if beyond > 0 else "")
    trained = f"loss mask: {int(mask.sum())} of {len(mask)} tokens trained"
    return f"{trained}, at {shown}" if runs else trained


def _turn_lines(turn: Turn) -> Iterator[Text]:
    style = _STYLES.get(turn.role, "")
    name = f" {one_line(turn.name, BRIEF)}" if turn.name else ""
    if turn.role == "tool":
        yield Text(f"tool{name}: {one_line(turn.content, LINE_LIMIT)}", style=style)
        return
    yield Text(f"{turn.role}{name} ({len(turn)} tokens)", style=f"bold {style}")
    if turn.thinking:
        yield Text(f"  thinking: {one_line(turn.thinking, LINE_LIMIT)}", style="dim")
    if turn.content:
        yield Text(clipped_text(turn.content, TEXT_LIMIT))
    for call in turn.tool_calls:
        shown = (
            f"{call.name} {dict(call.arguments)}" if call.parsed and call.arguments is not None else call.raw
        )
        yield Text(f"  call: {one_line(shown, LINE_LIMIT)}", style="yellow")


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
