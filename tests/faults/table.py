"""The table of faults: what became of everything that was handed over, and how long the longest call took."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class FaultRow:
    """A fault and what came of it.

    Attributes:
        fault: what was done.
        tried: how often: calls, rounds or batches, as it says itself.
        handed_over: rollouts, or numbers of `log_scalars`, that were taken.
        stored: of them, seen in the store.
        lost: of them, not in the store; each is counted and said.
        doubled: stored more than once.
        longest_call: milliseconds of the longest call of the training thread; None where it is not timed.
        note: what else was seen.
    """

    fault: str
    tried: str
    handed_over: int
    stored: int
    lost: int
    doubled: int
    longest_call: float | None = None
    note: str = ""

    def cells(self) -> tuple[str, ...]:
        """Its texts, in the order of the columns."""
        longest = "" if self.longest_call is None else f"{self.longest_call:,.0f} ms"
        numbers = (f"{n:,}" for n in (self.handed_over, self.stored, self.lost, self.doubled))
        return (self.fault, self.tried, *numbers, longest, self.note)


COLUMNS = tuple(item.name.replace("_", " ") for item in fields(FaultRow))


def lines(rows: list[FaultRow]) -> list[str]:
    """The table as Markdown, its columns aligned."""
    cells = [COLUMNS, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(COLUMNS))]
    texts = [
        "| " + " | ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)) + " |"
        for line in cells
    ]
    return [texts[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *texts[1:]]
