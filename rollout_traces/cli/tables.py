"""Rows as a table for a person, or as JSON for a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollout_traces.terminal_text import one_line

CELL = 48
"""Most characters of one cell on a terminal."""
WHOLE = 1 << 20
"""Most characters of one cell in a pipe."""
GAP = 3
"""Characters between two columns."""
NARROWEST = 9
"""A column is not cut below this."""


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str = "") -> None:
    """Prints a table, one line a row; on a terminal the widest texts are cut to fit, in a pipe none is.

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
    most = CELL if console.is_terminal else WHOLE
    cells = [[cell(value, most) for value in row] for row in rows]
    names = [one_line(name, most) for name in columns]
    widths = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    if console.is_terminal:
        widths = fitted(widths, console.width - GAP * len(columns) - 1)
    else:
        console = Console(highlight=False, width=sum(widths) + GAP * len(columns) + 1)
    if title:
        console.print(Text(one_line(title, 200), style="bold"), soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for at, name in enumerate(names):
        numeric = rows and all(isinstance(row[at], int | float | None) for row in rows)
        table.add_column(
            Text(name),
            justify="right" if numeric else "left",
            no_wrap=True,
            overflow="ellipsis",
            max_width=widths[at],
        )
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table)


def fitted(widths: Sequence[int], room: int) -> list[int]:
    """Widths of columns with the widest cut until they fit, none below a readable rest.

    Args:
        widths: what each column would take.
        room: characters there are.
    """
    fitting = list(widths)
    while sum(fitting) > room and max(fitting) > NARROWEST:
        widest = fitting.index(max(fitting))
        fitting[widest] = max(NARROWEST, fitting[widest] - (sum(fitting) - room))
    return fitting


def print_json(value: Any) -> None:
    """Prints JSON on standard output."""
    import orjson
    import typer

    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str).decode())


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
