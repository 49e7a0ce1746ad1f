"""A transcript in the terminal: roles in colour, tokens in the loss bright, all others dim."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from rollout_traces.model.text import harmless

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from rollout_traces.model.transcript import Transcript, Turn

COLOURS = {"system": "magenta", "user": "cyan", "assistant": "green", "tool": "yellow", "context": "white"}


SYSTEM_CHARACTERS = 600
"""Of a system prompt, unless everything was asked for: the conversation begins on the first screen."""


class RenderedTurn(NamedTuple):
    """One turn, ready to print.

    Attributes:
        role: who wrote it.
        heading: what stands above it.
        body: its text.
    """

    role: str
    heading: str
    body: Text


def turns_of(transcript: Transcript, raw: bool) -> Iterator[RenderedTurn]:
    """Renders every turn; with `raw` its markers too."""
    for turn in transcript.turns:
        counts = f"{len(turn)} token{'s' * (len(turn) != 1)}" + (
            f", {turn.n_sampled} sampled" if turn.n_sampled else ""
        )
        versions = ", ".join(f"{version}" for version, _ in turn.versions)
        heading = f"{turn.role}{' ' + turn.name if turn.name else ''} · {counts}"
        heading += f" · version {versions}" if versions else ""
        yield RenderedTurn(turn.role, heading, _masked(transcript, turn, raw))


def folded(turns: Iterable[RenderedTurn]) -> Iterator[RenderedTurn]:
    """Turns with the first characters of a long system prompt, and how many are left out."""
    from rich.text import Text

    for turn in turns:
        left_out = len(turn.body) - SYSTEM_CHARACTERS
        if turn.role == "system" and left_out > SYSTEM_CHARACTERS:
            note = Text(f"\n… {left_out:,} more characters; --raw shows all", style="italic dim")
            turn = turn._replace(body=turn.body[:SYSTEM_CHARACTERS] + note)
        yield turn


def print_turns(console: Console, turns: Iterable[RenderedTurn]) -> None:
    """Prints turns below their headings."""
    from rich.text import Text

    for role, heading, body in turns:
        colour = COLOURS.get(role, "white")
        console.rule(Text(harmless(heading), style=f"bold {colour}"), align="left", style=colour)
        console.print(body)


def _masked(transcript: Transcript, turn: Turn, raw: bool) -> Text:
    from rich.text import Text

    start, stop = (turn.start, turn.stop) if raw else (turn.body_start, turn.body_stop)
    tokens = transcript.tokens
    whole = transcript.raw
    text = Text()
    trained = tokens.loss_mask[start:stop].tolist()
    for in_loss, run in groupby(zip(trained, range(start, stop), strict=True), key=lambda item: item[0]):
        places = [place for _, place in run]
        piece = whole[int(tokens.char_starts[places[0]]) : int(tokens.char_stops[places[-1]])]
        text.append(harmless(piece), style=COLOURS.get(turn.role, "") if in_loss else "dim")
    return text
