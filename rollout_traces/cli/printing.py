"""Prints what a command found: rows as a table for a person or as JSON for a program, a conversation with its loss mask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
import typer

from rollout_traces.model.text import harmless, one_line
from rollout_traces.model.units import MB

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from rollout_traces.model.transcript import Transcript, Turn


SENTENCE = 500
"""Most characters of a sentence."""
TITLE = 200
"""Most characters of a title."""
CELL = 48
"""Most characters of one cell that is printed by itself."""
WHOLE = MB
"""Most characters of one cell of a table, before it is fitted."""
GAP = 3
"""Characters between two columns."""
NARROWEST = 9
"""A column of text is not cut below this."""
SMALL_P = 1e-4
"""A p value below it has its power of ten."""
LONGEST_WORD = 24
"""Words of a column's texts are not cut below this: ids, flags."""


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str = "") -> None:
    """Prints a table, one line a row.

    In a pipe no cell is cut. On a terminal the widest texts are cut to fit, numbers never; what has no room even
    then is left out from the right, and said.

    Args:
        columns: headings.
        rows: plain values.
        title: stands above.
    """
    from rich import box
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    names = [one_line(name, WHOLE) for name in columns]
    cells = [[cell(value, WHOLE) for value in row] for row in rows]
    numeric = [
        bool(rows) and all(isinstance(row[at], int | float | None) for row in rows)
        for at in range(len(names))
    ]
    texts = [[name, *(row[at] for row in cells)] for at, name in enumerate(names)]
    widths = [max(map(cell_len, column)) for column in texts]
    if console.is_terminal:
        least = [w if n else least_width(column) for w, n, column in zip(widths, numeric, texts, strict=True)]
        shown = how_many(least, console.width)
        widths = fitted(widths[:shown], console.width - GAP * shown, least[:shown])
    else:
        shown = len(names)
        console = Console(highlight=False, width=sum(widths) + GAP * len(columns) + 1)
    if title:
        console.print(Text(one_line(title, TITLE), style="bold"), soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for name, number, width in zip(names, numeric, widths, strict=False):
        table.add_column(
            Text(name),
            justify="right" if number else "left",
            no_wrap=True,
            overflow="ellipsis",
            max_width=width,
        )
    for row in cells:
        table.add_row(*map(Text, row[:shown]))
    console.print(table)
    if shown < len(names):
        said = f"no room for {', '.join(names[shown:])}: a wider terminal or a pipe shows all columns"
        console.print(Text(said, style="dim"))


def p_text(p: float) -> str:
    """A p value: two digits, and one with its power of ten where it is small; `pValue` of the pages says the same."""
    if p and p < SMALL_P:
        digit, power = f"{p:.0e}".split("e")
        return f"{digit}e{int(power)}"
    return f"{p:.2g}"


def sentence(text: str) -> str:
    """A sentence that holds words of others, on one line."""
    return one_line(text, SENTENCE)


def print_fields(rows: Sequence[object], fields: Mapping[str, str], *, title: str = "") -> None:
    """Prints a table of objects.

    Args:
        rows: what stands in a line each.
        fields: heading -> the field below it.
        title: stands above.
    """
    print_table(list(fields), [[getattr(row, name) for name in fields.values()] for row in rows], title=title)


def least_width(texts: Sequence[str]) -> int:
    """Computes the width below which a column of text is not cut: its words, up to `LONGEST_WORD`, and `NARROWEST`.

    Args:
        texts: its heading and its cells.
    """
    from rich.cells import cell_len

    word = max((cell_len(word) for text in texts for word in text.split()), default=0)
    return min(max(min(word, LONGEST_WORD), NARROWEST), max(map(cell_len, texts)))


def how_many(least: Sequence[int], width: int) -> int:
    """Counts the columns that there is room for, from the left; one at least.

    Args:
        least: what each column is not cut below.
        width: of the terminal.
    """
    shown = len(least)
    while shown > 1 and sum(least[:shown]) + GAP * shown > width:
        shown -= 1
    return shown


def fitted(widths: Sequence[int], room: int, least: Sequence[int]) -> list[int]:
    """Widths of columns, the widest cut alike until they fit, none below what it needs.

    Args:
        widths: what each column would take.
        room: characters there are.
        least: what each column is not cut below.
    """
    longest = min(max(widths, default=0), room)
    while True:
        fitting = [max(min(width, longest), floor) for width, floor in zip(widths, least, strict=True)]
        if sum(fitting) <= room or longest <= 0:
            return fitting
        longest -= 1


def print_rows(rows: Sequence[Any], total: int | None = None, **more: Any) -> None:
    """Prints rows as JSON, in the one shape that every command has for them: `rows`, and `total`, how many there are.

    Args:
        rows: plain values by name.
        total: how many there are in all; as many as are printed by default.
        **more: what else is known of them, such as `next`, the cursor behind the last one.
    """
    print_json({"rows": list(rows), "total": len(rows) if total is None else total, **more})


def print_json(value: Any) -> None:
    """Prints JSON on standard output."""

    from rollout_traces.model.plain_values import plain

    typer.echo(orjson.dumps(plain(value), option=orjson.OPT_INDENT_2, default=str).decode())


def cell(value: Any, most: int = CELL) -> str:
    """One value as a person reads it; unknown is empty.

    Args:
        value: a plain value.
        most: characters of a text that are shown.
    """
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple | list):
        return one_line(", ".join(map(str, value)), most)
    if isinstance(value, Mapping):
        return one_line(", ".join(f"{k} {cell(v, most)}" for k, v in value.items()), most)
    return one_line(str(value), most)


SEVERITIES = {"error": "red", "warn": "yellow", "info": "blue"}
COLOURS = {"system": "magenta", "user": "cyan", "assistant": "green", "tool": "yellow", "context": "white"}


SYSTEM_CHARACTERS = 600
"""Of a system prompt, unless everything was asked for: the conversation begins on the first screen."""


class RenderedTurn(NamedTuple):
    """One turn, ready to print.

    Attributes:
        role: who wrote it.
        heading: what stands above it.
    """

    role: str
    heading: str
    body: Text


def turns_of(transcript: Transcript, raw: bool) -> Iterator[RenderedTurn]:
    """Renders every turn; with `raw` its markers too. Of one without tokens the text is whole."""
    for turn in transcript.turns:
        heading = f"{turn.role}{' ' + turn.name if turn.name else ''}"
        heading += f" · {len(turn)} token{'s' * (len(turn) != 1)}" if len(transcript.tokens) else ""
        heading += f", {turn.n_sampled} sampled" if turn.n_sampled else ""
        versions = ", ".join(f"{version}" for version, _ in turn.versions)
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

    if not len(transcript.tokens):
        return Text(harmless(turn.raw))
    start, stop = (turn.start, turn.stop) if raw else (turn.body_start, turn.body_stop)
    text = Text()
    trained = transcript.tokens.loss_mask[start:stop].tolist()
    for in_loss, run in groupby(zip(trained, range(start, stop), strict=True), key=lambda item: item[0]):
        places = [place for _, place in run]
        piece = transcript.text_between(places[0], places[-1] + 1)
        text.append(harmless(piece), style=COLOURS.get(turn.role, "") if in_loss else "dim")
    return text
