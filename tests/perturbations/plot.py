"""Recall by size of perturbation as an SVG picture: the answer's curve beside the oracle's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.perturbations.scores import by_size

WIDTH, HEIGHT, LEFT, TOP = 560, 300, 52, 34
CURVES = (
    ("oracle", "#8a8a8a", 4),
    ("answer, first entries", "#1f5fbf", 2),
    ("answer, any place", "#7fa8df", 3),
)


def recall_plot(records: Sequence[dict[str, Any]]) -> str:
    """The picture, as the text of an SVG file."""
    rows = [row for row in by_size(records) if row[1]]
    across = (WIDTH - LEFT - 20) / max(len(rows) - 1, 1)
    down = HEIGHT - TOP - 56

    def point(i: int, share: float) -> str:
        return f"{LEFT + i * across:.1f},{TOP + (1 - share) * down:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = TOP + (1 - share) * down
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    for i, (name, n, *_) in enumerate(rows):
        x = LEFT + i * across
        parts.append(f'<text x="{x:.1f}" y="{TOP + down + 16}" text-anchor="middle">{name}</text>')
        parts.append(f'<text x="{x:.1f}" y="{TOP + down + 29}" text-anchor="middle" fill="#777">n {n}</text>')
    for number, (name, colour, column) in enumerate(CURVES):
        points = " ".join(point(i, float(row[column] or 0)) for i, row in enumerate(rows))  # type: ignore[arg-type]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{LEFT + 4 + number * 150}" y="18" fill="{colour}">{name}</text>')
    middle = LEFT + (WIDTH - LEFT - 20) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">size (signal to noise of the matched filter)</text>'
    )
    return "\n".join([*parts, "</svg>\n"])
