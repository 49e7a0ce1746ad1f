"""Rollouts in the order in which a dump has them -> hand-overs of one step and split each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rollout_traces.sources.rows import RolloutRow

Key = tuple[int, str]
"""A step and a split."""
MAX_ROWS = 512
MAX_TOKENS = 4_000_000
MAX_CHARACTERS = 32 << 20


@dataclass
class _WaitingRows:
    rows: list[RolloutRow] = field(default_factory=list)
    n_tokens: int = 0
    n_characters: int = 0

    def add(self, row: RolloutRow) -> None:
        self.rows.append(row)
        self.n_tokens += 0 if row.input_ids is None else len(row.input_ids)
        texts = [row.prompt_text, row.reply_text, *(m.get("content") for m in row.messages or ())]
        self.n_characters += sum(len(text) for text in texts if isinstance(text, str))

    @property
    def is_full(self) -> bool:
        return (
            len(self.rows) >= MAX_ROWS or self.n_tokens >= MAX_TOKENS or self.n_characters >= MAX_CHARACTERS
        )


class StepQueue:
    """Holds the rows of open steps until they make a hand-over; a later step closes the ones before it.

    Args:
        hand_over: takes rows of one step and split.
        close: called when a step and split has had its last row.

    Attributes:
        late: rows of steps that were closed before.
    """

    def __init__(
        self, hand_over: Callable[[Key, list[RolloutRow]], None], close: Callable[[Key], None]
    ) -> None:
        self._hand_over = hand_over
        self._close = close
        self._open: dict[Key, _WaitingRows] = {}
        self._closed_to: dict[str, int] = {}
        self.late = 0

    @property
    def open_keys(self) -> frozenset[Key]:
        """Steps and splits that more rows may come for."""
        return frozenset(self._open)

    def add(self, row: RolloutRow, behind: int = 0) -> None:
        """Takes a row; steps before its own are closed, but for so many that rows may still come for."""
        for key in sorted(key for key in self._open if key[0] < row.step - behind):
            self.close(key)
        if row.step <= self._closed_to.get(row.split, row.step - 1):
            self.late += 1
        waiting = self._open.setdefault((row.step, row.split), _WaitingRows())
        waiting.add(row)
        if waiting.is_full:
            self._send((row.step, row.split))

    def close(self, key: Key) -> None:
        """Hands over what waits of a step and closes it."""
        self._send(key)
        del self._open[key]
        self._closed_to[key[1]] = max(key[0], self._closed_to.get(key[1], key[0]))
        self._close(key)

    def send_all(self) -> None:
        """Hands over what waits; nothing is closed."""
        for key in list(self._open):
            self._send(key)

    def close_all(self) -> None:
        """Closes every open step, the oldest first."""
        for key in sorted(self._open):
            self.close(key)

    def _send(self, key: Key) -> None:
        waiting = self._open[key]
        if waiting.rows:
            self._open[key] = _WaitingRows()
            self._hand_over(key, waiting.rows)
