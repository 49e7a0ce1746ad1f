"""What objects show in a notebook: escaped HTML without scripts, addresses or style sheets of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from rollout_traces.terminal_text import harmless

MOST_ROWS = 50
"""Rows of a table that are shown; how many there are further is said."""
LONGEST = 160
"""Characters of one cell that are shown."""
MUTED = "color:#777"


def escaped(value: Any, limit: int | None = None) -> str:
    """A value as HTML that shows its text and nothing else; unknown is empty."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (tuple, list)):
        value = ", ".join(map(str, value))
    text = str(value)
    return escape(harmless(text if limit is None or len(text) <= limit else text[: limit - 1] + "…"))


def titled(title: str, *parts: str, note: str = "") -> str:
    """HTML parts below a heading.

    Args:
        title: plain text.
        *parts: HTML.
        note: plain text beside the title.
    """
    beside = f' <span style="{MUTED}">{escaped(note)}</span>' if note else ""
    return f"<div><div><b>{escaped(title)}</b>{beside}</div>{''.join(parts)}</div>"


def table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table of plain values, of its first `MOST_ROWS` rows."""
    head = "".join(f'<th style="text-align:left">{escaped(name)}</th>' for name in names)
    body = "".join(map(_row, rows[:MOST_ROWS]))
    more = f'<div style="{MUTED}">… {len(rows) - MOST_ROWS:,} more</div>' if len(rows) > MOST_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _row(row: Sequence[Any]) -> str:
    cells = "".join(f'<td style="text-align:left">{escaped(value, LONGEST)}</td>' for value in row)
    return f"<tr>{cells}</tr>"


def lines(found: Iterable[str]) -> str:
    """Sentences as a list."""
    items = "".join(f"<li>{escaped(each)}</li>" for each in found)
    return f"<ul>{items}</ul>" if items else ""
