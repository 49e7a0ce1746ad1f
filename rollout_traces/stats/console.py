"""What people who live in a terminal see: a commit as a table, a rollout as a short step summary."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rollout_traces.ledger.columns import Ledger
from rollout_traces.terminal_text import clipped_text, harmless, one_line
from rollout_traces.transcript import Transcript, Turn

TEXT_LIMIT = 600
"""Characters shown of a turn."""
LINE_LIMIT = 160
"""Characters shown of a tool call or result."""
TOKENS_SHOWN = 12
_PAIR_WIDTH = 46
_STYLES = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "yellow", "context": "magenta"}


def print_scalars(values: Mapping[str, float], *, title: str, console: Console | None = None) -> None:
    """Prints numbers as an aligned table, sorted by key.

    Args:
        values: number by key.
        title: the line above the text.
        console: where to print; standard error when None.
    """
    if values:
        console = console or Console(stderr=True)
        console.print(scalar_table(values, title=title, width=console.width))


def scalar_table(values: Mapping[str, float], *, title: str, width: int) -> Table:
    """The table of `print_scalars`, in as many column pairs as the width has room for."""
    pairs = max(1, min(3, width // _PAIR_WIDTH, len(values)))
    table = Table(title=Text(harmless(title)), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for _ in range(pairs):
        table.add_column("key", overflow="fold")
        table.add_column("value", justify="right", no_wrap=True)
    rows = [(Text(harmless(key)), Text(number(value))) for key, value in sorted(values.items())]
    height = math.ceil(len(rows) / pairs)
    for line in range(height):
        cells: list[Text] = []
        for column in range(pairs):
            at = column * height + line
            cells += rows[at] if at < len(rows) else (Text(), Text())
        table.add_row(*cells)
    return table


def number(value: float) -> str:
    """A number of at most ten characters: whole ones as they are, others to four significant digits."""
    if math.isfinite(value) and value == int(value) and abs(value) < 1e9:
        return str(int(value))
    return f"{value:.4g}"


def rollout_overview(transcript: Transcript, ledger: Ledger, row: int, *, title: str = "") -> Panel:
    """A rollout for the terminal: its turns, tool calls and results, reward, first tokens, loss mask.

    Args:
        transcript: the rollout.
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
    """How many tokens are trained, and their runs as `start:stop`, the first eight."""
    mask = transcript.tokens.loss_mask
    edges = (mask[1:] != mask[:-1]).nonzero()[0] + 1
    bounds = [0, *edges.tolist(), len(mask)]
    runs = [f"{a}:{b}" for a, b in pairwise(bounds) if b > a and mask[a]]
    shown = " ".join(runs[:8]) + (f" … {len(runs) - 8} more" if len(runs) > 8 else "")
    trained = f"loss mask: {int(mask.sum())} of {len(mask)} tokens trained"
    return f"{trained}, at {shown}" if runs else trained


def _turn_lines(turn: Turn) -> Iterator[Text]:
    style = _STYLES.get(turn.role, "")
    name = f" {one_line(turn.name, 40)}" if turn.name else ""
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
