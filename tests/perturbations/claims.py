"""What a report says, read into claims; only what the contract names is looked at, and nothing here raises."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.perturbations.change import Part
from tests.perturbations.named import Series


@dataclass(frozen=True)
class Claim:
    """An entry of a report.

    Attributes:
        rank: its place among the entries, from 1; that of the entry it is nested under.
        nested: whether it is a consequence of another.
        severity: `error`, `warn` or `info`.
        sentence: what it says.
        series: what moved; empty where none could be read.
        part: for which rows; None where unknown.
        also: other parts that it names as equally good.
        shape: the shape of the movement.
        onset: interval of the first step.
        step: the first step.
        last: the last step; None where it lasts.
        before: the level before; None where it is not said.
        after: the level after.
    """

    rank: int
    nested: bool
    severity: str
    sentence: str
    series: tuple[Series, ...]
    part: Part | None
    also: tuple[Part, ...]
    shape: str
    onset: tuple[int, int]
    step: int
    last: int | None
    before: float | None
    after: float | None


def claims_of(report: Any) -> tuple[list[Claim], list[str]]:
    """The claims of a report, each followed by those nested under it, and what could not be read."""
    found: list[Claim] = []
    problems = [str(p) for p in getattr(report, "problems", None) or ()]
    for rank, entry in enumerate(getattr(report, "diagnoses", None) or (), start=1):
        for nested, one in _with_consequences(entry, False):
            try:
                found.append(_claim(rank, nested, one))
            except Exception as error:  # noqa: BLE001
                problems.append(f"unreadable entry: {type(error).__name__}: {error}")
    return found, problems


def _with_consequences(entry: Any, nested: bool) -> Iterator[tuple[bool, Any]]:
    yield nested, entry
    for one in getattr(entry, "consequences", None) or ():
        yield from _with_consequences(one, True)


def _claim(rank: int, nested: bool, entry: Any) -> Claim:
    part = getattr(entry, "part", None)
    step = getattr(entry, "step", None)
    onset = getattr(entry, "onset", None)
    begins = int(step if step is not None else onset[0] if onset else 0)
    return Claim(
        rank=rank,
        nested=nested,
        severity=str(getattr(entry, "severity", "info")),
        sentence=str(getattr(entry, "sentence", "")),
        series=tuple(_series(s) for s in getattr(entry, "series", None) or ()),
        part=None if part is None else _part(part),
        also=tuple(_part(p) for p in getattr(entry, "also", None) or ()),
        shape=str(getattr(entry, "shape", "level")),
        onset=(int(onset[0]), int(onset[1])) if onset else (begins, begins),
        step=begins,
        last=None if getattr(entry, "last", None) is None else int(entry.last),
        before=_number(getattr(entry, "before", None)),
        after=_number(getattr(entry, "after", None)),
    )


def _series(given: Any) -> Series:
    value = getattr(given, "value", None)
    return Series(str(given.column), None if value is None else str(value), str(given.statistic))


def _part(given: Any) -> Part:
    return tuple((str(column), str(value)) for column, value in given)


def _number(given: Any) -> float | None:
    try:
        return None if given is None else float(given)
    except (TypeError, ValueError):
        return None
